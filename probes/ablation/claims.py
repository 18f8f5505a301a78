"""Claims of interventions: what the loss needs, what repairs, what stands in, what the context is worth."""

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import MODEL, Claim, Claims, Condition, Status, decided
from mechmarkov.claims.tile import LIVES, Tile
from mechmarkov.probing.dataset import interval_at, last_model
from mechmarkov.probing.score import Score
from mechmarkov.theory.bootstrap import wilson

from .components import ranked
from .needed import MIN_EFFECT_NATS, needed_most, of_parts
from .together import cancel, repairs, stand_in

# Parts worth less are not told next to the one that is needed most.
MIN_TOLD_NATS = 0.01
MIN_TOLD_SHARE = 0.25  # of the largest effect

ORDER_LOSS = {"shuffle": "all but last", "measure": "loss"}


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """Returns what each part is worth, which are needed most, and what the prediction owes to the context."""
    cancelling = list(cancel(data))
    undone = {
        part: tuple(other for other in claim.subject if other != part)
        for claim in cancelling
        for part in next((only.words for only in claim.because), claim.subject)
    }
    most, relied = list(needed_most(data, scores, undone)), list(_relied_on(data))
    # Of two parts that cost most, one at its mean and one from another sequence, only the latter is told.
    agree = not relied or any(one.is_shown and set(relied[0].subject) <= set(one.subject) for one in most)
    first = [*most, *relied] if agree else relied
    return [
        *first[:1],
        *cancelling,
        _follows(data),
        *repairs(data),
        *stand_in(data),
        _order(data),
        *of_parts(data, undone),
        *first[1:],
    ]


def swap_followed(data: xr.Dataset) -> Score:
    """Returns how often another parent is followed (probability), with Wilson's interval."""
    followed, reason, interval = float(last_model(data)["swap_followed"]), None, None
    if not data.attrs["one_parent"]:
        followed, reason = np.nan, "the next state depends on no single token: there is no parent to swap"
    elif not np.isfinite(followed):
        reason = "all sequences have one state there, or all states one law: a swap tells nothing"
    else:
        interval = wilson(followed, float(last_model(data)["swaps"]))
    null_kind = "a model that ignores the parent"
    return Score(followed, "probability", 0.5, interval, null_kind, reason=reason)


def _relied_on(data: xr.Dataset) -> Iterator[Claim]:
    """Yields parts whose output from another sequence clearly costs a model trained on scores.

    At a mean its scores are nobody's, so that their cross-entropy says little.
    """
    if data.attrs["objective"] == "cross_entropy" or "resample" not in data["kind"]:
        return
    resampled = {"kind": "resample", "measure": "loss"}
    effect = last_model(data)["effect"].sel(resampled)
    worth = {part: float(effect.sel(component=part)) for part in ranked(data)}
    for part in sorted(worth, key=lambda name: -worth[name]):
        low, high = interval_at(data, "effect", component=part, **resampled)
        if low > MIN_EFFECT_NATS:
            yield Claim(
                (part,), "is_relied_on", (), worth[part], (low, high), 0.0, "nats", "shown", "intervention"
            )


def _follows(data: xr.Dataset) -> Claim:
    score = swap_followed(data)
    if not isinstance(score.value, float):
        why = "no single parent" if not data.attrs["one_parent"] else "all parents have one law"
        return Claim((MODEL,), "follows", status="does not apply", because=(Condition(why),))
    stays = float(last_model(data)["swaps_that_stay"]) == 1
    status = "excluded" if stays else decided(score.interval, 0.5, score.value)
    if data.attrs.get("determined") and status != "shown":
        against = (Condition("a swap contradicts the rest"),)
        return Claim((MODEL,), "follows", status="does not apply", because=against)
    return Claim(
        (MODEL,), "follows", ("parent",), score.value, score.interval, 0.5, "probability", status,
        "intervention", because=(Condition("all stay as they are"),) * stays,
    )  # fmt: skip


def _order(data: xr.Dataset) -> Claim:
    """Returns what the order of all that came before the last token is worth to the last prediction."""
    value = float(last_model(data)["shuffle_effect"].sel(ORDER_LOSS))
    interval = interval_at(data, "shuffle_effect", **ORDER_LOSS)
    little = max(map(abs, interval)) < MIN_EFFECT_NATS
    harm = interval[1] < 0 and not little
    status: Status = "excluded" if little or harm else "shown" if interval[0] > 0 else "open"
    return Claim(
        (MODEL,), "uses_order", (), value, interval, 0.0, "nats", status, "intervention",
        because=(Condition("does harm"),) * harm,
    )  # fmt: skip


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Returns where it lives, if neither a circuit nor a home is told: the parts that are needed most."""
    ours = Claims(tuple(claims)).where(probe="ablation")
    most = ours.first("is_needed_most")
    if most is None:
        return []
    needed = Claims(tuple(one for one in ours.where("is_needed") if not one.condition("only undoes")))
    bars = {claim.subject[0]: claim.value for claim in needed if claim.value is not None}
    if not most.is_shown:
        return [Tile(LIVES, (most,), (), most, bars, "effect", rank=7)]
    # What is needed a little less is part of the answer: a circuit is seldom one part.
    least = max(MIN_TOLD_NATS, MIN_TOLD_SHARE * max(bars.values(), default=0.0))
    singles = [one for one in needed.where(status="shown") if (one.value or 0.0) >= least]
    others = sorted(
        (one for one in singles if one.subject[0] not in most.subject), key=lambda one: -(one.value or 0.0)
    )
    together = most if most.holds("group") else None
    told = (most, *others)
    return [Tile(LIVES, told, told[:2], most, bars, "effect", together=together, rank=5)]
