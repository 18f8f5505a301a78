"""Which parts are needed: what each is worth, those worth most, and groups worth more than their parts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import xarray as xr
from scipy.special import ndtri

from mechmarkov.claims.claim import Claim, Condition, Status, decided
from mechmarkov.probing.dataset import NORMAL_95, interval_at, last_model
from mechmarkov.probing.score import Score, standing

from .components import ranked

# A component that changes the loss by less than this is not named as one that matters.
MIN_EFFECT_NATS = 1e-3

# Heads of a group are worth this share of it one by one, at most: KL is convex in the logits, so that each
# of n equal parts of a logit costs 1 / n² of what all of them do.
MAX_ONE_BY_ONE = 0.5

MAX_TIED = 0.1  # of the largest effect in a group; others that are as near to it are its equals

MEAN_LOSS = {"kind": "mean", "measure": "loss"}
Interval = tuple[float, float]
Names = tuple[str, ...]


def largest_effect(data: xr.Dataset) -> tuple[str, float, Interval]:
    """Returns the component whose mean costs the last model most, what it costs, and its interval."""
    effects = ranked(data)
    name = max(effects, key=effects.__getitem__)
    last = last_model(data)
    return name, effects[name], (float(last["largest_low"]), float(last["largest_high"]))


def matters(value: float, interval: Interval) -> bool:
    """Returns whether an effect is clearly above zero, and large enough to be named."""
    return value > MIN_EFFECT_NATS and interval[0] > 0


def tied(data: xr.Dataset, name: str, value: float, interval: Interval) -> list[str]:
    """Returns the components whose effect is within the largest one's interval, and it within theirs."""
    within = []
    for other, effect in ranked(data).items():
        low, high = interval_at(data, "effect", component=other, **MEAN_LOSS)
        if other != name and effect >= interval[0] and low <= value <= high:
            within.append(other)
    return within


def needed_most(data: xr.Dataset, scores: dict[str, Score], undone: Mapping[str, Names]) -> Iterator[Claim]:
    """Yields the part whose mean costs most, with those that tie; open or excluded if none clearly matters.

    Of parts that only undo each other none is asked, and nothing is told where there are no others.

    Args:
        data: What `measure` returned.
        scores: Its scores, of which `largest_effect` has a null.
        undone: Parts that only undo others, and those (`together.cancel`).
    """
    effects = {part: nats for part, nats in ranked(data).items() if part not in undone}
    if not effects:
        return
    name, value, interval = largest_effect(data)
    if name in undone:
        name = max(effects, key=effects.__getitem__)
        value, interval = effects[name], interval_at(data, "effect", component=name, **MEAN_LOSS)
    clean = Condition("loss", value=float(last_model(data)["clean"].sel(measure="loss")), unit="nats")
    if (group := _group_needed(data, ranked(data), interval)) is not None:
        yield replace(group, because=(clean, *group.because))
        return
    ends = {part: interval_at(data, "effect", component=part, **MEAN_LOSS) for part in effects}
    ends[name] = interval  # of the largest of them, one effect has one interval
    clear = [part for part, (low, _) in ends.items() if low > 0 and effects[part] > MIN_EFFECT_NATS]
    harm, score = list(_harm(effects, ends)), scores["largest_effect"]
    names: Names = (name,)
    if matters(value, interval):
        most = {name, *set(effects) & set(tied(data, name, value, interval)) & set(clear)}
        names = tuple(part for part in effects if part in most)  # in the order in which they are computed
        status: Status = "open" if standing(score) == "within" else "shown"
        premises = []
        if status == "open":
            premises += [Condition("within its null"), *(one for one in harm if one.words)]
        if len(names) > 1:
            least = min(effects[other] for other in names)
            premises.append(Condition("least of them", value=least, unit="nats"))
        rest = [other for other in sorted(effects, key=lambda part: -effects[part]) if other not in names]
        for other in rest[:1]:
            if matters(effects[other], interval_at(data, "effect", component=other, **MEAN_LOSS)):
                premises.append(Condition("next part", value=effects[other], unit="nats", words=(other,)))
    else:
        status = "excluded" if all(high < MIN_EFFECT_NATS for _, high in ends.values()) else "open"
        if status == "open" and interval[1] < MIN_EFFECT_NATS:  # clearly worth nothing; another one may be
            name = max(ends, key=lambda part: ends[part][1])
            names, value, interval = (name,), effects[name], ends[name]
        on_scores = [Condition("loss on scores")] * (data.attrs["objective"] != "cross_entropy")
        # Where the largest effect is not sure, a smaller one may be.
        premises = [*on_scores, *harm, *[Condition("clearly needed", words=tuple(clear))] * bool(clear)]
    yield Claim(
        names, "is_needed_most", (), value, interval, score.null, "nats", status, "intervention",
        because=(clean, *premises),
    )  # fmt: skip


def _harm(effects: Mapping[str, float], ends: Mapping[str, Interval]) -> Iterator[Condition]:
    """Yields the part without which the loss clearly falls by most; unnamed where none clearly does."""
    wider = float(ndtri(1 - 0.025 / len(ends))) / NORMAL_95  # it is chosen among all parts
    sure = [
        part
        for part, (_, high) in ends.items()
        if effects[part] + wider * (high - effects[part]) < 0 and effects[part] < -MIN_EFFECT_NATS
    ]
    if sure:
        most = min(sure, key=effects.__getitem__)
        yield Condition("does harm", value=-effects[most], unit="nats", words=(most,))
    elif any(low < -MIN_EFFECT_NATS for low, _ in ends.values()):
        yield Condition("does harm", None)


def _group_needed(data: xr.Dataset, effects: dict[str, float], single: Interval) -> Claim | None:
    """The group clearly worth more than any part, and twice what its parts are one by one."""
    if "group_effect" not in data:
        return None
    worth, best = last_model(data)["group_effect"].values, None
    for at in np.argsort(-worth, kind="stable"):
        names = tuple(data["group_head"].values[data["in_group"].values[at]].tolist())
        low, high = (float(data[f"group_effect_{end}"].isel(group=at)[-1]) for end in ("low", "high"))
        most = max(names, key=effects.__getitem__)
        one_by_one = sum(max(effects[name], 0.0) for name in names)
        if low > max(MIN_EFFECT_NATS, single[1]) and one_by_one <= MAX_ONE_BY_ONE * worth[at]:
            others = [effects[name] for name in names if name != most]
            is_larger = max(MIN_EFFECT_NATS, *others) < (1 - MAX_TIED) * effects[most]
            premises = (
                Condition("group"),
                Condition("one by one", value=one_by_one, unit="nats"),
                # Of equals none is worth most.
                Condition("largest of them", None, effects[most], "nats", (most,) if is_larger else ()),
            )
            claim = Claim(
                names, "is_needed_most", (), float(worth[at]), (low, high), 0.0, "nats", "shown",
                "intervention", because=premises,
            )  # fmt: skip
            # Of groups that are worth as much the smallest is named.
            if best is None or (len(names) < len(best.subject) and high >= (best.value or 0.0)):
                best = claim
    return best


def of_parts(data: xr.Dataset, undone: Mapping[str, Names]) -> Iterator[Claim]:
    """Yields what each part is worth; of one that does harm less than nothing.

    Args:
        data: What `measure` returned.
        undone: Parts that only undo others, and those.
    """
    effects = ranked(data)
    largest, _, of_largest = largest_effect(data)
    for name in sorted(effects, key=lambda part: -abs(effects[part])):
        low, high = interval_at(data, "effect", component=name, **MEAN_LOSS)
        if name == largest:  # chosen as that: the interval is wider
            low, high = of_largest
        value = effects[name]
        status = decided((low, high), MIN_EFFECT_NATS, value)
        harm = (Condition("does harm"),) if high < 0 and value < -MIN_EFFECT_NATS else ()
        if name in undone:
            harm = (*harm, Condition("only undoes", words=undone[name]))
        yield Claim(
            (name,), "is_needed", (), value, (low, high), 0.0, "nats", status, "intervention", because=harm
        )
