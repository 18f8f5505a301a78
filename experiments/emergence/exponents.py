"""Exponents of power laws from event times of seeds, with their intervals."""

import numpy as np
from jaxtyping import Float

RESAMPLES = 2000


def fitted(
    sizes: Float[np.ndarray, "cell kind"], times: Float[np.ndarray, " cell"]
) -> tuple[Float[np.ndarray, " kind"], Float[np.ndarray, " cell"]]:
    """Fit `t = c Π size^exponent` by least squares of logarithms, over the cells where the event came.

    Returns:
        The exponents, and the times of the fit; all NaN where the event came in too few cells, at most
        one more than there are exponents.

    Example:
        >>> exponents, times = fitted(np.array([[1.0], [2.0], [4.0]]), np.array([3.0, 12.0, 48.0]))
        >>> exponents.round(6).tolist(), times.round(6).tolist()
        ([2.0], [3.0, 12.0, 48.0])
    """
    came, kinds = np.isfinite(times), sizes.shape[1]
    if came.sum() < kinds + 2:
        return np.full(kinds, np.nan), np.full(len(times), np.nan)
    features = np.column_stack([np.log(sizes), np.ones(len(sizes))])
    solution = np.linalg.lstsq(features[came], np.log(times[came]), rcond=None)[0]
    return solution[:-1], np.exp(features @ solution)


def exponent(sizes: Float[np.ndarray, " size"], times: Float[np.ndarray, " size"]) -> float:
    """The exponent of one size; NaN where the event came at fewer than three sizes."""
    return float(fitted(sizes[:, None], times)[0][0])


def with_interval(
    sizes: Float[np.ndarray, "cell kind"], times: Float[np.ndarray, "cell seed"]
) -> Float[np.ndarray, "kind bound"]:
    """The exponents of median times over seeds, and their 95 % intervals, by drawing each cell's seeds again.

    Returns:
        Low, value, high of each exponent.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(times.shape[1], size=(RESAMPLES, *times.shape))
    medians = np.median(np.take_along_axis(times[None], drawn, axis=2), axis=2)
    again = np.array([fitted(sizes, row)[0] for row in medians])
    again = again[np.isfinite(again).all(1)]
    low, high = (
        np.quantile(again, [0.025, 0.975], axis=0) if len(again) else np.full((2, sizes.shape[1]), np.nan)
    )
    return np.stack([low, fitted(sizes, np.median(times, 1))[0], high], axis=1)


def told(found: Float[np.ndarray, " bound"]) -> str:
    """Text of an exponent.

    Example:
        >>> told(np.array([-1.25, -1.0, -0.75]))
        '-1 [-1.25, -0.75]'
    """
    low, value, high = found
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"
