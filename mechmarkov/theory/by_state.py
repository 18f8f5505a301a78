"""Means over the predictions that follow each parent state, with their error over sequences."""

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri, stdtrit

from mechmarkov.theory.bootstrap import standard_error


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
