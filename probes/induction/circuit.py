"""Which head is the induction head of a model and which earlier head feeds it, from what was measured."""

from collections.abc import Hashable

import numpy as np
import xarray as xr

from mechmarkov.probing.dataset import NORMAL_95, best_heads, head_name, last_model

# A predecessor moves attention if, at the low end of its interval, it moves this share of the ideal.
MIN_MOVED_SHARE = 0.05

# A path carries a head's induction if, once it is cut, less than this share of the score is left.
MAX_SHARE_LEFT = 0.5

# Heads whose scores differ by less than this are equal whatever their errors: float32 sums.
TIED_SCORE = 1e-5


def induction_heads(data: xr.Dataset) -> dict[Hashable, xr.DataArray]:
    """The layer and head, for each model, of the largest induction score among those a predecessor moves.

    Among all heads, where a predecessor moves none.

    Args:
        data: What `measure` returned.

    Returns:
        "layer" and "head", each [axis] (indices).
    """
    score = data["induction"].sel(matched=1).fillna(-1.0).round(6)  # of equal heads the first
    return best_heads(score + 10.0 * is_moved(data))


def asked_heads(data: xr.Dataset) -> dict[Hashable, xr.DataArray]:
    """The layer and head, for each model, that is said to be an induction head or not.

    That is its induction head; where a predecessor moves none, the one whose attention it moves most.

    Args:
        data: What `measure` returned.

    Returns:
        "layer" and "head", each [axis] (indices).
    """
    first, most = induction_heads(data), best_heads(data["effect"])
    is_any = is_moved(data).any(("layer", "head"))
    return {name: first[name].where(is_any, most[name]) for name in first}


def is_moved(heads: xr.Dataset) -> xr.DataArray:
    """Returns whether a key's predecessor, for its own sake, moves a head's attention to that key.

    At the low end of the 95 % interval it moves at least 5 % of what it would move for an ideal head.

    Args:
        heads: What `measure` returned, of all heads or of one.
    """
    return heads["effect_low"] > MIN_MOVED_SHARE


def last_induction_head(data: xr.Dataset) -> tuple[xr.Dataset, str]:
    """Returns what was measured of the last model's induction head, and its name, such as "L1H0".

    Args:
        data: What `measure` returned.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.probes.induction import probe
        >>> data = probe.measure(mm.Subject.of(mm.example("induction"), sequences=8))
        >>> reader, name = last_induction_head(data)
        >>> name, feeders_of(reader)
        ('L1H0', [{'layer': 0, 'head': 1}])
    """
    head = {name: int(index[-1]) for name, index in induction_heads(data).items()}
    return last_model(data).isel(head), head_name(head)


def tied_heads(last: xr.Dataset) -> list[tuple[int, int]]:
    """The induction heads of one model whose scores are equal within their intervals, the best first.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.

    Returns:
        Pairs of layer and head; none where no head's attention is moved by a predecessor (`is_moved`).
    """
    score, error = (last[name].sel(matched=1) for name in ("induction", "induction_error"))
    best = best_heads(score.where(is_moved(last)))
    if not is_moved(last.isel(best)):
        return []
    apart = NORMAL_95 * np.hypot(error, float(error.isel(best))) + TIED_SCORE
    tied = is_moved(last) & (abs(score - float(score.isel(best))) <= apart)
    heads = [(int(layer), int(head)) for layer, head in np.argwhere(tied.transpose("layer", "head").values)]
    first = induction_heads(last)
    named = (int(first["layer"]), int(first["head"]))
    return [named, *(head for head in heads if head != named)]


def strongest_feeder(reader: xr.Dataset) -> dict[str, int] | None:
    """The earlier head whose cut from a head's keys takes the most of its score; None if there is none.

    Args:
        reader: What was measured of the head: `last_induction_head(data)[0]`.
    """
    feeder = {name: int(reader[f"feeder_{name}"]) for name in ("layer", "head")}
    return None if feeder["layer"] < 0 else feeder


def feeders_of(reader: xr.Dataset) -> list[dict[str, int]]:
    """The heads that feed a head by its keys, if cutting them there clearly takes most of the score.

    Args:
        reader: What was measured of the head: `last_induction_head(data)[0]`.
    """
    if not float(reader["key_left"].sel(estimate="high")) < MAX_SHARE_LEFT:
        return []
    return _marked(reader["feeds"])


def fed_alike(last: xr.Dataset, heads: list[tuple[int, int]]) -> dict[tuple[str, ...], list[tuple[int, int]]]:
    """Heads that tie, by the names of what clearly feeds their keys; none for those that nothing does.

    Args:
        last: What `measure` returned, of one model.
        heads: Pairs of layer and head: `tied_heads(last)`.
    """
    by_feeders: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for layer, head in heads:
        one = last.isel(layer=layer, head=head)
        is_fed = float(one["tied_left"].sel(estimate="high")) < MAX_SHARE_LEFT
        feeders = tuple(map(head_name, _marked(one["tied_feeds"]))) if is_fed else ()
        by_feeders.setdefault(feeders, []).append((layer, head))
    return by_feeders


def askers_of(reader: xr.Dataset) -> list[dict[str, int]]:
    """The heads that feed a head by its queries: cutting any of them there clearly takes most of the score.

    Args:
        reader: What was measured of the head: `last_induction_head(data)[0]`.
    """
    return _marked(reader["feeds_queries"])


def _marked(heads: xr.DataArray) -> list[dict[str, int]]:
    """Returns the earlier heads that are above 0."""
    marked = np.argwhere(heads.transpose("from_layer", "from_head").values > 0)
    return [{"layer": int(layer), "head": int(head)} for layer, head in marked]
