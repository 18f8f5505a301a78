"""How far apart two states' logits can be where norms or an MLP stand behind one attention layer.

What attention writes lies in a set whose support function is known (`Reading`). A box around it, turned along
the set's longest axes and cut into pieces along them, goes as affine forms through what stands behind
(`tail.scores`). The set is thin: it is wide only in how much attention each state gets, along one axis for
two states. So few pieces are enough, and what the forms do not see is of second order in a piece's width. In
the piece that decides, the linear part of the difference is closed with the support function itself. Behind
other layers the query's own stream is a form too, and is cut along its first symbols as the box is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from mechmarkov.certify.bounds import tail
from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import EXACT, OWN, up
from mechmarkov.certify.bounds.layer import Layer
from mechmarkov.certify.bounds.reading import ROOM, Reading

CUT_AXES = 2  # of a box, and of the stream in front of it
MAX_CLOSINGS = 8  # of a pair of states
LARGEST = 1e38  # log odds above float32's range bound nothing, and powers of what is behind them overflow

Basis = Float[np.ndarray, "d_model axis"]
Cuts = Int[np.ndarray, "axis=4"]  # two of the box, and two symbols of the stream


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
    cuts: Cuts,
) -> tuple[Affine, Affine]:
    """Returns what attention writes and every `z_k - z_l`, as forms: `[piece, d_model]` and `[piece, pair]`.

    Args:
        layer: The model.
        reading: The reading of the residual stream.
        stream: What attention reads at the query, `[d_model]`.
        basis: The basis of the box.
        multipliers: `reading.multipliers` of all axes, then of all axes reversed.
        cuts: Into how many parts, from `cuts_of`.

    Raises:
        ValueError: Nothing bounds a difference.
    """
    written = box(reading, basis, multipliers)
    before, behind = in_front(stream, written), written + in_front(reading.base, written)
    centre, share = parts(cuts, len(basis), before.slope.shape[-1])
    logits = tail.scores(layer, before.pieces(centre, share), behind.pieces(centre, share))
    n = logits.mid.shape[-1]
    pairs = (np.eye(n)[:, :, None] - np.eye(n)[:, None, :]).reshape(n, n * n)
    different = logits.combined(pairs)
    if not (different.upper < LARGEST).all():  # NaN is not, either
        raise ValueError("what stands behind attention takes so wide a box that nothing bounds its scores")
    return written.pieces(*(one[:, : len(basis)] for one in (centre, share))), different


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
    before = Affine.exact(np.broadcast_to(stream.mid, behind.shape), EXACT)
    return tail.scores(layer, before, Affine.exact(behind, EXACT)).mid


def in_front(numbers: Affine, box: Affine) -> Affine:
    """Numbers whose own symbols come behind those of a box, which they do not have; as exact as the box."""
    return replace(numbers.behind(box.slope.shape[-1]), unit=box.unit)


def box(reading: Reading, basis: Basis, multipliers: Float[np.ndarray, "side_axis head"]) -> Affine:
    """Returns what attention writes, `[d_model]`, as a form whose symbols are the axes of a box."""
    width, unit = basis.shape[1], reading.base.unit
    middle, half = ends(width, multipliers)
    largest = np.abs(middle) + half
    # The basis is orthonormal up to rounding, which counts as a radius.
    across = np.abs(basis) @ np.abs(basis.T)
    missed = np.abs(np.eye(width) - basis @ basis.T) + 2 * width * OWN * across
    rad = up(missed @ reading.value.size.max((1, 2)).sum(0) + 2 * width * OWN * (largest @ np.abs(basis.T)))
    # What stands behind attention has the room that `reading` gives to attention.
    return Affine(basis @ middle, basis * half, rad, (unit + OWN) * ROOM[unit] - OWN)


def ends(
    width: int, multipliers: Float[np.ndarray, "side_axis head"]
) -> tuple[Float[np.ndarray, " axis"], Float[np.ndarray, " axis"]]:
    """The middle of a box along each axis and half its length, from the multipliers of both its sides."""
    add = _heads_add(multipliers)
    low, high = -add[width:], add[:width]
    return (low + high) / 2, up((high - low) / 2 + 4 * OWN * np.maximum(np.abs(low), np.abs(high)))


def _heads_add(multipliers: Float[np.ndarray, "*lead head"]) -> Float[np.ndarray, "*lead"]:
    """Returns what heads add at most, rounded upwards: as far as a checker, which lays a box as this does."""
    size = np.abs(multipliers).sum(-1)
    return multipliers.sum(-1) + 8 * (2 + multipliers.shape[-1]) * OWN * size


def cuts_of(
    multipliers: Float[np.ndarray, "side_axis head"], stream: Affine, along: int, pieces: int
) -> Cuts:
    """Into how many parts the axes of a box and the symbols of a stream are cut.

    Args:
        multipliers: The multipliers of the box.
        stream: The residual stream at the query, `[d_model]`.
        along: The most parts of the longest; shorter ones have fewer.
        pieces: The most parts of all together.

    Example:
        >>> none = Affine.exact(np.zeros(2), EXACT)
        >>> cuts_of(np.array([[1.0], [0.5], [1.0], [0.5]]), none, 8, 64).tolist()
        [8, 4, 1, 1]
        >>> cuts_of(np.array([[1.0], [0.5], [1.0], [0.5]]), none, 8, 20).tolist()
        [6, 3, 1, 1]
    """
    middle, half = ends(len(multipliers) // 2, multipliers)
    of_stream = np.linalg.norm(stream.slope[:, :CUT_AXES], axis=0)
    length = np.zeros(2 * CUT_AXES)
    length[:CUT_AXES][: len(half)] = half[:CUT_AXES]
    length[CUT_AXES:][: len(of_stream)] = of_stream
    # A box no wider than rounding, of a single context, is not cut.
    share = length / max(float(length.max()), 1e-12 * float((np.abs(middle) + half).max()), 1e-300)
    cuts = [np.maximum(1, np.rint(most * share)).astype(int) for most in range(along, 0, -1)]
    return next((one for one in cuts if one.prod() <= pieces), cuts[-1])


def parts(
    cuts: Cuts, width: int, symbols: int
) -> tuple[Float[np.ndarray, "piece symbol"], Float[np.ndarray, "piece symbol"]]:
    """The centre of each piece along every symbol, and its share of it.

    Example:
        >>> parts(np.array([2, 1, 1, 1]), 2, 2)[0].tolist()
        [[-0.5, 0.0], [0.5, 0.0]]
    """
    at = [*range(min(CUT_AXES, width)), *range(width, min(width + CUT_AXES, symbols))]
    counts = [*cuts[:CUT_AXES][:width], *cuts[CUT_AXES:][: symbols - width]]
    centres = np.array(list(product(*[(2 * np.arange(n) + 1) / n - 1 for n in counts])))
    centre, share = np.zeros((len(centres), symbols)), np.ones((len(centres), symbols))
    centre[:, at] = centres
    share[:, at] = [1.0 if n == 1 else 1 / n + 4 * OWN for n in counts]  # pieces meet, whatever is rounded
    return centre, share
