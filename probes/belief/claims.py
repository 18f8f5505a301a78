"""Claims of beliefs: which stream carries the belief over what is hidden, and do predictions follow it."""

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Bool

from mechmarkov.claims.claim import MODEL, Claim, Claims, Condition, Status
from mechmarkov.claims.tile import LIVES, Tile
from mechmarkov.probing.dataset import interval_at, last_model, normal_interval
from mechmarkov.probing.score import Score

from .forcing import mean_kls
from .measure import DETERMINED, SAME_LAW, first_nearly_best

CARRIED_R2 = 0.9  # from here on the stream carries the belief, if it also tells
CARRIED_BEYOND = 0.5  # of what predictions and tokens leave open
ROUNDING = 1e-6  # of an R²: streams that are no further apart are equal, and the earliest is named

_STATUS: dict[bool | None, Status] = {True: "shown", None: "open", False: "excluded"}


def _holding(last: xr.Dataset) -> tuple[Bool[np.ndarray, " stream"], Bool[np.ndarray, " stream"]]:
    """Returns which streams clearly hold the belief beyond what predictions and tokens tell, or may."""
    left = np.where(np.isnan(last["beyond"]), np.nan, 1 - float(last["baseline_r2"]))
    low, high = last["r2_low"].values, last["r2_high"].values
    surely = (low >= CARRIED_R2) & (1 - (1 - low) / left >= CARRIED_BEYOND)
    return surely, ~((high < CARRIED_R2) | (1 - (1 - high) / left < CARRIED_BEYOND))


def is_carried(last: xr.Dataset) -> bool | None:
    """Returns whether the stream that is named holds the belief, beyond what predictions and tokens tell.

    None if an interval holds its limit, or predictions and tokens leave nothing to tell. False only if no
    stream may hold it.
    """
    surely, may = _holding(last)
    return True if surely[_named(last)] else None if may.any() else False


def _named(last: xr.Dataset) -> int:
    """Returns a model's best stream if that clearly holds the belief, else the one with the largest R²."""
    best, r2 = int(last["best"]), last["r2"].values
    return best if _holding(last)[0][best] else int(np.argmax(r2 >= r2.max() - ROUNDING))


def is_used(last: xr.Dataset) -> bool | None:
    """Returns whether predictions clearly follow the belief when it is forced.

    None if sequences do not tell, or all hidden states have one law, so that there is nothing to follow.
    """
    if float(last["laws_apart"]) < SAME_LAW:
        return None
    _, low, high = (float(value) for value in last["short_of_used"])
    return None if low < 0 <= high else high < 0


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """Returns whether the belief is carried, whether beyond predictions, and what forcing a state does."""
    last = last_model(data)
    named = _named(last)
    stream = str(last["stream"].values[named])
    hidden = (str(data.attrs["hidden"]),)
    r2, beyond = (float(last[name][named]) for name in ("r2", "beyond"))
    baseline = float(last["baseline_r2"])
    premises = [
        Condition("hidden states", value=float(data.attrs["n_hidden"])),
        Condition("tokens and predictions give", value=baseline, unit="R²"),
        Condition("beyond them", None if baseline > DETERMINED else True, max(0.0, beyond), "share"),
    ]
    if "attention_r2" in last:
        first = last["attention_r2"].isel(layer=0)
        premises.append(
            Condition("after attention", value=float(first), unit="R²", words=(str(int(first["layer"])),))
        )
        premises.append(Condition("sums of one update a token", value=float(last["additive_r2"]), unit="R²"))
    carries = Claim(
        (stream,), "carries_belief", hidden, r2, interval_at(data, "r2", stream=stream), None, "R²",
        _STATUS[is_carried(last)], because=tuple(premises),
    )  # fmt: skip
    return [carries, *_parts(last, scores), _follows(last, named, hidden)]


def first_stream_of(last: xr.Dataset, part: str) -> tuple[str, float, float]:
    """The earliest stream from which a part is read nearly as well as from any, and R²'s interval."""
    one = last.sel(part=part)
    missed = 1 - one["part_r2"].values
    first = first_nearly_best(missed)
    interval = normal_interval(1 - missed[first], float(one["part_r2_error"][first]))
    return str(last["stream"].values[first]), *interval


def _parts(last: xr.Dataset, scores: dict[str, Score]) -> Iterator[Claim]:
    """Yields from which stream on each part of what is hidden is read, if more than from fresh models."""
    for part in last["part"].values.tolist() if "part" in last.coords else ():
        stream, low, high = first_stream_of(last, part)
        score = scores[f"part_r2_{part.replace(' ', '_')}"]
        chance = score.null[-1] if isinstance(score.null, tuple) else score.null
        status: Status = (
            "shown" if chance is None or low > chance else "open" if high > chance else "excluded"
        )
        status = "excluded" if high <= 0 else status  # a mean is as good
        value = float(last["part_r2"].sel(part=part, stream=stream))
        yield Claim((stream,), "reads_part", (part,), value, (low, high), score.null, "R²", status)


def _follows(last: xr.Dataset, named: int, hidden: tuple[str, ...]) -> Claim:
    """Returns what forcing a state does, and at which stream."""
    best = int(last["best"])
    stream = str(last["stream"].values[best])
    premises = [Condition("forced at", value=float(last["r2"][best]), unit="R²", words=(stream,))] * (
        best != named
    )
    if best == last.sizes["stream"] - 1:
        premises.append(Condition("at the logits"))
    if stream == "embed":
        premises.append(Condition("a forced token"))
    if float(last["laws_apart"]) < SAME_LAW:
        one_law = Condition("hidden states have one law")
        return Claim(
            (MODEL,), "follows_belief", hidden, status="does not apply", because=(*premises, one_law)
        )
    clean, random, forced = mean_kls(last)
    premises.append(Condition("clean", value=clean, unit="nats"))
    return Claim(
        (MODEL,), "follows_belief", hidden, forced, None, random, "nats", _STATUS[is_used(last)],
        "intervention", because=tuple(premises),
    )  # fmt: skip


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Returns where it lives: the stream that carries the belief, if one is shown to.

    What is carried and not followed comes after the parts that are needed.
    """
    ours = Claims(tuple(claims)).where(probe="belief")
    carries = ours.first("carries_belief", status="shown")
    if carries is None:
        return []
    is_followed = ours.first("follows_belief", status="shown") is not None
    rank = 3 if is_followed else 6
    return [Tile(LIVES, (carries,), tuple(ours.where("follows_belief")), carries, rank=rank)]
