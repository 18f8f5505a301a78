"""Where the bigram is stored: which path holds it, how much of it, and in what rank."""

import numpy as np
import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import interval_at, last_model, score_with_null
from mechmarkov.probing.preconditions import why_no_bigram
from mechmarkov.probing.score import Score
from mechmarkov.utils.text import format_share, listed

from . import figures, measure
from .game import MIN_GAIN_NATS, ROUNDING_NATS
from .home import (
    MIN_GAIN_SHARE,
    cancelling,
    held_alone,
    homes_of,
    is_changed,
    is_half_stored,
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


def applies(subject: Subject) -> str | None:
    """Only where one process is behind all sequences, and neighbours depend on each other."""
    return why_no_bigram(subject.source)


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Home, shares, and the rank that the home's weight needs."""
    last, homes = last_model(data), homes_of(data)
    nats = float(last["gain"])
    gain = score_with_null(lambda d: d["gain"], data, null, "nats", interval=interval_at(data, "gain"))
    if data.attrs["objective"] != "cross_entropy":
        # Random scores below zero are read as impossible, at 28 nats each: their gains tell nothing.
        kind = "paths that say nothing of the state"
        gain = Score(nats, "nats", 0.0, interval_at(data, "gain"), kind)
    parent_gain = Score(float(last["parent_gain"]), "nats", 0.0, null_kind="a model that ignores the parent")
    stored_gain = Score(float(last["stored_gain"]), "nats", 0.0, null_kind="a model that counts transitions")
    found = {"bigram_home": Score(" + ".join(homes) or "none", ""), "gain": gain}
    found |= {"parent_gain": parent_gain, "stored_gain": stored_gain}
    if not homes:
        return found | {"rank_90": Score(None, "rank", reason=_why_no_home(data))}
    for path in data["path"].values:
        share, interval = float(last["net_share"].sel(path=path)), interval_at(data, "net_share", path=path)
        found[f"share_{path}"] = Score(share, "share", 1 / data.sizes["path"], interval, "an even split")
    for group in cancelling(last):
        net = float(last["net_share"].sel(path=group[0]))
        why = f"{_sum_of(last, group)} cancel; together they hold {net:.2f}"
        found |= {f"share_{path}": Score(None, "share", reason=why) for path in group}
    weight, rank = weight_of(homes[0]), rank_90(data, homes[0])
    if rank is None:
        why = f"{weight} is not trained, or no rank of it keeps 90 % of the bigram part"
        return found | {"rank_90": Score(None, "rank", reason=why)}
    if rank == 0:
        why = f"90 % of the bigram part is left with {weight} at rank 0: it is in no rank of this weight"
        return found | {"rank_90": Score(None, "rank", reason=why)}
    full = float(data["full_rank"].sel(weight=weight))
    return found | {"rank_90": Score(rank, "rank", full, null_kind=f"full rank of {weight}")}


def _why_no_home(data: xr.Dataset) -> str:
    """Why no path is named at the last step."""
    last = last_model(data)
    nats = float(last["gain"])
    if nats < MIN_GAIN_NATS:
        worth = f"the paths together are worth {nats:.3g} nats, below {MIN_GAIN_NATS}"
        return f"{worth}: there is {'too little' if _is_too_little(last) else 'nothing'} to share"
    if needs_others_scale(last):
        return f"{listed(largest_holders(data))} would hold it at the scale that other paths give the norm"
    if reads_parent(last):
        if is_stored_open(last):
            return "whether a path holds the bigram or it comes from the context is open"
        if is_half_stored(last):
            return "some of the bigram comes from the context: which path holds the rest is not told"
        return (
            f"{_from_context(last, 'the bigram')} comes from the transitions of the context: no path holds it"
        )
    if is_changed(last):
        toward = "not toward" if float(last["parent_gain"]) < 0 else "hardly toward"
        return f"setting the parent changes predictions, but {toward} its row: no path holds the bigram"
    return "what the paths are worth does not come from the parent: no path holds the bigram"


def _is_too_little(last: xr.Dataset) -> bool:
    """Whether under 0.01 nats are held, which are all that there is or a good part of it."""
    gain, empty = float(last["gain"]), float(last["kl_empty"])
    return (gain >= -MIN_GAIN_NATS and empty < MIN_GAIN_NATS) or gain > MIN_GAIN_SHARE * empty


def _sum_of(last: xr.Dataset, paths: list[str]) -> str:
    """Paths with their signed shares, "L0H0 (+5.1) and L0H1 (-4.9)"."""
    return listed([f"{path} ({float(last['share'].sel(path=path)):+.2f})" for path in paths])


def verdict(data: xr.Dataset) -> str:
    """Who holds the bigram, what cancels, and how near the model is."""
    last = last_model(data)
    gain, empty, full = (float(last[name]) for name in ("gain", "kl_empty", "kl_full"))
    homes = homes_of(data)
    if gain < MIN_GAIN_NATS:
        return _nothing_to_share(last)
    nearer = f"All paths together bring the model from {empty:.3g} to {full:.3g} nats from it."
    if needs_others_scale(last):
        holders = largest_holders(data)
        at_scale, own = float(last["home_only"]), float(last["home_rescaled"])
        return (
            f"No path holds the bigram by itself. {listed(holders)} alone would be {at_scale:.3g} nats from "
            "it at the final norm's scale in the whole model, which other paths set. With these really at "
            f"their mean it is {own:.3g}. {nearer}"
        )
    if not homes:
        if reads_parent(last):
            return f"{_stored_share_in_words(last)} {nearer} {_stored_in_words(last)}"
        return f"No path holds the bigram. {nearer} {_parent_in_words(last)}"
    if full > 0.5 * empty:
        said = [f"What there is of the bigram is in {_held_by(last, homes)}."]
    else:
        said = [f"{_held_by(last, homes)} hold{'s' * (len(homes) == 1)} the bigram."]
    for group in cancelling(last):
        net = float(last["net_share"].sel(path=group[0]))
        said.append(f"{_sum_of(last, group)} cancel: together they hold {net:.2f}.")
    if against := opposed(last):
        said.append(f"{_sum_of(last, against)} work{'s' * (len(against) == 1)} against it.")
    said.append(nearer)
    if data.sizes["path"] > 1:
        path = homes[0]
        only, without = (float(last[name].sel(path=path)) for name in ("kl_only", "kl_without"))
        scale = ", at the whole model's norm scale" if np.isfinite(float(last["home_rescaled"])) else ""
        said.append(f"With {path} alone it is {only:.3g} nats away, without {path} {without:.3g}{scale}.")
        best = str(data["path"].values[int(last["kl_only"].argmin("path"))])
        if best not in homes:
            said.append(f"{best} alone would be nearest.")
    if not positions_read(last).all():
        said.append(_parent_in_words(last))
    said += _open(last)
    if rank := rank_90(data, homes[0]):  # rank 0 keeps what is not in this weight
        weight = weight_of(homes[0])
        full_rank = int(data["full_rank"].sel(weight=weight))
        said.append(f"Rank {rank} of {full_rank} of {weight} keeps 90 % of the loss's bigram part.")
    return " ".join(said)


def _held_by(last: xr.Dataset, homes: list[str]) -> str:
    """The homes with their shares; paths that cancel with what is left of them together."""
    words = {}
    for path in homes:
        group = next((group for group in cancelling(last) if path in group), [path])
        net = float(last["net_share"].sel(path=path))
        words[group[0]] = (
            f"{path} ({net:.2f})" if len(group) == 1 else f"the rest of {listed(group)} ({net:.2f})"
        )
    return listed(list(words.values()))


def _nothing_to_share(last: xr.Dataset) -> str:
    """What there is to say of paths that together are worth less than 0.01 nats."""
    gain, empty, full = (float(last[name]) for name in ("gain", "kl_empty", "kl_full"))
    ends = f"{full:.3g} nats from it, and {empty:.3g} with every path at its mean"
    if _is_too_little(last):  # a model without any path that is as near to it may have one all the same
        said = f"Which path holds the bigram is open: the model is {ends}. So there is too little to share."
    elif held_alone(last):
        held, nearer = ("Hardly anything", "hardly") if gain > ROUNDING_NATS else ("Nothing", "no")
        together = f"the paths together bring the model {nearer} nearer"
        said = f"{held} is left of the bigram: {together}. The model is {ends}."
    elif gain < -MIN_GAIN_NATS:
        said = (
            f"The paths bring the model no nearer to the bigram. It is {ends}. So there is nothing to share."
        )
    else:
        said = f"No path holds the bigram: the model is {ends}. So there is nothing to share."
    for path in held_alone(last):
        said += f" With {path} alone it would be {float(last['kl_only'].sel(path=path)):.3g} nats away."
    return said


def _parent_in_words(last: xr.Dataset) -> str:
    """Whether the parent is what predictions come from, and at how many positions."""
    read, changed = positions_read(last), positions_changed(last)
    if not read.any() and is_changed(last):
        gain = float(last["parent_gain"])
        where = "further from" if gain < 0 else "nearer to"
        return (
            f"Setting the parent changes predictions, but leaves them {abs(gain):.2g} nats {where} the new "
            "state's row than their mean over parents is: too sharp, or wrong."
        )
    if not read.any():
        where = f"at {changed.sum()} of {len(changed)} positions"
        does = f"changes predictions {where}" if changed.any() else "hardly changes predictions"
        return f"That is not by the parent: setting it {does}."
    return f"Predictions follow the parent at {read.sum()} of {len(read)} positions."


def _stored_in_words(last: xr.Dataset) -> str:
    """What is left of following the parent where no transition can be counted."""
    with_context, alone = (float(last[name]) for name in ("parent_gain", "stored_gain"))
    return (
        f"Setting the parent brings predictions {with_context:.2g} nats nearer to its row. Without "
        f"transitions before it that is {alone:.2g} nats."
    )


def _stored_share_in_words(last: xr.Dataset) -> str:
    """What of following the parent is stored where that is not all, and what this leaves untold."""
    share, low, high = _stored_shares(last)
    left = f"{share} ({low} to {high}) of following the parent is left without transitions in the context"
    if is_stored_open(last):
        return f"Which path holds the bigram is open: {left}."
    if is_half_stored(last):
        return f"Only {left}: which path holds that is not told."
    return f"No path holds the bigram: {_from_context(last, 'it')} comes from the context."


def _from_context(last: xr.Dataset, it: str) -> str:
    """What comes from the context, where less than half is stored: it, or surely no more than most of it."""
    return it if float(last["stored_share"][2]) < MIN_GAIN_SHARE else f"most of {it}"


def _stored_shares(last: xr.Dataset) -> list[str]:
    """The share of following the parent that is stored, and the ends of its interval."""
    return [format_share(min(1.0, max(0.0, float(value)))) for value in last["stored_share"]]


def _open(last: xr.Dataset) -> list[str]:
    """Whether sequences tell that half of following the parent needs no transition before it."""
    if not is_stored_open(last):
        return []
    _, low, high = _stored_shares(last)
    return [f"Whether at least half of following the parent is stored is open: {low} to {high}."]


FORMULAS = {
    "bigram_home": "the largest shares of paths that alone bring the model nearer, until they hold 60 %",
    "gain": "v(all paths)",
    "parent_gain": "KL(new parent's row ‖ prediction) before − after the parent is set, over positions",
    "stored_gain": "parent_gain in contexts of independent states",
    "share_*": "Shapley value of the path in v / v(all paths)",
    "rank_90": "least rank of the home's weight that keeps 90 % of the loss's bigram part",
}

probe = Probe(
    name="storage",
    question="Which path holds the bigram, how much of it, and in what rank?",
    cites="Shapley 1953",
    applies=applies,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures.draw,
    formulas=FORMULAS,
    formula="v(S) = KL(bigram ‖ no paths) − KL(bigram ‖ paths in S), a removed path at its data mean\n"
    "share of a path = its Shapley value of v / v(all paths); shares add up to 1",
)
