"""Affine forms: numbers that depend on a few symbols, with all that is not linear in a remainder.

A form `x = mid + slope · e + rad [-1, 1]` holds for symbols `e`, each in [-1, 1] (de Figueiredo & Stolfi
2004, Numerical Algorithms 37, 147; a zonotope). Linear maps keep it exact. What a product or an activation
adds that is not linear is a remainder of second order in the width, and becomes a symbol of its own, so that
later linear maps cancel it where it cancels. Rounding, of the model's arithmetic as in `Ball` and of our own,
is collected in `rad`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from mechmarkov.certify.bounds.ball import ELEMENTARY, EXACT, OWN, Ball, gamma, up

Array = Float[np.ndarray, "..."]


@dataclass(frozen=True, eq=False)
class Affine:
    """Affine forms of one set of symbols.

    Attributes:
        mid: The middle of each number, `[*lead, d]`.
        slope: The share of each symbol, `[*lead, d, symbol]`.
        rad: What is left, `[*lead, d]`.
        unit: The unit roundoff, as in `Ball`.
    """

    mid: Array
    slope: Array
    rad: Array
    unit: float

    @property
    def spread(self) -> Array:
        """Returns how far the numbers can be from their midpoints."""
        return up(np.abs(self.slope).sum(-1) + self.rad)

    @property
    def size(self) -> Array:
        """The largest magnitudes."""
        return np.abs(self.mid) + self.spread

    @property
    def upper(self) -> Array:
        """Numbers that none of these exceeds."""
        return self.mid + self.spread + OWN * self.size

    @property
    def lower(self) -> Array:
        """Numbers that none of these falls below."""
        return self.mid - self.spread - OWN * self.size

    @staticmethod
    def exact(values: Array, unit: float) -> "Affine":
        """Numbers that are stored as they are, of no symbols."""
        mid = np.asarray(values, dtype=np.float64)
        return Affine(mid, np.zeros((*mid.shape, 0)), np.zeros_like(mid), unit)

    @property
    def rows(self) -> "Affine":
        """The same as rows, `[*lead, 1, d]`, for matrices that differ along the leading axes."""
        return Affine(self.mid[..., None, :], self.slope[..., None, :, :], self.rad[..., None, :], self.unit)

    @property
    def hull(self) -> Ball:
        """The numbers without what ties them to each other."""
        return Ball(self.mid, self.spread, self.unit)

    def __getitem__(self, index: Any) -> "Affine":
        """The forms at an index of the leading axes."""
        return Affine(self.mid[index], self.slope[index], self.rad[index], self.unit)

    def transposed(self, *axes: int) -> "Affine":
        """The same with its axes in another order."""
        return Affine(
            self.mid.transpose(axes), self.slope.transpose(*axes, -1), self.rad.transpose(axes), self.unit
        )

    def padded(self, zeros: Sequence[tuple[int, int]]) -> "Affine":
        """The same with exact zeros around it, as `numpy.pad` takes their numbers."""
        slope = np.pad(self.slope, [*zeros, (0, 0)])
        return Affine(np.pad(self.mid, zeros), slope, np.pad(self.rad, zeros), self.unit)

    def larger(self, factor: float) -> "Affine":
        """The same with radii that many times as large."""
        return Affine(self.mid, self.slope, self.rad * factor, self.unit)

    def behind(self, symbols: int) -> "Affine":
        """The same of symbols that come behind others, which these forms do not have."""
        none = [(0, 0)] * (self.slope.ndim - 1)
        return Affine(self.mid, np.pad(self.slope, [*none, (symbols, 0)]), self.rad, self.unit)

    def pieces(self, centre: Array, share: Array) -> "Affine":
        """The same over parts of the symbols' ranges, `[piece, d]`.

        Args:
            centre: A symbol of a piece is `centre + share · e`, e in [-1, 1]; `[piece, symbol]`.
            share: Likewise; at most four symbols of a piece have one that is not 1.
        """
        mid = self.mid + centre @ self.slope.T
        rad = up(self.rad + gamma(8, EXACT) * self.size)
        rad = np.broadcast_to(rad, mid.shape)
        return Affine(mid, self.slope * share[:, None], rad, self.unit)

    def folded(self, symbols: int) -> "Affine":
        """Forms of the first symbols and one more for each number, which holds all that is left."""
        rest = self.rad + np.abs(self.slope[..., symbols:]).sum(-1)
        # Another program that computes the same may differ by its own rounding.
        rest = up(rest + 16 * OWN * self.size)
        own = rest[..., None] * np.eye(rest.shape[-1])
        slope = np.concatenate([self.slope[..., :symbols], own], -1)
        return Affine(self.mid, slope, np.zeros_like(rest), self.unit)

    def inner(self, other: "Affine | Ball") -> Ball:
        """The inner product along the last axis with forms of other symbols, or of none."""
        if isinstance(other, Ball):
            other = Affine(other.mid, np.zeros((*other.mid.shape, 0)), other.rad, other.unit)
        error = gamma(self.mid.shape[-1] + 1, self.unit)
        rad = (error * self.size * other.size + self.spread * other.spread).sum(-1)
        rad += (np.abs(self.mid) * other.rad + self.rad * np.abs(other.mid)).sum(-1)
        for one, two in ((self, other), (other, self)):
            rad = rad + np.abs((one.mid[..., None, :] @ two.slope)[..., 0, :]).sum(-1)
        return Ball((self.mid * other.mid).sum(-1), up(rad), self.unit)

    def _made(self, mid: Array, slope: Array, rad: Array, operations: int) -> "Affine":
        """The result of a number of operations on each number, rounded."""
        size = np.abs(mid) + np.abs(slope).sum(-1) + rad
        return Affine(mid, slope, up(rad + gamma(operations, self.unit) * size), self.unit)

    def __add__(self, other: "Affine") -> "Affine":
        """The sum of two forms of the same symbols; one may have more."""
        most = max(self.slope.shape[-1], other.slope.shape[-1])
        slope = self._padded(most).slope + other._padded(most).slope
        return self._made(self.mid + other.mid, slope, self.rad + other.rad, 1)

    def __sub__(self, other: "Affine") -> "Affine":
        """The difference, as `__add__`, in exact arithmetic: no model computes it."""
        minus = Affine(-other.mid, -other.slope, other.rad, EXACT)
        return Affine(self.mid, self.slope, self.rad, EXACT) + minus

    def combined(self, matrix: Array) -> "Affine":
        """The product with an exact matrix in exact arithmetic: no model computes it."""
        return Affine(self.mid, self.slope, self.rad, EXACT).dot(matrix)

    def widened(self, operations: int) -> "Affine":
        """The same after more operations on each number that change nothing but by rounding."""
        return self._made(self.mid, self.slope, self.rad, operations)

    def plus(self, vector: Array) -> "Affine":
        """The sum with exact numbers."""
        return self._made(self.mid + vector, self.slope, self.rad, 1)

    def times(self, vector: Array) -> "Affine":
        """The product with exact numbers, one each."""
        return self._made(self.mid * vector, self.slope * vector[..., None], self.rad * np.abs(vector), 1)

    def dot(self, matrix: Array, extra: int = 0) -> "Affine":
        """The product with an exact matrix."""
        size = np.abs(matrix)
        error = gamma(matrix.shape[-2] + extra, self.unit)
        across = np.swapaxes(matrix, -1, -2)
        slope = (across if matrix.ndim == 2 else across[..., None, :, :]) @ self.slope
        return Affine(self.mid @ matrix, slope, up((self.rad + error * self.size) @ size), self.unit)

    def with_remainder(self, mid: Array, remainder: Array) -> "Affine":
        """Midpoints moved, and a remainder: a symbol for each number, part of the radius without symbols."""
        if not self.slope.shape[-1]:
            return Affine(self.mid + mid, self.slope, up(self.rad + remainder), self.unit)
        symbols = remainder[..., None] * np.eye(remainder.shape[-1])
        return Affine(self.mid + mid, np.concatenate([self.slope, symbols], -1), self.rad, self.unit)

    def __mul__(self, other: "Affine") -> "Affine":
        """The product, number by number; `other` may have one number for all, and more or fewer symbols."""
        most = max(self.slope.shape[-1], other.slope.shape[-1])
        a, b = self._padded(most), other._padded(most)
        mid = a.mid * b.mid
        slope = a.mid[..., None] * b.slope + b.mid[..., None] * a.slope
        rad = np.abs(a.mid) * b.rad + np.abs(b.mid) * a.rad
        product = a._made(mid, slope, rad, 1)
        remainder = up(a.spread * b.spread * (1 + gamma(1, self.unit)))
        return product.with_remainder(np.zeros_like(mid), remainder)

    def _padded(self, symbols: int) -> "Affine":
        none = [(0, 0)] * (self.slope.ndim - 1)
        slope = np.pad(self.slope, [*none, (0, symbols - self.slope.shape[-1])])
        return Affine(self.mid, slope, self.rad, self.unit)

    def through(
        self,
        function: Callable[[Array], Array],
        below: Callable[[Array, Array], Array],
        above: Callable[[Array, Array], Array],
        least: float = -np.inf,
        relative: bool = False,
        operations: int = ELEMENTARY,
    ) -> "Affine":
        """A function of each number, by its chord.

        Args:
            function: The function.
            below: How far it can be below its chord between two numbers.
            above: How far above.
            least: No number is smaller, for other reasons than its form.
            relative: Whether an evaluation is off by a share of the function; else of its argument, which
                the function never exceeds. GELU adds what may be near -1 to 1.
            operations: How many roundings an evaluation has.
        """
        low, high = np.maximum(self.lower, least), np.maximum(self.upper, least)
        ends = function(low), function(high)
        slope = (ends[1] - ends[0]) / np.maximum(high - low, 1e-300)
        rest = ends[0] - slope * low, ends[1] - slope * high
        down, rise = up(below(low, high)), up(above(low, high))
        # What the chord misses at its own ends is rounding, of the function at both.
        largest = np.maximum(np.abs(ends[0]), np.abs(ends[1])) if relative else np.maximum(-low, high)
        size = largest + down + rise
        rounding = up(2 * operations * OWN * (size + np.abs(slope) * np.maximum(-low, high)))
        remainder = up(np.abs(rest[1] - rest[0]) / 2 + (down + rise) / 2 + rounding)
        chord = Affine(slope * self.mid, slope[..., None] * self.slope, np.abs(slope) * self.rad, EXACT)
        along = chord._made(chord.mid, chord.slope, chord.rad, 1)
        image = along.with_remainder((rest[0] + rest[1]) / 2 + (rise - down) / 2, remainder)
        evaluated = up(gamma(operations, self.unit) * (size + remainder))
        return Affine(image.mid, image.slope, image.rad + evaluated, self.unit)
