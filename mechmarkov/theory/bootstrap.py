"""Bootstrap intervals over sequences."""

import numpy as np
from jaxtyping import Float

DRAWS = 1000
DRAWN = 1 << 21  # means at a time, 16 MB: a trajectory has millions of effects


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
    rows = values.reshape(-1, values.shape[-1])
    ends = [(1 - level) / 2, (1 + level) / 2]
    size = max(1, DRAWN // draws)
    found = [
        np.quantile(resampled_means(rows[at : at + size], draws=draws, seed=seed), ends, axis=-1)
        for at in range(0, max(1, len(rows)), size)
    ]
    low, high = np.concatenate(found, axis=1).reshape(2, *values.shape[:-1])
    return np.asarray(low), np.asarray(high)
