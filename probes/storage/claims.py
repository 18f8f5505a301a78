"""Claims of storage: which paths hold the bigram, what cancels or works against it, or why none is named."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import Claim, Claims, Condition, Status, Where, decided
from mechmarkov.claims.tile import LIVES, Tile
from mechmarkov.probing.dataset import interval_at, last_model
from mechmarkov.probing.score import Score
from mechmarkov.utils.text import listed

from .game import MIN_GAIN_NATS, ROUNDING_NATS
from .home import (
    MIN_GAIN_SHARE,
    MIN_NAMED_SHARE,
    MIN_NAMED_STORED_SHARE,
    cancelling,
    held_alone,
    homes_of,
    is_changed,
    is_half_stored,
    is_stable,
    is_stored_open,
    largest_holders,
    needs_others_scale,
    opposed,
    positions_changed,
    positions_read,
    rank_90,
    reads_parent,
    weight_of,
)
from .places import held_somewhere, lacking_somewhere
from .unigram_claims import unigram_claims

BIGRAM, UNIGRAM = ("bigram",), ("unigram",)
SIMPLE = ("uniform", "unigram", "bigram")  # laws of which storage tells all there is


ROUNDING = 1e-6  # of a sum of shares, computed from predictions in float32


def claims(data: xr.Dataset, _: dict[str, Score]) -> list[Claim]:
    """Returns where the bigram is held and by how much, or why no path is named."""
    last, homes = last_model(data), homes_of(data)
    gain, empty, full = (float(last[name]) for name in ("gain", "kl_empty", "kl_full"))
    worth = (
        Condition("worth of all paths", value=gain, unit="nats"),
        Condition("from", value=empty, unit="nats"),
        Condition("to", value=full, unit="nats"),
    )
    other = [*_of_another_law(data, last), *unigram_claims(data)]
    if not homes:
        return [*(somewhere(last) or [_no_home(data, last, worth)]), *other]
    share = sum(float(last["net_share"].sel(path=path)) for path in _one_of_each(last, homes))
    share = _without_rounding(share)
    some = Condition("what there is of it", full > MIN_GAIN_SHARE * empty)
    conditions = [
        *worth,
        some,
        *_corrected(last, homes),
        *_alone(data, last, homes[0]),
        *_by_position(last),
        *_rank(data, homes[0]),
    ]
    if (heat := float(last["temperature"])) != 1:
        conditions.insert(0, Condition("held at temperature", value=heat))
    if not is_stable(last):
        conditions.append(Condition("not stable", None, float(last["home_stable"]), "share"))
    if is_stored_open(last):
        share_stored = float(last["stored_share"][0])
        conditions.append(Condition("half is stored", None, share_stored, "share"))
    stores = Claim(
        tuple(homes), "stores", BIGRAM, share, _interval_of(data, last, homes), None, "share", "shown",
        "intervention", because=tuple(conditions),
    )  # fmt: skip
    return [stores, *_others(data, last, some), *_shares(data, last), *other]


def somewhere(last: xr.Dataset) -> list[Claim]:
    """The path that holds the bigram at some places, in a model that has another law at the rest."""
    if _is_elsewhere(last):
        return []
    return [
        Claim((path,), "stores", BIGRAM, share, None, None, "share", "shown", "intervention", where=where)
        for path, share, where in held_somewhere(last, [str(label) for label in last.attrs["labels"]])
    ]


def _is_elsewhere(last: xr.Dataset) -> bool:
    """Returns whether what is right somewhere may come from the context, or from others' scale."""
    from_context = float(last["stored_share"][2]) < MIN_NAMED_STORED_SHARE
    elsewhere = reads_parent(last) and float(last["gain"]) >= MIN_GAIN_NATS
    return needs_others_scale(last) or from_context or elsewhere


def _of_another_law(data: xr.Dataset, last: xr.Dataset) -> Iterator[Claim]:
    """Yields the paths that hold the law that the model predicts like, if it is not the bigram."""
    which = int(last["other_law"])
    if which < 0:
        return
    law = (str(data.attrs["laws"][which]),)
    share = {str(path): float(last["other_share"].sel(path=path)) for path in data["path"].values}
    homes = [path for path in share if bool(last["other_holds"].sel(path=path))]
    if homes:
        homes.sort(key=lambda path: -share[path])
        gain, left = float(last["other_gain"]), float(last["other_left"])
        premises = (
            Condition("worth of all paths", value=gain, unit="nats"),
            Condition("what there is of it", left > MIN_GAIN_SHARE * (gain + left)),
        )
        held = _without_rounding(sum(share[path] for path in homes))
        yield Claim(
            tuple(homes), "stores", law, held, None, None, "share", "shown", "intervention", because=premises
        )
    for path, value in share.items():
        status: Status = "shown" if value > MIN_NAMED_SHARE else "excluded"
        even = 1 / data.sizes["path"]
        yield Claim((path,), "holds_share", law, value, None, even, "share", status, "intervention")


def _is_worth(last: xr.Dataset, path: str) -> bool:
    """Returns whether the model is farther from the bigram without a path than with all."""
    return float(last["kl_without"].sel(path=path)) - float(last["kl_full"]) > MIN_GAIN_NATS


def _corrected(last: xr.Dataset, homes: list[str]) -> Iterator[Condition]:
    """Yields paths that take from what the home writes, and bring the model nearer to the bigram by it."""
    against = [*opposed(last), *(path for group in cancelling(last) if homes[0] in group for path in group)]
    others = tuple(path for path in against if path not in homes and _is_worth(last, path))
    if len(homes) == 1 and others:
        yield Condition("corrected by", words=others)


def _one_of_each(last: xr.Dataset, homes: list[str]) -> list[str]:
    """The homes, of a group that cancels the first only: its net share is that of the group."""
    chosen: dict[int, str] = {}
    for path in homes:
        chosen.setdefault(int(last["cancels"].sel(path=path)), path)
    return list(chosen.values())


def _interval_of(data: xr.Dataset, last: xr.Dataset, homes: list[str]) -> tuple[float, float] | None:
    """The interval of one home's share; of several together none was measured."""
    single = _one_of_each(last, homes)
    if len(single) != 1:
        return None
    low, high = interval_at(data, "net_share", path=single[0])
    return _without_rounding(low), _without_rounding(high)


def _without_rounding(share: float) -> float:
    """Returns 1 for a share that only rounding takes from it."""
    return 1.0 if abs(share - 1) < ROUNDING else share


def _others(data: xr.Dataset, last: xr.Dataset, some: Condition) -> Iterator[Claim]:
    """Groups that cancel, and paths that work against the bigram, of which there may be only some."""
    for group in cancelling(last):
        net = float(last["net_share"].sel(path=group[0]))
        around = interval_at(data, "net_share", path=group[0])
        yield Claim(
            tuple(group), "cancels", BIGRAM, net, around, None, "share", "shown", "intervention",
            because=(some,),
        )  # fmt: skip
    for path in opposed(last):
        value = float(last["share"].sel(path=path))
        around = interval_at(data, "share", path=path)
        nats = float(last["kl_without"].sel(path=path))
        worth = (Condition("corrects", value=nats, unit="nats"),) * _is_worth(last, path)
        yield Claim(
            (path,), "works_against", BIGRAM, -value, (-around[1], -around[0]), None, "share", "shown",
            "intervention", because=(*worth, some),
        )  # fmt: skip


def _shares(data: xr.Dataset, last: xr.Dataset) -> Iterator[Claim]:
    """Yields what each path holds."""
    inside = {path for group in cancelling(last) for path in group}
    for path in map(str, data["path"].values):
        if path in inside:
            continue
        value, around = float(last["net_share"].sel(path=path)), interval_at(data, "net_share", path=path)
        status, even = decided(around, MIN_NAMED_SHARE, value), 1 / data.sizes["path"]
        yield Claim((path,), "holds_share", BIGRAM, value, around, even, "share", status, "intervention")


def _alone(data: xr.Dataset, last: xr.Dataset, home: str) -> Iterator[Condition]:
    """Yields what is left with the home only, and without it."""
    if data.sizes["path"] < 2:
        return
    yield Condition("with it only", value=float(last["kl_only"].sel(path=home)), unit="nats", words=(home,))
    yield Condition("without it", value=float(last["kl_without"].sel(path=home)), unit="nats", words=(home,))
    if np.isfinite(float(last["home_rescaled"])):
        yield Condition("at the whole model's norm scale")


def _by_position(last: xr.Dataset) -> Iterator[Condition]:
    """At how many positions predictions follow the parent, where that is not at all."""
    read = positions_read(last)
    if not read.all():
        yield Condition("positions", value=float(len(read)))
        yield Condition("positions that follow the parent", value=float(read.sum()))


def _rank(data: xr.Dataset, home: str) -> Iterator[Condition]:
    """The rank of the home's weight that keeps 90 %; rank 0 keeps what is not in this weight."""
    if rank := rank_90(data, home):
        weight = weight_of(home)
        yield Condition("rank that keeps 90 %", value=float(rank), words=(weight,))
        yield Condition("full rank", value=float(data["full_rank"].sel(weight=weight)), words=(weight,))


@dataclass(frozen=True)
class _Reason:
    """A reason that no path is named for, and what a claim of it says."""

    name: str
    status: Status = "excluded"
    paths: tuple[str, ...] = ()
    share: float | None = None
    interval: tuple[float, float] | None = None


def _no_home(data: xr.Dataset, last: xr.Dataset, worth: tuple[Condition, ...]) -> Claim:
    """Returns why no path is named."""
    why = _reason(data, last)
    premises = [*worth]
    if why.name == "others undo it":
        places = lacking_somewhere(last, [str(label) for label in last.attrs["labels"]])
        premises += [Condition("undone after", words=places.states)] * bool(places.states)
        premises += [Condition("undone at", words=tuple(map(str, places.positions)))] * bool(places.positions)
    for path in why.paths[:1]:
        nats = float(last["kl_only"].sel(path=path))
        premises.append(Condition("with it only", value=nats, unit="nats", words=(path,)))
    if not reads_parent(last):
        changed = positions_changed(last)
        premises.append(Condition("positions", value=float(len(changed))))
        premises.append(Condition("positions that change with the parent", value=float(changed.sum())))
    return Claim(
        why.paths, "stores", BIGRAM, why.share, why.interval, None, "share" if why.share is not None else "",
        why.status, "intervention", because=(Condition(why.name), *premises),
    )  # fmt: skip


def _reason(data: xr.Dataset, last: xr.Dataset) -> _Reason:
    gain = float(last["gain"])
    share, low, high = (min(1.0, max(0.0, float(value))) for value in last["stored_share"])
    if gain < MIN_GAIN_NATS:
        if float(last["kl_empty"]) < ROUNDING:
            return _Reason("the mean is it")
        if is_too_little(last):
            return _Reason("too little to share", "open")
        if held_alone(last):
            return _Reason("others undo it", paths=tuple(held_alone(last)))
        return _Reason("the paths lead away" if gain < -ROUNDING_NATS else "nothing to share")
    if needs_others_scale(last):
        return _Reason("only at another scale", paths=tuple(largest_holders(data)))
    if reads_parent(last):
        if is_stored_open(last):
            return _Reason("stored or from the context", "open", (), share, (low, high))
        if is_half_stored(last) or low > MIN_GAIN_SHARE:  # some of it is
            return _Reason("some from the context", "open", (), share, (low, high))
        return _Reason("from the context", "excluded", (), share, (low, high))
    if is_changed(last):
        away = float(last["parent_gain"]) < 0
        return _Reason("the parent leads away" if away else "the parent hardly leads there")
    return _Reason("not by the parent")


def why_no_home(data: xr.Dataset) -> str:
    """Returns why no path is named at the last step, as scores say it."""
    last = last_model(data)
    why, surely = _reason(data, last), float(last["stored_share"][2]) < MIN_GAIN_SHARE
    whole = "the bigram" if surely else "most of the bigram"
    changes = "setting the parent changes predictions, but {} toward its row: no path holds the bigram"
    reasons = {
        "only at another scale": "{} would hold it at the scale that other paths give the norm",
        "stored or from the context": "whether a path holds the bigram or it comes from the context is open",
        "some from the context": "some of the bigram comes from the context: which path holds the rest is "
        "not told",
        "from the context": f"{whole} comes from the transitions of the context: no path holds it",
        "the parent leads away": changes.format("not"),
        "the parent hardly leads there": changes.format("hardly"),
        "not by the parent": "what the paths are worth does not come from the parent: no path holds the "
        "bigram",
    }
    if why.name in reasons:
        return reasons[why.name].format(listed(why.paths))
    if why.name == "the mean is it":
        return "the mean prediction is the bigram: no path needs to hold it"
    worth = f"the paths together are worth {float(last['gain']):.3g} nats, below {MIN_GAIN_NATS}"
    much = "too little" if why.name == "too little to share" else "nothing"
    return f"{worth}: there is {much} to share"


def is_too_little(last: xr.Dataset) -> bool:
    """Returns whether under 0.01 nats are held, which are all that there is or a good part of it."""
    gain, empty = float(last["gain"]), float(last["kl_empty"])
    return (gain >= -MIN_GAIN_NATS and empty < MIN_GAIN_NATS) or gain > MIN_GAIN_SHARE * empty


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Returns where it lives: the paths that hold the bigram, or why none does."""
    everything = Claims(tuple(claims))
    ours, behaviour = everything.where(probe="storage"), everything.where(probe="behaviour")
    stores = ours.first("stores", object="bigram")
    if stores is None:
        return []
    # Of a model of another law, what it needs tells more than where the bigram is stored, or that it is not.
    closest = behaviour.first("is_closest_to")
    like = behaviour.first("imitates", object="bigram", status="shown")
    names = () if closest is None or not closest.is_shown else closest.object
    has_bigram = like is not None and stores.is_shown
    is_another = bool(names) and not {*names} & {*SIMPLE} and not has_bigram
    best = behaviour.first("reaches")
    is_part = best is not None and "bigram" not in best.object and "bigram" in names and like is None
    other = next(
        (one for one in ours.where("stores") if one.object != BIGRAM and one.object[0] in names), None
    )
    # Where it is right at some places by coincidence, behaviour does not tell them.
    by_chance = stores.where != Where() and closest is not None and behaviour.first("fails_at") is None
    told, rank = stores, 1 if stores.is_shown else 4
    elsewhere = ("the paths lead away", "nothing to share", "not by the parent")
    holds_nothing = any(stores.condition(why) for why in elsewhere)
    is_needed = everything.first("is_needed_most", status="shown") is not None
    if is_another or is_part or (holds_nothing and is_needed):  # some part is needed for something else
        rank = 6
    rank = 8 if by_chance else rank
    if is_another and other is not None:
        # Of a law of several tokens the parts that bring them are needed as much as the one that writes it.
        most = everything.first("is_needed_most", status="shown", probe="ablation")
        told, rank = other, 1 if most is None or set(most.subject) <= set(other.subject) else 6
    unigram = ours.first("stores", object="unigram", status="shown")
    if unigram is not None and tuple(names) == UNIGRAM and not stores.is_shown:
        told, rank = unigram, 1
    shares = [claim for claim in ours.where("holds_share") if claim.object == told.object]
    bars = {claim.subject[0]: claim.value for claim in shares if claim.value is not None}
    picture = "share" if told is stores else "law share"
    together = next(
        (
            one
            for one in ours.where("cancels")
            if one.object == told.object and {*told.subject} & {*one.subject}
        ),
        None,
    )  # of parts that have no share of their own
    return [Tile(LIVES, (told,), (), told, bars, picture, together, rank=rank)]
