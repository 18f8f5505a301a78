"""Claims of interventions: what the loss needs, what repairs, what stands in, what the context is worth."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr
from scipy.special import ndtri

from mechmarkov.claims.claim import MODEL, Claim, Claims, Condition, Status, decided
from mechmarkov.claims.tile import LIVES, Tile
from mechmarkov.probing.dataset import NORMAL_95, interval_at, last_model
from mechmarkov.probing.score import Score, standing
from mechmarkov.theory.bootstrap import wilson

from .components import ranked

# A component that changes the loss by less than this is not named as one that matters.
MIN_EFFECT_NATS = 1e-3

# Parts worth less are not told next to the one that is needed most.
MIN_TOLD_NATS = 0.01
MIN_TOLD_SHARE = 0.25  # of the largest effect

# What later parts change is named where it is more than this, and more than this share of the whole.
MIN_REPAIR_NATS = 0.01
MIN_REPAIR_SHARE = 0.25

# Each of two that stand in for each other costs at most this share of both. Of two that merely add it is
# more: KL is convex in the logits, so that either half of a logit costs a quarter of the whole.
MAX_ALONE_SHARE = 0.1

# Heads of a group are worth this share of it one by one, at most: KL is convex in the logits, so that each
# of n equal parts of a logit costs 1 / n² of what all of them do.
MAX_ONE_BY_ONE = 0.5

MAX_TIED = 0.1  # of the largest effect in a group; others that are as near to it are its equals

MAX_LEFT_SHARE = 0.25  # of what either of two parts is worth, that is left of both together where they cancel

MEAN_LOSS = {"kind": "mean", "measure": "loss"}
TOGETHER = {"pair": "joint_effect", "trio": "trio_effect"}  # what several parts are worth
ORDER_LOSS = {"shuffle": "all but last", "measure": "loss"}
Interval = tuple[float, float]
Names = tuple[str, ...]


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """Returns what each part is worth, which are needed most, and what the prediction owes to the context."""
    cancelling = list(_cancel(data))
    undone = {
        part: tuple(other for other in claim.subject if other != part)
        for claim in cancelling
        for part in next((only.words for only in claim.because), claim.subject)
    }
    most, relied = list(_needed_most(data, scores, undone)), list(_relied_on(data))
    # Of two parts that cost most, one at its mean and one from another sequence, only the latter is told.
    agree = not relied or any(one.is_shown and set(relied[0].subject) <= set(one.subject) for one in most)
    first = [*most, *relied] if agree else relied
    return [
        *first[:1],
        *cancelling,
        _follows(data),
        *_repairs(data),
        *_stand_in(data),
        _order(data),
        *_of_parts(data, undone),
        *first[1:],
    ]


def _cancel(data: xr.Dataset) -> Iterator[Claim]:
    """Yields parts that only undo each other: worth much while the others are there, and together nothing.

    Of two the one that is undone may be worth nothing by itself, where the other reads what it writes. Which
    of several undoes a part is arbitrary where more than one would: then none is told.
    """
    found: list[tuple[Names, Names, str, str]] = []  # the parts, those that are worth much, where it is
    for dim in ("pair", "trio"):
        ends = [f"{dim}_{place}" for place in ("first", "second", "third") if f"{dim}_{place}" in data.coords]
        for where, *names in zip(*(data[name].values for name in (dim, *ends)), strict=True):
            found += _undo_each_other(data, tuple(map(str, names)), dim, str(where))
    # A part that undoes another one needs no third one for it.
    count = Counter(part for _, undoing, *_ in found for part in undoing)
    for parts, undoing, dim, where in found:
        if all(count[part] == 1 for part in undoing):
            worth = float(last_model(data)[TOGETHER[dim]].sel({dim: where}))
            around = interval_at(data, TOGETHER[dim], **{dim: where})
            only = (Condition("undo", words=undoing),) * (len(undoing) < len(parts))
            yield Claim(
                parts, "cancels", (), worth, around, 0.0, "nats", "shown", "intervention", because=only
            )


def _undo_each_other(
    data: xr.Dataset, parts: Names, dim: str, where: str
) -> Iterator[tuple[Names, Names, str, str]]:
    """Yields parts that are together worth next to nothing, and which of them are worth much one by one.

    Next to nothing is a small part of what each is worth; what is clearly above that of the others is more.
    One that does harm undoes another where both together are worth nothing at all.
    """
    low, high = interval_at(data, TOGETHER[dim], **{dim: where})
    around = max(abs(low), abs(high))
    others = max((nats for part, nats in ranked(data).items() if part not in parts), default=0.0)
    if low > max(MIN_EFFECT_NATS, MAX_LEFT_SHARE * others):
        return
    singles = {part: interval_at(data, "effect", component=part, **MEAN_LOSS) for part in parts}
    least, is_nothing = max(MIN_EFFECT_NATS, around / MAX_LEFT_SHARE), around < MIN_EFFECT_NATS
    undoing = tuple(
        part for part in parts if singles[part][0] > least or (is_nothing and singles[part][1] < -least)
    )
    idle = all(max(map(abs, singles[part])) < MIN_EFFECT_NATS for part in parts if part not in undoing)
    if len(undoing) == len(parts) or (len(parts) == 2 and undoing and idle):
        yield parts, undoing, dim, where


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


def _needed_most(data: xr.Dataset, scores: dict[str, Score], undone: Mapping[str, Names]) -> Iterator[Claim]:
    """Yields the part whose mean costs most, with those that tie; open or excluded if none clearly matters.

    Of parts that only undo each other none is asked, and nothing is told where there are no others.
    """
    effects, score = (
        {part: nats for part, nats in ranked(data).items() if part not in undone},
        scores["largest_effect"],
    )
    if not effects:
        return
    name, value, interval = largest_effect(data)
    if name in undone:
        name = max(effects, key=effects.__getitem__)
        value, interval = effects[name], interval_at(data, "effect", component=name, **MEAN_LOSS)
    clean = Condition("loss", value=float(last_model(data)["clean"].sel(measure="loss")), unit="nats")
    on_scores = (Condition("loss on scores"),) if data.attrs["objective"] != "cross_entropy" else ()
    if (group := _group_needed(data, ranked(data), interval)) is not None:
        yield replace(group, because=(clean, *group.because))
        return
    ends = {part: interval_at(data, "effect", component=part, **MEAN_LOSS) for part in effects}
    ends[name] = interval  # of the largest of them, one effect has one interval
    clear = [part for part, (low, _) in ends.items() if low > 0 and effects[part] > MIN_EFFECT_NATS]
    if matters(value, interval):
        most = {name, *set(effects) & set(tied(data, name, value, interval)) & set(clear)}
        names = tuple(part for part in effects if part in most)  # in the order in which they are computed
        status: Status = "open" if standing(score) == "within" else "shown"
        beside = [clean, *[Condition("within its null")] * (status == "open")]
        beside += [one for one in _harm(effects, ends) if status == "open" and one.words]
        if len(names) > 1:
            least = min(effects[other] for other in names)
            beside.append(Condition("least of them", value=least, unit="nats"))
        rest = [other for other in sorted(effects, key=lambda part: -effects[part]) if other not in names]
        for other in rest[:1]:
            if matters(effects[other], interval_at(data, "effect", component=other, **MEAN_LOSS)):
                beside.append(Condition("next part", value=effects[other], unit="nats", words=(other,)))
        yield Claim(
            names, "is_needed_most", (), value, interval, score.null, "nats", status, "intervention",
            because=tuple(beside),
        )  # fmt: skip
        return
    little = all(high < MIN_EFFECT_NATS for _, high in ends.values())
    if not little and interval[1] < MIN_EFFECT_NATS:  # what is clearly worth nothing; another one may be
        name = max(ends, key=lambda part: ends[part][1])
        value, interval = effects[name], ends[name]
    harm = list(_harm(effects, ends))
    if clear:  # the largest effect is not sure, a smaller one is
        harm.append(Condition("clearly needed", words=tuple(clear)))
    yield Claim(
        (name,), "is_needed_most", (), value, interval, score.null, "nats",
        "excluded" if little else "open", "intervention", because=(clean, *on_scores, *harm),
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
            beside = (
                Condition("group"),
                Condition("one by one", value=one_by_one, unit="nats"),
                # Of equals none is worth most.
                Condition("largest of them", None, effects[most], "nats", (most,) if is_larger else ()),
            )
            claim = Claim(
                names, "is_needed_most", (), float(worth[at]), (low, high), 0.0, "nats", "shown",
                "intervention", because=beside,
            )  # fmt: skip
            # Of groups that are worth as much the smallest is named.
            if best is None or (len(names) < len(best.subject) and high >= (best.value or 0.0)):
                best = claim
    return best


def _of_parts(data: xr.Dataset, undone: Mapping[str, Names]) -> Iterator[Claim]:
    """Yields what each part is worth; of one that does harm less than nothing."""
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


def _repairs(data: xr.Dataset) -> Iterator[Claim]:
    """The part that later parts make up for most."""
    last = last_model(data)
    # What is worth nothing by itself is repaired by nobody: where later parts do harm with it, its cut helps.
    worth = [part for part in map(str, data["part"].values) if _is_worth(data, "direct_effect", part=part)]
    if part := _most(data.sel(part=worth), "self_repair", "part", of="direct_effect"):
        value, direct = (float(last[name].sel(part=part)) for name in ("self_repair", "direct_effect"))
        cut = Condition("cut from the logits only", value=direct, unit="nats")
        yield Claim(
            (part,), "repairs", (), value, interval_at(data, "self_repair", part=part), 0.0, "nats",
            "shown", "intervention", because=(cut,),
        )  # fmt: skip


def _stand_in(data: xr.Dataset) -> Iterator[Claim]:
    """The pair that stands in for each other most."""
    last, single = last_model(data), ranked(data)
    worth = last["joint_effect"].to_series()
    members = {
        pair: (str(data["pair_first"].sel(pair=pair).item()), str(data["pair_second"].sel(pair=pair).item()))
        for pair in worth.index
    }
    stand_in = [
        pair
        for pair, both in members.items()
        if max(single[part] for part in both) <= MAX_ALONE_SHARE * worth[pair]
        and _is_worth(data, "joint_effect", pair=pair)
    ]
    if pair := _most(data.sel(pair=stand_in), "redundancy", "pair", of="joint_effect"):
        together = Condition("worth together", value=float(worth[pair]), unit="nats")
        yield Claim(
            members[pair][:1], "stands_in_for", members[pair][1:], float(last["redundancy"].sel(pair=pair)),
            interval_at(data, "redundancy", pair=pair), 0.0, "nats", "shown", "intervention",
            because=(together,),
        )  # fmt: skip


def _is_worth(data: xr.Dataset, name: str, **where: str) -> bool:
    """Returns whether cutting something clearly costs the last model nats."""
    return interval_at(data, name, **where)[0] > 0


def _most(data: xr.Dataset, name: str, dim: str, *, of: str) -> str | None:
    """Returns where `name` is largest, if it is clearly above 0 and not small next to the effect `of`."""
    last = last_model(data)
    if not last.sizes[dim]:
        return None
    most = last.isel({dim: int(last[name].argmax(dim))})
    if not float(most[name]) > max(MIN_REPAIR_NATS, MIN_REPAIR_SHARE * float(most[of])):
        return None
    label = str(most[dim].values)
    low, _ = interval_at(data, name, **{dim: label})
    return label if low > 0 else None


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
