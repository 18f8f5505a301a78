"""Arrays of balls: a number and how far the result of any evaluation in floating point may be from it.

A ball holds what an operation gives in exact arithmetic, and what it gives in any evaluation of a given unit
roundoff `u`, from any inputs in the balls of its inputs. One operation has a relative error of at most `u`,
and a sum or a product of sums of n terms in any order, fused or not, of at most `gamma(n) = n u / (1 - n u)`
times the sum of magnitudes (Higham 2002, Accuracy and Stability of Numerical Algorithms, lemma 3.1 and eq.
3.5).

Midpoints are computed in float64. Their own rounding is covered because every `u` counts `2^-52` more, twice
float64's unit, and that of the radii because each is made larger by a billionth, which is above the relative
error of any sum of fewer than four million positive numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float

EXACT: Final = 0.0  # the model of real numbers
FLOAT32: Final = 2.0**-24
OWN: Final = 2.0**-52  # of our own float64, twice its unit roundoff
RADIUS_ROUNDING: Final = 1 + 1e-9
ELEMENTARY: Final = 64  # relative error of exp, tanh and erf, in units: PyTorch's fastest exp has 40
TINY: Final = 1e-300  # our own exponentials are off by so little where they underflow
UNDERFLOW: Final = {EXACT: 0.0, FLOAT32: 2.0**-120}  # the model's, of its largest

Array = Float[np.ndarray, "..."]


def gamma(n: int, unit: float) -> float:
    """`n u / (1 - n u)`, our own rounding counted in `u`.

    Raises:
        ValueError: The sum is too long for the arithmetic: nothing bounds its error.

    Example:
        >>> gamma(1000, FLOAT32) / (1000 * FLOAT32) > 1
        True
    """
    product = n * (unit + OWN)
    if product >= 0.5:
        raise ValueError(f"a sum of {n} terms is too long for arithmetic of unit roundoff {unit:g}")
    return product / (1 - product)


def up(radius: Array) -> Array:
    """A radius that was computed in float64, rounded upwards by a billionth of it."""
    return radius * RADIUS_ROUNDING


@dataclass(frozen=True, eq=False)
class Ball:
    """Numbers known up to a radius, and the unit roundoff of the evaluation that they cover.

    Attributes:
        mid: The middles.
        rad: The radii, of the same shape.
        unit: The unit roundoff: `EXACT` or `FLOAT32`.

    Example:
        >>> third = Ball.exact(np.full(1, 1 / 3), FLOAT32) * Ball.exact(np.ones(1), FLOAT32)
        >>> bool(third.lower[0] < np.float32(1 / 3) < third.upper[0])
        True
    """

    mid: Array
    rad: Array
    unit: float

    # numpy must leave `array @ ball` and the like to this class
    __array_ufunc__ = None

    @staticmethod
    def exact(values: Any, unit: float) -> "Ball":
        """Numbers that are stored as they are."""
        mid = np.asarray(values, dtype=np.float64)
        return Ball(mid, np.zeros_like(mid), unit)

    @property
    def size(self) -> Array:
        """The largest magnitudes."""
        return np.abs(self.mid) + self.rad

    @property
    def upper(self) -> Array:
        """Numbers that none in the ball exceeds."""
        return self.mid + self.rad + OWN * self.size

    @property
    def lower(self) -> Array:
        """Numbers that none in the ball falls below."""
        return self.mid - self.rad - OWN * self.size

    def __getitem__(self, index: Any) -> "Ball":
        return Ball(self.mid[index], self.rad[index], self.unit)

    def __add__(self, other: "Ball") -> "Ball":
        return _rounded(self.mid + other.mid, self.rad + other.rad, self.unit)

    def __mul__(self, other: "Ball") -> "Ball":
        rad = np.abs(self.mid) * other.rad + self.rad * other.size
        return _rounded(self.mid * other.mid, rad, self.unit)

    def arranged(self, view: Callable[[Array], Array]) -> "Ball":
        """The same in another order or shape, as a function arranges the entries of an array."""
        return Ball(view(self.mid), view(self.rad), self.unit)

    def transposed(self, *axes: int) -> "Ball":
        """The same with its axes in another order."""
        return self.arranged(lambda x: x.transpose(axes))

    def padded(self, zeros: Any) -> "Ball":
        """The same with exact zeros around it, as `numpy.pad` takes their numbers."""
        return self.arranged(lambda x: np.pad(x, zeros))

    def larger(self, factor: float) -> "Ball":
        """The same with radii that many times as large."""
        return Ball(self.mid, self.rad * factor, self.unit)

    def widened(self, relative: float) -> "Ball":
        """Balls that hold every number of these with that relative error."""
        return Ball(self.mid, up(self.rad + relative * self.size), self.unit)


def _rounded(mid: Array, rad: Array, unit: float) -> Ball:
    """The result of one operation from inputs whose own errors give a radius."""
    return Ball(mid, up(rad + gamma(1, unit) * (np.abs(mid) + rad)), unit)
