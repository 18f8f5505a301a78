"""Claims of where a law is imitated and where it fails: after states, at positions, or after some at some."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from mechmarkov.claims.claim import MODEL, Claim, Condition, Where
from mechmarkov.probing.dataset import (
    IMITATION_NATS,
    NORMAL_95,
    imitates,
    is_nearest,
    last_model,
    normal_interval,
)
from mechmarkov.probing.names import LawName
from mechmarkov.theory.kernel import kl

from .contexts import FAR_NATS, MOST, ROUNDING, are_apart, in_pairs, law_there

FEW = 0.1  # of the positions: a law that fails in so few is named without them
WRONG = 0.5  # of what the unigram is away: where it holds in few places, it is that far away elsewhere
UNCLEAR = 0.1  # of the predictions at most, then, are neither right nor wrong

_SUBJECT = (MODEL,)


def nearest(data: xr.Dataset) -> tuple[str, list[str]]:
    """Returns the nearest predictor at the last step, the simplest of equals, and those it equals."""
    closest = data["predictor"].values[is_nearest(last_model(data)["kl"])].tolist()
    best, simple = data.attrs.get("best"), ("uniform", data.attrs.get("unigram"), data.attrs.get("bigram"))
    if best in closest and closest[0] not in simple:  # the source's own law, which a law of steps may be
        closest = [best, *(name for name in closest if name != best)]
    return closest[0], closest[1:]


def somewhere(data: xr.Dataset, last: xr.Dataset) -> Iterator[Claim]:
    """Yields where the best or nearest law is imitated and where it clearly is not, by state or position."""
    closest, equals = nearest(data)
    best = str(data.attrs.get("best", closest))
    # Of a model that is another law everywhere, the places where that is the best law say nothing.
    is_another = best not in (closest, *equals) and imitates(last["kl"], last["kl_error"]) is True
    names = dict.fromkeys([closest] if is_another else [best, closest])
    labels = tuple(str(label) for label in data.attrs["labels"])
    positions = tuple(int(at) for at in data["position"].values)
    simple = [name for name in ("uniform", data.attrs["unigram"]) if name in data["predictor"].values]
    axes: dict[str, tuple[Any, ...]] = {"states": labels, "positions": positions}
    if _tells_nothing(last["implied"].values):  # then it has no law after some states: it has one row for all
        del axes["states"]
    for name in names:
        if (cells := _in_cells(last, name, labels, positions)) is not None:
            yield cells
            return
        along = [_along(axis, data, last, name, places, simple) for axis, places in axes.items()]
        if clear := [one for one in along if one is not None]:  # by what tells more of where it holds
            yield from max(clear, key=lambda one: one[0])[1]
            return
    for name in names:
        if in_two := list(in_pairs(last, name, labels, simple, WRONG * float(data["gap"]))):
            yield from in_two
            return


def _along(
    axis: str, data: xr.Dataset, last: xr.Dataset, name: str, places: tuple[Any, ...], simple: list[str]
) -> tuple[float, list[Claim]] | None:
    """Returns in which share a law holds along one axis, and where it fails and holds; None if unclear."""
    closest, equals = nearest(data)
    variable = {"states": "kl_after", "positions": "kl_at"}[axis]
    value, error = (last[each].sel(predictor=name).values for each in (variable, f"{variable}_error"))
    with np.errstate(invalid="ignore"):
        fails = value - NORMAL_95 * error > FAR_NATS
        holds = value + NORMAL_95 * error < IMITATION_NATS
        nearer = last[variable].sel(predictor=closest).values < IMITATION_NATS
        by_chance = (last[variable].sel(predictor=simple) < IMITATION_NATS).any("predictor").values
    weight, degrees = np.ones(len(places)), len(data.attrs["labels"]) - 1 if axis == "states" else np.inf
    if axis == "states":
        holds &= ~_has_one_row(last["varies_after"].sel(predictor=name).values)
        weight = last["share_after"].values
    known, part = np.isfinite(value), weight / weight.sum()
    held = float(part[holds].sum() / part[known].sum())
    few = held < MOST - ROUNDING
    if not fails.any() or not holds.any():
        return None
    is_other = name == data.attrs.get("best") and name not in (closest, *equals)
    if is_other and nearer[holds].all() and not data.attrs.get("determined"):  # else laws of steps are equal
        return None  # where it holds it is the nearest law too: these places do not show it
    if few:
        shows = holds & ~by_chance
        if axis == "positions" and not np.delete(shows, _at_first(name, places)).any():
            return None  # where its token is the first one, what reads that reads it too
        away = (value * part)[fails].sum() / part[fails].sum()
        clear = part[holds | fails].sum() >= (1 - UNCLEAR) * part[known].sum()
        if not (shows.any() and clear and away >= WRONG * float(data["gap"])):
            return None
        if not are_apart(value, holds, degrees):
            return None
        holds = shows
    elif axis == "states" and name in simple and not are_apart(value, holds, degrees):
        return None  # rows of noise are near these by more and less
    bad, good = (Where(**{axis: chosen(places, which)}) for which in (fails, holds))
    worst, most = (int(np.where(which, value, -np.inf).argmax()) for which in (fails, holds))
    share = float(fails.sum() / known.sum())
    ends = [normal_interval(float(value[i]), float(error[i]), least=0.0) for i in (worst, most)]
    is_open = part[known & ~fails & ~holds].sum() > UNCLEAR * part[known].sum()
    only = tuple(map(str, chosen(places, holds))) if few or is_open else ()
    fails_at = Claim(
        _SUBJECT, "fails_at", (name,), float(value[worst]), ends[0], unit="nats", where=bad,
        because=(
            Condition("near elsewhere", few or None, float(value[most]), "nats", only),
            Condition("share of places", axis == "states" or share > FEW, share, "share"),
            *law_there(last, variable, fails),
        ),
    )  # fmt: skip
    like = Claim(_SUBJECT, "imitates", (name,), float(value[most]), ends[1], unit="nats", where=good)
    return held, [fails_at, like]


def _in_cells(
    last: xr.Dataset, name: str, labels: tuple[str, ...], positions: tuple[int, ...]
) -> Claim | None:
    """Returns where a law fails if that is only after some states at some positions; otherwise None."""
    if "kl_cell" not in last:
        return None
    value, error = (
        last[each].sel(predictor=name).transpose("state_from", "position").values
        for each in ("kl_cell", "kl_cell_error")
    )
    after = last["share_after"].values
    weight = np.broadcast_to(after[:, None], value.shape) / value.size * len(value)
    known = np.isfinite(value)
    with np.errstate(invalid="ignore"):
        fails = value - NORMAL_95 * error > FAR_NATS
        holds = value + NORMAL_95 * error < IMITATION_NATS
    states, at = np.asarray(fails.any(1)), np.asarray(fails.any(0))
    inside = np.outer(states, at)
    is_part = fails.any() and (known & ~inside)[states].any() and (known & ~inside)[:, at].any()
    unclear = float(weight[~(fails | holds)].sum())
    if after[states].sum() > MOST * after.sum():
        return None  # after most states: the positions tell it in fewer words
    if not is_part or (holds & inside).any() or unclear > UNCLEAR or weight[holds].sum() < MOST:
        return None
    worst = np.unravel_index(np.where(fails, value, -np.inf).argmax(), value.shape)
    share = float(weight[fails].sum())
    most = float(value[holds].max())
    return Claim(
        _SUBJECT, "fails_at", (name,), float(value[worst]),
        normal_interval(float(value[worst]), float(error[worst]), least=0.0), unit="nats",
        where=Where(states=chosen(labels, states), positions=chosen(positions, at)),
        because=(
            Condition("near elsewhere", None, most, "nats"),
            Condition("share of places", share > FEW, share, "share"),
        ),
    )  # fmt: skip


def _at_first(name: str, positions: tuple[int, ...]) -> list[int]:
    """Returns the place of the position at which a law reads the first token of a sequence."""
    law = LawName.read(name)
    back = (law.number or 1) if law.base in ("step", "lag") else 1
    return [i for i, at in enumerate(positions) if at == back - 1]


def _has_one_row(varies: Float[np.ndarray, " state_from"]) -> Bool[np.ndarray, " state_from"]:
    """Returns after which states a law that reads more tokens reads none, so that one row is it there."""
    return (varies < ROUNDING) & (np.nanmax(varies) > IMITATION_NATS)


def _tells_nothing(rows: Float[np.ndarray, "state_from state_to"]) -> bool:
    """Returns whether mean predictions are the same after each state."""
    known = rows[np.isfinite(rows).all(-1)]
    return bool(kl(known, known.mean(0)).max(initial=0.0) < IMITATION_NATS)


def chosen(places: tuple[Any, ...], which: Bool[np.ndarray, " place"]) -> tuple[Any, ...]:
    """Returns some of the names of places."""
    return tuple(places[i] for i in np.flatnonzero(which))
