"""Parts together: those that only undo each other, stand in for each other, or are repaired by later ones."""

from collections import Counter
from collections.abc import Iterator

import xarray as xr

from mechmarkov.claims.claim import Claim, Condition
from mechmarkov.probing.dataset import interval_at, last_model

from .components import ranked
from .needed import MEAN_LOSS, MIN_EFFECT_NATS, Names

# What later parts change is named where it is more than this, and more than this share of the whole.
MIN_REPAIR_NATS = 0.01
MIN_REPAIR_SHARE = 0.25

# Each of two that stand in for each other costs at most this share of both. Of two that merely add it is
# more: KL is convex in the logits, so that either half of a logit costs a quarter of the whole.
MAX_ALONE_SHARE = 0.1

MAX_LEFT_SHARE = 0.25  # of what either of two parts is worth, that is left of both together where they cancel
TOGETHER = {"pair": "joint_effect", "trio": "trio_effect"}  # what several parts are worth


def cancel(data: xr.Dataset) -> Iterator[Claim]:
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


def repairs(data: xr.Dataset) -> Iterator[Claim]:
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


def stand_in(data: xr.Dataset) -> Iterator[Claim]:
    """The pair that stands in for each other most."""
    last, single = last_model(data), ranked(data)
    worth = last["joint_effect"].to_series()
    members = {
        pair: (str(data["pair_first"].sel(pair=pair).item()), str(data["pair_second"].sel(pair=pair).item()))
        for pair in worth.index
    }
    instead = [
        pair
        for pair, both in members.items()
        if max(single[part] for part in both) <= MAX_ALONE_SHARE * worth[pair]
        and _is_worth(data, "joint_effect", pair=pair)
    ]
    if pair := _most(data.sel(pair=instead), "redundancy", "pair", of="joint_effect"):
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
