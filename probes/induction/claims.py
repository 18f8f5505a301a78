"""Claims of induction: which heads match tokens, what feeds them by which input, what the path carries."""

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import COPIES, MODEL, Claim, Condition, Evidence, Status, Where
from mechmarkov.models.components import head_index
from mechmarkov.probing.dataset import NORMAL_95, best_heads, head_name, last_model, normal_interval
from mechmarkov.probing.score import Score, standing

from .circuit import (
    MAX_SHARE_LEFT,
    MIN_MOVED_SHARE,
    askers_of,
    fed_alike,
    is_moved,
    last_induction_head,
    strongest_feeder,
    tied_heads,
)
from .feeding import ESTIMATE

# A head finds matches after a state if its score there is more than this share of an ideal head's, and misses
# them if less than the other: and so its log odds of a match, as a share of the best state's. That score
# is smaller where matches are few. Where an ideal head scores less than the third there is nothing to find.
MIN_FOUND_SHARE, MAX_MISSED_SHARE = 0.5, 0.2
MIN_IDEAL = 0.05
LEAST_IDEAL = 1e-6  # likewise of all states: what is below is rounding
# A head looks at the previous token, or at copies, if these get more than this much of its attention.
MIN_ATTENTION = 0.5
# A head that writes at most this share of the law's log-odds backwards does not write against it.
MIN_AGAINST = 0.01
MIN_ALONG = 0.25  # and one that writes this share of them writes along it
MIN_LOOKS = 0.01  # of the attention, beyond lag and tokens: with less a head does not look after copies
# Heads match k tokens if what k explain beyond k - 1 is over this share of an ideal head's score.
MIN_MATCHED_SHARE = 0.5
MIN_MOVED_TOO = 0.1  # of the ideal, from which on heads that are moved less than the best are named too
# Where a predecessor may move attention by more than this share of the ideal, too few sequences tell.
MIN_IDEAL_SHARE = 0.5
INTERVENED: Evidence = "intervention"
# Below this many nats a path carries no predictions.
MIN_EFFECT_NATS = 0.01
THROUGH_KEYS = Condition("through", words=("keys",))


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """The induction heads, what feeds them and what that path carries; or what only looks like one."""
    last, (head, name) = last_model(data), last_induction_head(data)
    if not np.isfinite(float(head["induction"].sel(matched=1))):
        nothing = (Condition("no match"),)
        return [Claim((MODEL,), "is_induction_head", status="does not apply", because=nothing)]
    if not is_moved(head):
        return [no_head(last), *lookalikes(data, last)]
    heads = tuple(head_name({"layer": layer, "head": index}) for layer, index in tied_heads(last)) or (name,)
    feeds = list(feeds_keys(last, head, name))
    feeders = tuple(dict.fromkeys(who for claim in feeds if claim.is_shown for who in claim.subject))
    asked = list(feeds_queries(head, heads))
    against, along = writing(last, heads, -1, MIN_AGAINST), writing(last, heads, 1, MIN_ALONG)
    carries = list(carried(data, head, heads, feeders, against, along)) if feeders else []
    circuit = [*feeds, *asked, *carries] if feeders else []
    return [
        *circuit,
        is_head(data, head, heads, scores, against, carries),
        *([] if circuit else [*feeds, *asked]),
        *(claim for name in heads for claim in misses_after(data, last, name)),
    ]


def writing(last: xr.Dataset, heads: tuple[str, ...], sign: int, least: float) -> tuple[str, ...]:
    """Returns which heads clearly write the law's log-odds (1), or against them, what did not follow (-1)."""
    low = sign * last["along"] - NORMAL_95 * last["along_error"]
    at = {name: head_index(name) for name in heads}
    return tuple(name for name, where in at.items() if where and float(low[where]) > least)


def _is_silent(last: xr.Dataset, heads: tuple[str, ...]) -> bool:
    """Returns whether heads clearly write nothing of the law's log-odds, for it or against."""
    most = abs(last["along"]) + NORMAL_95 * last["along_error"]
    return all(float(most[where]) <= MIN_AGAINST for name in heads if (where := head_index(name)))


def _tokens_matched(last: xr.Dataset, heads: tuple[str, ...]) -> int:
    """Returns of how many tokens in a row each of the heads clearly looks for copies."""
    matches = last["induction"] - NORMAL_95 * last["induction_error"] > MIN_MATCHED_SHARE * last["ideal"]
    at = [{"layer": where[0], "head": where[1]} for name in heads if (where := head_index(name))]
    each = np.array([matches.isel(where).values for where in at])
    return 1 + int(each[:, 1:].all(0).cumprod().sum())


def is_head(
    data: xr.Dataset,
    head: xr.Dataset,
    heads: tuple[str, ...],
    scores: dict[str, Score],
    against: tuple[str, ...],
    carries: Sequence[Claim] = (),
) -> Claim:
    """The heads that a predecessor moves, with how much beyond lag and tokens they put on matches.

    Args:
        data: What `measure` returned.
        head: What was measured of the first of them.
        heads: Their names.
        scores: The probe's scores.
        against: Those of them that write against the law.
        carries: What the path through them carries.
    """
    effect, half = float(head["effect"]), float(head["effect_high"] - head["effect"])
    # Where each token tells all others, lag and tokens explain an ideal head too: then edits have to tell.
    tells = float(data["ideal"].sel(matched=1)) > LEAST_IDEAL
    within = standing(scores["induction_score" if tells else "predecessor_effect"]) == "within"
    premises = [
        Condition("on matches", value=float(head["match_mass"].sel(matched=1)), unit="probability"),
        Condition("beyond lag and tokens", value=float(head["induction"].sel(matched=1)), unit="probability"),
        Condition("an ideal head has", value=float(data["ideal"].sel(matched=1)), unit="probability"),
    ]
    premises += [Condition("within its null")] * within + [Condition("equal within intervals")] * (
        len(heads) > 1
    )
    if (matched := _tokens_matched(last_model(data), heads)) > 1:
        premises.append(Condition("tokens matched", value=float(matched)))
    if effect - half > 1:
        premises.append(Condition("more than an ideal head"))
    if others := _moved_less(last_model(data), heads):
        most = max(others.values())
        premises.append(Condition("moved less", value=most, unit="of the ideal", words=tuple(others)))
    if against:
        premises.insert(0, Condition("write against the law", words=against))
    if any(one.status == "excluded" for one in carries) and _is_silent(last_model(data), heads):
        premises.append(Condition("carries nothing"))
    if not data.attrs["is_linear"] and (index := head_index(heads[0])) is not None and index[0] == 0:
        premises.append(Condition("its own convolution"))  # nothing else is before a first layer
    return Claim(
        heads, "is_induction_head", (), effect, (effect - half, effect + half), None, "of the ideal",
        "open" if within else "shown", INTERVENED, because=tuple(premises),
    )  # fmt: skip


def _moved_less(last: xr.Dataset, heads: tuple[str, ...]) -> dict[str, float]:
    """Returns other heads that a predecessor clearly moves by a part of the ideal, and by how much."""
    found = np.argwhere((last["effect_low"] > MIN_MOVED_TOO).transpose("layer", "head").values)
    effects = last["effect"].transpose("layer", "head").values
    others = {head_name({"layer": layer, "head": head}): float(effects[layer, head]) for layer, head in found}
    return {name: effect for name, effect in others.items() if name not in heads}


def no_head(last: xr.Dataset) -> Claim:
    """No head that a predecessor moves, clearly or perhaps; or one that it moves the other way."""
    largest = best_heads(last["effect"])
    effect, high = (float(last[name].isel(largest)) for name in ("effect", "effect_high"))
    if not np.isfinite(effect):
        cannot = (Condition("no key to edit"),)
        return Claim((MODEL,), "is_induction_head", status="does not apply", because=cannot)
    most = float(last["effect_high"].max())
    status: Status = "excluded" if most <= MIN_MOVED_SHARE else "open"
    premises = [Condition("no strong circuit")] * (MIN_MOVED_SHARE < most < MIN_IDEAL_SHARE)
    lowest = best_heads(-last["effect"])
    value, low = float(last["effect"].isel(lowest)), float(last["effect_low"].isel(lowest))
    if value + (value - low) < -MIN_MOVED_SHARE:  # clearly the other way
        name = head_name(lowest)
        premises.append(Condition("moves the other way", value=value, unit="of the ideal", words=(name,)))
    around = (2 * effect - high, high)
    return Claim(
        (head_name(largest),), "is_induction_head", (), effect, around, None, "of the ideal", status,
        INTERVENED, because=tuple(premises),
    )  # fmt: skip


def misses_after(data: xr.Dataset, last: xr.Dataset, name: str) -> Iterator[Claim]:
    """Yields after which states a head finds no matches, though it does after others."""
    if (at := head_index(name)) is None:
        return
    one = last.isel(layer=at[0], head=at[1])
    score, ideal = one["tied_after"].values, data["ideal_after"].values
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(ideal > MIN_IDEAL, score / ideal, np.nan)
    odds, low, high = (one["tied_odds_after"].sel(estimate=end).values for end in ESTIMATE)
    best = np.nanmax(np.where(np.isfinite(share), odds, -np.inf))
    finds = (share > MIN_FOUND_SHARE) & (low > MIN_FOUND_SHARE * best)
    misses = (share < MAX_MISSED_SHARE) & (high < MAX_MISSED_SHARE * best)
    if finds.any() and misses.any():
        labels = np.array(data.attrs["labels"]).astype(str)
        after, never = (tuple(labels[which]) for which in (finds, misses))
        yield Claim(
            (name,), "is_induction_head", ("after these states",), status="excluded", evidence=INTERVENED,
            where=Where(states=never), because=(Condition("finds after", words=after),),
        )  # fmt: skip


def lookalikes(data: xr.Dataset, last: xr.Dataset) -> Iterator[Claim]:
    """Heads that a score by itself would take for parts of a circuit."""
    score = last["induction"].sel(matched=1)
    best = best_heads(score)
    if float(score.isel(best)) > max(MIN_LOOKS, 0.1 * float(data["ideal"].sel(matched=1))):
        clearly_nothing = float(last["effect_high"].isel(best)) <= MIN_MOVED_SHARE
        yield Claim(
            (head_name(best),), "attends_to", ("matches",), float(score.isel(best)), unit="probability",
            because=(Condition("not for their predecessors", clearly_nothing or None),),
        )  # fmt: skip
    previous, copies = last["previous_token"], last["duplicate_token"]
    # On a sticky chain the token before mostly is a copy: the larger of the two names the head.
    for values, others, chance, kind in (
        (previous, copies, last["previous_chance"], "previous token"),
        (copies, previous, last["duplicate_chance"], COPIES),
    ):
        at = best_heads(values.where(values >= others))
        value = float(values.isel(at))
        if value > MIN_ATTENTION + (1 - MIN_ATTENTION) * float(chance):
            yield Claim((head_name(at),), "attends_to", (kind,), value, None, float(chance), "probability")


def feeds_keys(last: xr.Dataset, head: xr.Dataset, name: str) -> Iterator[Claim]:
    """Yields which earlier heads feed the keys of each head that ties, and what is left without them."""
    tied = tied_heads(last) or [(int(head["layer"]), int(head["head"]))]
    for feeders, some in fed_alike(last, tied).items():
        heads = tuple(head_name({"layer": layer, "head": index}) for layer, index in some)
        if not feeders:
            yield _not_fed(head, heads) if name in heads else _fed_by_none(heads, "open")
            continue
        one = last.isel(layer=some[0][0], head=some[0][1])
        value, low, high = (float(one["tied_left"].sel(estimate=end)) for end in ESTIMATE)
        premises = [
            Condition(
                "previous token", value=float(last["previous_token"][at]), unit="probability", words=(who,)
            )
            for who in feeders
            if (at := head_index(who)) is not None
        ]
        if name in heads:
            premises += [
                Condition("score before and after", value=float(head["intact"])),
                Condition("after the cut", value=float(head["cut"].sel(input="K"))),
            ]
        yield Claim(
            feeders, "feeds", heads, value, (low, high), 1.0, "share", "shown", INTERVENED,
            because=(THROUGH_KEYS, *premises),
        )  # fmt: skip


def _not_fed(head: xr.Dataset, heads: tuple[str, ...]) -> Claim:
    """Returns what is left of the score of a head that no earlier head feeds, without all of them."""
    low, high = (float(head["earlier_left"].sel(estimate=end)) for end in ("low", "high"))
    if strongest_feeder(head) is None:
        return _fed_by_none(heads, "excluded")
    if not np.isfinite(low):
        return _fed_by_none(heads, "open")
    ends = (max(0.0, low), min(1.0, high))
    return _fed_by_none(heads, "open" if low <= MAX_SHARE_LEFT else "excluded", ends)


def _fed_by_none(heads: tuple[str, ...], status: Status, ends: tuple[float, float] | None = None) -> Claim:
    return Claim((), "feeds", heads, None, ends, 1.0, "share", status, INTERVENED, because=(THROUGH_KEYS,))


def feeds_queries(head: xr.Dataset, heads: tuple[str, ...]) -> Iterator[Claim]:
    """The earlier heads by which a head knows what to look for; most heads see that in their own token."""
    if askers := tuple(head_name(asker) for asker in askers_of(head)):
        value, low, high = (float(head["query_left"].sel(estimate=end)) for end in ESTIMATE)
        through = Condition("through", words=("queries",))
        yield Claim(
            askers, "feeds", heads, value, (low, high), 1.0, "share", "shown", INTERVENED, because=(through,)
        )


def carried(
    data: xr.Dataset,
    head: xr.Dataset,
    heads: tuple[str, ...],
    feeders: tuple[str, ...],
    against: tuple[str, ...] = (),
    along: tuple[str, ...] = (),
) -> Iterator[Claim]:
    """Yields what KL from the reference gains when the path from the feeders to the keys is cut."""
    intact, cut = float(head["kl_intact"]), float(head["kl_cut"].sel(input="K"))
    low, high = normal_interval(cut - intact, float(head["kl_error"].sel(input="K")))
    simpler, apart = float(data["kl_simpler"]), NORMAL_95 * float(head["simpler_error"])
    premises = [
        Condition("from", value=intact, unit="nats"),
        Condition("to", value=cut, unit="nats"),
        Condition("simpler law", value=simpler, unit="nats", words=(str(data.attrs["simpler"]),)),
    ]
    if high < 0 and cut - intact < -MIN_EFFECT_NATS:
        status: Status = "excluded"
        premises.append(Condition("does harm"))
    elif low > 0 and cut - intact > MIN_EFFECT_NATS:
        status = "shown"
        if set(against) == set(heads):  # what else there is would be too sure of the law without it
            status = "excluded"
            premises.append(Condition("takes from the law"))
        elif simpler - intact <= max(apart, MIN_EFFECT_NATS):
            other = Condition("not the law's", intact >= simpler + apart)
            # Heads that write along the law have some of it, and are too sure of it.
            premises.append(Condition("some of it") if set(along) == set(heads) else other)
        elif low <= MAX_SHARE_LEFT * (simpler - intact):
            premises.append(Condition("some of it"))
        elif intact + apart >= MAX_SHARE_LEFT * simpler:
            premises.append(Condition("most of what there is"))
    else:
        status = "excluded" if high <= MIN_EFFECT_NATS else "open"
        # Heads write the law, and KL is as large without them. Where it is small the rest has the law too.
        if status == "excluded" and set(along) == set(heads) and intact > MIN_EFFECT_NATS:
            premises.append(Condition("too sure"))
    yield Claim(
        (*feeders, *heads), "carries", (str(data.attrs["reference"]),), cut - intact, (low, high), 0.0,
        "nats", status, INTERVENED, because=tuple(premises),
    )  # fmt: skip
