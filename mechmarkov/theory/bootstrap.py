"""Intervals over sequences: the bootstrap, standard errors of means and ratios, and Wilson's."""

from functools import lru_cache
from math import ceil, floor

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri, stdtrit
from scipy.stats import binomtest

DRAWS = 1000
DRAWN = 1 << 21  # means at a time, 16 MB: a trajectory has millions of effects


def resampled_means(
    values: Float[np.ndarray, "*lead sequence"], *, draws: int = DRAWS, seed: int = 0
) -> Float[np.ndarray, "*lead draw"]:
    """Bootstrap draws of the mean over sequences: means over sequences drawn with replacement (Efron 1979).

    One draw takes the same sequences for all of `lead`, so that differences and ratios of draws make sense.

    Example:
        >>> draws = resampled_means(np.arange(100.0))
        >>> draws.shape, bool(abs(draws.mean() - 49.5) < 0.5)
        ((1000,), True)
    """
    return np.asarray(values @ _weights(values.shape[-1], draws, seed).T)


@lru_cache(maxsize=2)  # a probe asks for hundreds of intervals over the same sequences
def _weights(n: int, draws: int, seed: int) -> Float[np.ndarray, "draw sequence"]:
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws) / n


def interval(
    values: Float[np.ndarray, "*lead sequence"], *, level: float = 0.95, draws: int = DRAWS
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
    bounds = [
        np.quantile(resampled_means(rows[at : at + size], draws=draws), ends, axis=-1)
        for at in range(0, max(1, len(rows)), size)
    ]
    low, high = np.concatenate(bounds, axis=1).reshape(2, *values.shape[:-1])
    return np.asarray(low), np.asarray(high)


def standard_error(values: Float[np.ndarray, "*lead sequence"]) -> Float[np.ndarray, "*lead"]:
    """The standard error of the mean over sequences, for an interval of 1.96 on either side.

    Infinite for one sequence.

    Example:
        >>> float(standard_error(np.array([1.0, 1.0, 3.0, 3.0])).round(3))
        0.577
    """
    n = values.shape[-1]
    if n == 1:
        return np.full(values.shape[:-1], np.inf)
    return np.asarray(values.std(-1) / np.sqrt(n - 1))


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval (1927) of a share of `n` trials; of a half hit, from one hit less to one more.

    Args:
        share: The hits over the trials, from 0 to 1.
        n: The number of trials.

    Raises:
        ValueError: A share that is not from 0 to 1, such as a number of hits.

    Example:
        >>> [round(end, 3) for end in wilson(1.0, 64)], [round(end, 3) for end in wilson(0.5, 100)]
        ([0.943, 1.0], [0.404, 0.596])
        >>> wilson(0.5, 1) == (wilson(0.0, 1)[0], wilson(1.0, 1)[1])
        True
    """
    hits = round(2 * share * n) / 2
    if not 0 <= hits <= n:
        raise ValueError(f"share is {share}, expected hits over trials, from 0 to 1")
    low, high = (binomtest(k, int(n)).proportion_ci(method="wilson") for k in (floor(hits), ceil(hits)))
    return float(low.low), float(high.high)


def ratio(
    part: Float[np.ndarray, "*lead sequence"], whole: Float[np.ndarray, " sequence"]
) -> tuple[Float[np.ndarray, "*lead"], Float[np.ndarray, "*lead"]]:
    """A ratio of means over sequences, and its standard error to first order (delta method).

    Example:
        >>> [float(x) for x in ratio(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))]
        [0.5, 0.0]
    """
    value = np.asarray(part.mean(-1) / whole.mean())
    return value, np.asarray(standard_error(part - value[..., None] * whole) / abs(whole.mean()))


def mean_after(
    parents: Int[np.ndarray, "batch read"], values: Float[np.ndarray, "batch read"], n_states: int
) -> tuple[Float[np.ndarray, " state_from"], Float[np.ndarray, " state_from"]]:
    """Returns the mean of values after each parent state, and its standard error over sequences.

    NaN for a state that is never a parent. Few sequences show too little spread, so that the error is
    the standard error times Student's t over 1.96; it is infinite for a state that only one sequence has.

    Example:
        >>> mean, error = mean_after(np.array([[0, 1], [0, 1]]), np.array([[1.0, 2.0], [1.0, 2.0]]), 2)
        >>> mean.tolist(), error.tolist()
        ([1.0, 2.0], [0.0, 0.0])
    """
    n = len(parents)
    place = (np.arange(n)[:, None] * n_states + parents).ravel()
    total, count = (
        np.bincount(place, weights, n * n_states).reshape(n, n_states).T for weights in (values.ravel(), None)
    )  # [state_from, sequence]
    have = (count > 0).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total.sum(1) / count.sum(1)
        error = standard_error(total - mean[:, None] * count) / count.mean(1)
        error *= stdtrit(np.maximum(have - 1, 1), 0.975) / ndtri(0.975)
    return mean, np.where(have == 1, np.inf, error)
