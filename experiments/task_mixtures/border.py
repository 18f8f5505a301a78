"""The border K*: from how many chains on models infer more than they retrieve, with its interval."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

RESAMPLES = 2000


@dataclass(frozen=True)
class Border:
    """Where a share that rises with the number of chains passes one half.

    Attributes:
        value: The number of chains; infinite or 0 where the share stays on one side of one half.
        low: The 2.5 % point over resampled seeds.
        high: The 97.5 % point.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """`9.1 [7.3, 11.0]`, or on which side of what was measured it lies."""
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def crossing(numbers: Float[np.ndarray, " number"], shares: Float[np.ndarray, " number"]) -> float:
    """The number at which shares first pass one half, linear in its logarithm between two.

    Example:
        >>> crossing(np.array([2.0, 8.0, 32.0]), np.array([0.0, 0.5, 1.0]))
        8.0
        >>> crossing(np.array([2.0, 8.0]), np.array([0.0, 0.4])), crossing(np.array([2.0]), np.array([0.9]))
        (inf, 0.0)
    """
    above = np.flatnonzero(shares >= 0.5)
    if not above.size:
        return float("inf")
    i = int(above[0])
    if i == 0:
        return 0.0
    part = (0.5 - shares[i - 1]) / (shares[i] - shares[i - 1])
    return float(numbers[i - 1] * (numbers[i] / numbers[i - 1]) ** part)


def border(numbers: Float[np.ndarray, " number"], shares: Float[np.ndarray, "number seed"]) -> Border:
    """K*, and its 95 % interval over seeds, which are drawn again for each number of chains.

    Args:
        numbers: Numbers of chains, ascending.
        shares: Of each run, how much of it is inference.
    """
    rng = np.random.default_rng(0)
    n, seeds = shares.shape
    drawn = rng.integers(seeds, size=(RESAMPLES, n, seeds))
    means = np.take_along_axis(shares[None], drawn, axis=2).mean(2)
    again = [crossing(numbers, row) for row in means]
    low, high = np.quantile(again, [0.025, 0.975], method="nearest")
    return Border(crossing(numbers, shares.mean(1)), float(low), float(high))
