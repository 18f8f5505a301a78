"""Bootstrap intervals over sequences."""

import numpy as np
from jaxtyping import Float

DRAWS = 1000


def resampled_means(
    values: Float[np.ndarray, "*lead sequence"], *, draws: int = DRAWS, seed: int = 0
) -> Float[np.ndarray, "*lead draw"]:
    """Means over sequences drawn with replacement; one draw takes the same sequences for all of `lead`."""
    n = values.shape[-1]
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws) / n
    return np.asarray(values @ weights.T)


def interval(
    values: Float[np.ndarray, "*lead sequence"],
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "*lead"], Float[np.ndarray, "*lead"]]:
    """The percentile bootstrap interval of the mean over sequences (Efron 1979), low and high.

    Example:
        >>> low, high = interval(np.arange(100.0))
        >>> bool(low < 49.5 < high)
        True
    """
    low, high = np.quantile(
        resampled_means(values, draws=draws, seed=seed), [(1 - level) / 2, (1 + level) / 2], axis=-1
    )
    return np.asarray(low), np.asarray(high)
