"""Norms of affine forms, over their last axis."""

import numpy as np
from jaxtyping import Float

from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import gamma

Array = Float[np.ndarray, "..."]


def never(low: Array, high: Array) -> Array:
    """Returns how far a convex function is above its chord."""
    return np.zeros_like(high - low)


def _below_chord(low: Array, high: Array) -> Array:
    """Returns how far `1 / sqrt(x)` is below its chord, where its slope is the chord's."""
    root_low, root_high = np.sqrt(low), np.sqrt(high)
    steepness = 1 / (root_low * root_high * (root_low + root_high))  # minus the chord's slope
    touching = (2 * steepness) ** (-2 / 3)
    chord = 1 / root_low - steepness * (touching - low)
    return np.maximum(chord - 1 / np.sqrt(touching), 0.0) + 1e-14 / root_low


def _square_below_chord(low: Array, high: Array) -> Array:
    """Returns how far `x²` is below its chord, in the middle."""
    return (high - low) ** 2 / 4


def normalised(x: Affine, gain: Array | None, shift: Array | None, eps: float, centred: bool) -> Affine:
    """LayerNorm (`centred`) or RMSNorm over the last axis.

    Raises:
        ValueError: The variance may be zero and `eps` is.
    """
    width = x.mid.shape[-1]
    if centred:
        x = x.dot(np.eye(width) - 1 / width, extra=2)
    # A square is on one side of its tangent, as a product of two equal forms does not know.
    square = x.through(np.square, _square_below_chord, never, relative=True, operations=1)
    variance = square.dot(np.full((width, 1), 1 / width), extra=1)
    variance = variance.plus(np.array([eps]))
    least = eps * (1 - gamma(4, x.unit))
    if least <= 0 and (variance.lower <= 0).any():
        raise ValueError("eps is 0 and the variance of a token may be 0: the norm has no bound")
    scale = variance.through(lambda v: 1 / np.sqrt(v), _below_chord, never, least, relative=True)
    x = (x * scale).widened(1)  # a division by the root is one function more than a product
    x = x if gain is None else x.times(gain)
    return x if shift is None else x.plus(shift)
