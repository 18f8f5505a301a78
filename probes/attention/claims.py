"""Claims of where heads look: which token gets most of a head's attention, or that none stands out."""

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr
from scipy.special import entr

from mechmarkov.claims.claim import MODEL, Claim, Claims, Condition, Where
from mechmarkov.claims.tile import LIVES, Tile
from mechmarkov.probing.dataset import best_heads, head_name, last_model
from mechmarkov.probing.names import token_names
from mechmarkov.probing.score import Score, standing

from .by_token import by_token
from .reading import (
    CLASS_SHARE,
    FEW_AWAY,
    MAX_UNREAD,
    MIN_AWAY,
    MIN_PLACES,
    MIN_REACH,
    MIN_READ,
    MOST_REACH,
    best_lag,
    is_flat,
    is_flat_everywhere,
    is_looked_at,
    parent_score,
    real_tokens,
    uniform_share,
)

Head = dict[str, int]
MIN_LATER = 2  # queries behind a position that show that a head looks there, not one or two tokens back


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """Returns what each head looks at; of a state space, by the share of a position's effective weight."""
    last = last_model(data)
    premises: tuple[Condition, ...] = ()
    if not data.attrs["is_linear"]:
        premises = (Condition("effective weights", value=float(data.attrs["convolved"])),)
        if data.attrs["convolved"] > 1:  # what stands at a position need not be its token: none is the parent
            last = last.assign_attrs(one_parent=0)
    known = real_tokens(last).stop - real_tokens(last).start
    if known == 1:
        only = (Condition("one token to attend to"), *premises)
        return [Claim((MODEL,), "attends_evenly", status="does not apply", because=only)]
    at_extra = list(_at_extra(last, premises))
    spread = float(last["spread"].max())
    flat = is_flat(last)
    evenly = Claim(
        (MODEL,), "attends_evenly", (), spread, null=uniform_share(last), unit="probability",
        status="shown" if flat else "excluded",
        because=(
            Condition("tokens", value=known),
            Condition("at every prediction", is_flat_everywhere(last)),
            *premises,
        ),
    )  # fmt: skip
    if flat:
        return [*at_extra, evenly]
    by_place = (
        _at_position(last, premises),
        _at_some_positions(last, premises),  # of which a mean over all would be what is true nowhere
        _at_lags(last, scores, premises),
        _at_first(last, premises),
    )
    read: list[Claim] = []
    for asked in by_place:
        named = {claim.subject for claim in read}  # what a head reads is told once
        read += [claim for claim in asked if claim.subject not in named]
    read = read or list(_lag_classes(last, known, premises)) or list(by_token(last, _not_by_position(last)))
    reads = [*at_extra, *read]
    told = list(reads or _none_stands_out(data, last, known, premises))
    return [*told, evenly, *_spread(last, {claim.subject[0] for claim in told}, premises)]


def _heads(last: xr.Dataset) -> list[Head]:
    """The heads that have attention weights."""
    has = last["lag_mass"].notnull().any("lag").transpose("layer", "head").values
    return [{"layer": int(layer), "head": int(head)} for layer, head in np.argwhere(has)]


def _not_by_position(last: xr.Dataset) -> list[Head]:
    """Returns the heads of which positions do not tell more than tokens: a query's own token is a key too."""
    by_position, by_pair = last["position_share"], last["token_pair_share"]
    return [head for head in _heads(last) if not float(by_position.isel(head)) > float(by_pair.isel(head))]


def _names(last: xr.Dataset, lag: int) -> tuple[str, ...]:
    source = int(last.attrs["source_lag"]) if last.attrs["one_parent"] else 0
    return token_names(lag, int(last.attrs["parent_lag"]), source)


def _at_extra(last: xr.Dataset, premises: tuple[Condition, ...]) -> Iterator[Claim]:
    """Heads that look at a token that is not a state, where there is one."""
    if not (last.attrs["parent_lag"] or last.attrs["begins"]):
        return
    extra = "query token" if last.attrs["parent_lag"] else "beginning-of-sequence token"
    uniform = float(last["uniform_mass"].sel(lag=0))
    for head in _heads(last):
        mass = float(last["lag_mass"].sel(lag=0).isel(head))
        if is_looked_at(mass, uniform):
            yield Claim(
                (head_name(head),), "attends_to", (extra,), mass, None, uniform, "probability",
                because=premises,
            )  # fmt: skip


def _at_lags(last: xr.Dataset, scores: dict[str, Score], premises: tuple[Condition, ...]) -> Iterator[Claim]:
    """Heads that look at one lag."""
    over_all = (last["lag_mass"] * last["reach"]).sel(lag=slice(1, None))
    if real_tokens(last).stop - real_tokens(last).start == 2:  # the first reads one token whatever it does
        masses, even = (last[name].sel(lag=slice(1, None)) for name in ("lag_mass", "uniform_mass"))
        over_all = over_all.where(is_looked_at(masses, even), 0.0)
    parent = scores["parent_score"]
    for head in _heads(last):
        lag = int(over_all.isel(head).idxmax("lag"))
        mass, reach = float(last["lag_mass"].isel(head).sel(lag=lag)), float(last["reach"].sel(lag=lag))
        uniform = float(last["uniform_mass"].sel(lag=lag))
        if reach < MIN_REACH or not is_looked_at(mass, uniform):
            continue
        at_parent = lag == last.attrs["source_lag"]
        conditions = [Condition("effective tokens", value=float(last["effective_tokens"].isel(head)))]
        if last.attrs["one_parent"] and not at_parent:
            determined = last.attrs.get("determined")
            conditions.append(Condition("any token tells the next" if determined else "not the parent"))
        if reach < MOST_REACH:
            conditions.append(Condition("reach", value=reach, unit="share"))
        within = at_parent and parent.value == mass and standing(parent) == "within"
        if within:
            conditions.append(Condition("within its null"))
        yield Claim(
            (head_name(head),), "attends_to", _names(last, lag), mass, None, uniform, "probability",
            "open" if within else "shown", because=(*conditions, *premises),
        )  # fmt: skip


def _at_first(last: xr.Dataset, premises: tuple[Condition, ...]) -> Iterator[Claim]:
    """Heads that look at the first token."""
    uniform = float(last.attrs["uniform_first"])
    for head in _heads(last):
        mass = float(last["first_token"].isel(head))
        if is_looked_at(mass, uniform):
            yield Claim(
                (head_name(head),), "attends_to", ("first token",), mass, None, uniform, "probability",
                because=premises,
            )  # fmt: skip


def _at_position(last: xr.Dataset, premises: tuple[Condition, ...]) -> Iterator[Claim]:
    """Yields heads that look at the token at one position, from there on, in the patterns that are kept."""
    if "example" not in last or last.attrs["begins"] or last.attrs["parent_lag"]:
        return
    pattern = last["example"].mean("sequence")
    first_shown = int(last.attrs["real_tokens"]) - pattern.sizes["key_shown"]
    for head in _heads(last):
        mass = pattern.isel(head).transpose("query", "key_shown").values
        key = int(mass[-1].argmax())
        # A query that is at the position itself, or next to it, reads it by its lag too.
        later = mass[key + MIN_LATER :, key]
        at = first_shown + key
        if not at or len(later) < MIN_LATER:
            continue
        seen = np.arange(at + MIN_LATER, first_shown + len(mass)) + 1  # how many tokens each of these sees
        uniform = float((1 / seen).mean())
        if is_looked_at(float(later.mean()), uniform):
            where = Condition("at position", value=float(at))
            yield Claim(
                (head_name(head),), "attends_to", ("one position",), float(later.mean()), None, uniform,
                "probability", because=(where, *premises),
            )  # fmt: skip


def _at_some_positions(last: xr.Dataset, premises: tuple[Condition, ...]) -> Iterator[Claim]:
    """Heads that look at one lag at some positions, and clearly not at the others."""
    uniform = last["near_uniform"].values
    for head in _heads(last):
        for lag in map(int, last["near_lag"].values):
            mass = last["near_mass"].sel(near_lag=lag).isel(head).values
            telling = 1 / uniform > lag + 1  # at earlier positions little else is there to read
            way = np.where(telling, (mass - uniform) / (1 - uniform).clip(1e-9), mass)
            reads = way > MIN_READ
            away = (~reads & telling).sum()
            few = (reads & telling).sum() < MIN_PLACES or away < max(MIN_AWAY, FEW_AWAY * telling.sum())
            if few or (way[telling & ~reads] > MAX_UNREAD).any():
                continue
            where = Where(positions=tuple(map(int, last["position"].values[reads])))
            at_parent = last.attrs["one_parent"] and lag == last.attrs["source_lag"]
            other = (Condition("not the parent"),) * (bool(last.attrs["one_parent"]) and not at_parent)
            yield Claim(
                (head_name(head),), "attends_to", _names(last, lag), float(mass[reads].mean()), None,
                float(uniform[reads].mean()), "probability", where=where, because=(*other, *premises),
            )  # fmt: skip


def _lag_classes(last: xr.Dataset, known: int, premises: tuple[Condition, ...]) -> Iterator[Claim]:
    """The first head that looks at at most half of the lag classes, and all over these."""
    n_classes = last.sizes.get("modulo", 0)
    for head in _heads(last) if n_classes else ():
        one = last.isel(head)
        order = np.argsort(-one["lag_class"].values, kind="stable")
        share = one["lag_class"].values[order].cumsum()
        chosen = order[: int((share < CLASS_SHARE).sum()) + 1]
        looked_at = np.exp(entr(one["last_mass"].values).sum())
        if len(chosen) > n_classes / 2 or looked_at < len(chosen) * known / n_classes / 2:
            continue
        classes = tuple(str(int(m)) for m in sorted(one["modulo"].values[chosen]))
        modulo = Condition("modulo", value=n_classes)
        yield Claim(
            (head_name(head),), "attends_by", ("lag class", *classes), float(share[len(chosen) - 1]),
            None, len(chosen) / n_classes, "probability", because=(modulo, *premises),
        )  # fmt: skip
        return


def _none_stands_out(
    data: xr.Dataset, last: xr.Dataset, known: int, premises: tuple[Condition, ...]
) -> Iterator[Claim]:
    """Yields what the most attended lag and the parent get, where no head settles on one."""
    lag = best_lag(data)
    mass = last["lag_mass"].sel(lag=lag)
    places = {lag: best_heads(mass)}
    if last.attrs["one_parent"] and not last.attrs.get("determined"):
        places |= {int(last.attrs["source_lag"]): best_heads(parent_score(last))}
    for at, head in places.items():
        value = last["lag_mass"].reindex(lag=[at], fill_value=0.0).isel(lag=0, drop=True).isel(head)
        uniform = float(last["uniform_mass"].reindex(lag=[at], fill_value=0.0).isel(lag=0, drop=True))
        tokens = Condition("effective tokens", value=float(last["effective_tokens"].isel(head)))
        yield Claim(
            (head_name(head),), "attends_to", _names(last, at), float(value), None, uniform, "probability",
            "excluded", because=(tokens, Condition("tokens", value=known), *premises),
        )  # fmt: skip


def _spread(last: xr.Dataset, told: set[str], premises: tuple[Condition, ...]) -> Iterator[Claim]:
    """Yields the token that each other head attends to most, which is not what it attends to by and large."""
    over_all = (last["lag_mass"] * last["reach"]).sel(lag=slice(1, None))
    for head in _heads(last):
        if head_name(head) not in told:
            lag = int(over_all.isel(head).idxmax("lag"))
            mass, uniform = last["lag_mass"].isel(head).sel(lag=lag), last["uniform_mass"].sel(lag=lag)
            tokens = Condition("effective tokens", value=float(last["effective_tokens"].isel(head)))
            yield Claim(
                (head_name(head),), "attends_to", _names(last, lag), float(mass), None, float(uniform),
                "probability", "excluded", because=(Condition("of one head"), tokens, *premises),
            )  # fmt: skip


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Returns where it lives, if no other probe tells: the head that reads the parent."""
    reads = Claims(tuple(claims)).where("attends_to", object="parent", status="shown", probe="attention")
    first = reads.everywhere() or reads
    return [Tile(LIVES, first[:1], (), first[0], rank=8)] if first else []
