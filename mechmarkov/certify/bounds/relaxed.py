"""How far apart two states' logits can be where norms or an MLP stand behind one attention layer.

What attention writes lies in a set whose support function is known (`Reading`). A box around it, turned along
the set's longest axes and cut into pieces along them, goes as affine forms through what stands behind
(`tail.scores`). The set is thin: it is wide only in how much attention each state gets, along one axis for
two states. So few pieces are enough, and what the forms do not see is of second order in a piece's width. In
the piece that decides, the linear part of the difference is closed with the support function itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from jaxtyping import Float

from mechmarkov.certify.bounds import tail
from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import EXACT, OWN, up
from mechmarkov.certify.bounds.layer import Layer
from mechmarkov.certify.bounds.reading import ROOM, Reading

CUT_AXES = 2  # a box is cut along this many axes at most
MAX_CLOSINGS = 8  # of a pair of states
LARGEST = 1e38  # log odds above float32's range bound nothing, and powers of what is behind them overflow

Basis = Float[np.ndarray, "d_model axis"]


def longest_axes(reading: Reading) -> Basis:
    """An orthonormal basis whose first axes are the longest of what attention writes.

    They are those of what a token at a key adds, by its attention: positions shift all contexts equally.
    """
    weight, value = reading.weight.mid[..., None], reading.value.mid
    seen = reading.allowed[None, :, :, None]
    count = seen.sum(2, keepdims=True)
    mean = (value * seen).sum(2, keepdims=True) / np.maximum(count, 1)
    flat = ((value - mean) * weight * seen).reshape(-1, value.shape[-1])
    axes: Basis = np.linalg.svd(flat.T @ flat)[0]
    return axes


@dataclass(frozen=True, eq=False)
class _Closing:
    """One piece of a box whose bound takes the support function of what attention writes, not of the box."""

    above: int  # state k of the difference `z_k - z_l`
    below: int  # state l
    piece: int  # which piece
    direction: Float[np.ndarray, " d_model"]  # in the residual stream
    multipliers: Float[np.ndarray, " head"]  # `Reading.multipliers` of it, one a head


@np.errstate(over="ignore", invalid="ignore")
def differences(
    layer: Layer,
    reading: Reading,
    stream: Affine,
    basis: Basis,
    multipliers: Float[np.ndarray, "side_axis head"],
    pieces: int,
) -> tuple[Affine, Affine]:
    """Returns what attention writes and every `z_k - z_l`, as forms: `[piece, d_model]` and `[piece, pair]`.

    Args:
        layer: The model.
        reading: The reading of the residual stream.
        stream: What attention reads at the query, `[d_model]`.
        basis: The basis of the box.
        multipliers: `reading.multipliers` of all axes, then of all axes reversed.
        pieces: Along the longest axis; shorter axes are cut into fewer.

    Raises:
        ValueError: Nothing bounds a difference.
    """
    written = box(reading, basis, multipliers, pieces)
    logits = tail.scores(layer, constant(stream, written), written + constant(reading.base, written))
    n = logits.mid.shape[-1]
    pairs = (np.eye(n)[:, :, None] - np.eye(n)[:, None, :]).reshape(n, n * n)
    different = logits.combined(pairs)
    if not (different.upper < LARGEST).all():  # NaN is not, either
        raise ValueError("what stands behind attention takes so wide a box that nothing bounds its scores")
    return written, different


def closings(reading: Reading, written: Affine, different: Affine) -> list[_Closing]:
    """The pieces that decide, of every pair of states one after the other while that lowers the bound.

    Args:
        reading: The reading of the residual stream.
        written: The form of what attention writes, from `differences`.
        different: The form of each `z_k - z_l`, likewise.
    """
    n, made = math.isqrt(different.mid.shape[-1]), list[_Closing]()
    for pair in range(n * n):
        if pair % (n + 1) == 0:
            continue
        upper = different.upper[:, pair].copy()
        for _ in range(MAX_CLOSINGS):
            piece = int(upper.argmax())
            direction = _slope(written, different, piece, pair)
            multipliers = reading.multipliers(direction[None])[0][0]
            closing = _Closing(*divmod(pair, n), piece, direction, multipliers)
            if not (closed := _closed_bound(written, different, closing)) < upper[piece]:
                break
            upper[piece] = closed
            made.append(closing)
    return made


def _slope(written: Affine, different: Affine, piece: int, pair: int) -> Float[np.ndarray, " d_model"]:
    """Returns how a difference changes with what attention writes, in one piece."""
    box = written.slope[piece]
    return np.linalg.lstsq(box.T, different.slope[piece, pair, : box.shape[-1]], rcond=1e-12)[0]


def _closed_bound(written: Affine, different: Affine, closing: _Closing) -> float:
    """The upper bound of a difference in a piece: along a direction, and what the form has besides."""
    pair = closing.above * math.isqrt(different.mid.shape[-1]) + closing.below
    along = written.combined(closing.direction[:, None])
    besides = different - along
    add, rest = float(_heads_add(closing.multipliers)), float(besides.upper[closing.piece, pair])
    return add + rest + 4 * OWN * (abs(add) + abs(rest))


def log_odds_of(
    written: Affine, different: Affine, closed: Sequence[_Closing]
) -> Float[np.ndarray, "state_to state_against"]:
    """Upper bounds of `z_k - z_l` over all contexts: the largest over the pieces.

    Args:
        written: The form of what attention writes, from `differences`.
        different: The form of each `z_k - z_l`, likewise.
        closed: Pieces from `closings`, or none.
    """
    n, upper = math.isqrt(different.mid.shape[-1]), different.upper.copy()
    for one in closed:
        pair = one.above * n + one.below
        upper[one.piece, pair] = min(upper[one.piece, pair], _closed_bound(written, different, one))
    bound: np.ndarray = upper.max(0).reshape(n, n)
    np.fill_diagonal(bound, 0.0)
    return bound


def scores_at(
    layer: Layer, stream: Affine, behind: Float[np.ndarray, "context d_model"]
) -> Float[np.ndarray, "context state"]:
    """The scores for some residual streams behind attention, computed in float64."""
    at = Affine(behind, np.zeros((*behind.shape, 0)), np.zeros_like(behind), EXACT)
    return tail.scores(layer, constant(Affine.exact(stream.mid, EXACT), at), at).mid


def constant(numbers: Affine, like: Affine) -> Affine:
    """Numbers that depend on none of the symbols of some forms, in their shape."""
    shape = like.mid.shape
    slope = numbers.behind(like.slope.shape[-1]).slope
    slope = np.broadcast_to(slope, (*shape, slope.shape[-1]))
    return Affine(np.broadcast_to(numbers.mid, shape), slope, np.broadcast_to(numbers.rad, shape), like.unit)


def box(
    reading: Reading, basis: Basis, multipliers: Float[np.ndarray, "side_axis head"], pieces: int
) -> Affine:
    """Returns what attention writes, a form for each piece of the box `[piece, d_model]`."""
    width, unit = basis.shape[1], reading.base.unit
    middle, half = halves(*ends(width, multipliers), pieces)
    largest = np.abs(middle) + half
    # The basis is orthonormal up to rounding, which counts as a radius.
    across = np.abs(basis) @ np.abs(basis.T)
    missed = np.abs(np.eye(width) - basis @ basis.T) + 2 * width * OWN * across
    rad = up(missed @ reading.value.size.max((1, 2)).sum(0) + 2 * width * OWN * (largest @ np.abs(basis.T)))
    # What stands behind attention has the room that `reading` gives to attention.
    return Affine(middle @ basis.T, basis * half[:, None, :], rad, (unit + OWN) * ROOM[unit] - OWN)


def ends(width: int, multipliers: Float[np.ndarray, "side_axis head"]) -> tuple[np.ndarray, np.ndarray]:
    """The ends of a box along each axis, from the multipliers of both its sides."""
    add = _heads_add(multipliers)
    return -add[width:], add[:width]


def halves(
    low: Float[np.ndarray, " axis"], high: Float[np.ndarray, " axis"], pieces: int
) -> tuple[Float[np.ndarray, "piece axis"], Float[np.ndarray, "piece axis"]]:
    """The middle of each piece of a box, and half its length."""
    cuts = _cuts(low, high, pieces)
    edges = [np.linspace(a, b, cut + 1) for a, b, cut in zip(low, high, cuts, strict=True)]
    pairs = np.array(list(product(*map(pairwise, edges))))
    first, last = pairs[..., 0], pairs[..., 1]
    half = up((last - first) / 2 + 4 * OWN * np.maximum(np.abs(first), np.abs(last)))
    return (first + last) / 2, half


def _heads_add(multipliers: Float[np.ndarray, "*lead head"]) -> Float[np.ndarray, "*lead"]:
    """Returns what heads add at most, rounded upwards: as far as a checker, which cuts a box as this does."""
    size = np.abs(multipliers).sum(-1)
    return multipliers.sum(-1) + 8 * (2 + multipliers.shape[-1]) * OWN * size


def _cuts(low: Float[np.ndarray, " axis"], high: Float[np.ndarray, " axis"], pieces: int) -> list[int]:
    """Into how many pieces each axis is cut: a box no wider than rounding, of a single context, in none."""
    wide, size = float((high - low).max()), float(np.maximum(np.abs(low), np.abs(high)).max())
    share = (high - low) / max(wide, 1e-12 * size, 1e-300)
    share[CUT_AXES:] = 0.0
    return [max(1, round(pieces * s)) for s in share]
