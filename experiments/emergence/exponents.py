"""Exponents of power laws from event times of seeds, with their intervals."""

import numpy as np
from jaxtyping import Float

RESAMPLES = 2000


def exponent(sizes: Float[np.ndarray, " size"], times: Float[np.ndarray, " size"]) -> float:
    """The slope of log time over log size by least squares, where the event came; NaN at fewer than three.

    Example:
        >>> round(exponent(np.array([1.0, 2.0, 4.0]), np.array([3.0, 12.0, 48.0])), 6)
        2.0
    """
    came = np.isfinite(times)
    if came.sum() < 3:
        return float("nan")
    return float(np.polyfit(np.log(sizes[came]), np.log(times[came]), 1)[0])


def with_interval(
    sizes: Float[np.ndarray, " size"], times: Float[np.ndarray, "size seed"]
) -> tuple[float, float, float]:
    """The exponent of median times over seeds, and its 95 % interval over seeds drawn again for each size.

    Returns:
        Low, value, high.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(times.shape[1], size=(RESAMPLES, *times.shape))
    medians = np.median(np.take_along_axis(times[None], drawn, axis=2), axis=2)
    again = np.array([exponent(sizes, row) for row in medians])
    low, high = (
        np.quantile(again[np.isfinite(again)], [0.025, 0.975]) if np.isfinite(again).any() else 2 * [np.nan]
    )
    return float(low), exponent(sizes, np.median(times, 1)), float(high)


def told(found: tuple[float, float, float]) -> str:
    """Text of an exponent.

    Example:
        >>> told((-1.25, -1.0, -0.75))
        '-1 [-1.25, -0.75]'
    """
    low, value, high = found
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"
