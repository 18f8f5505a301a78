"""What Ildiz et al. 2024 (arXiv 2402.13512) say of a base chain: who wins, and what prompts tell of it."""

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse.csgraph import connected_components

from mechmarkov.theory.predictors import Matrix, check_tokens


def invades(base: Matrix) -> Bool[np.ndarray, "winner rare"]:
    """Whether a rare state grows where another fills the context: `B[j, k] > B[j, j]`.

    Where state j has a share near 1, a token of state k comes with probability `s_k B[j, k] / B[j, j]`, with
    `s_k` its own small share, and is followed by j. So in the logarithm of the position `s_k` grows at the
    rate `B[j, k] / B[j, j] - 1`. A context filled by j is stable iff `B[j, j]` is the largest of its row.

    Example:
        >>> invades(np.array([[0.7, 0.3], [0.6, 0.4]])).tolist()
        [[False, False], [True, False]]
    """
    return base > np.diag(base)[:, None]


def two_state_counts(
    base: Float[np.ndarray, "2 2"], length: int
) -> Float[np.ndarray, "position count state"]:
    """Two states: the exact law of how often state 1 has come and which state is last (probability).

    The first two tokens are both states, in either order alike. Each step is a sum over count and last state.

    Args:
        base: The base chain.
        length: Tokens of the sequence, at least 2.

    Returns:
        Entry `[t, n, q]`: after t + 2 tokens state 1 has come n times and the last is q; n runs to `length`.
    """
    count = np.arange(length + 1)
    law = np.zeros((length - 1, length + 1, 2))
    law[0, 1] = 0.5
    for t in range(1, length - 1):
        ones = count * base[:, 1, None]
        zeros = (t + 1 - count).clip(0) * base[:, 0, None]
        total = ones + zeros
        one = np.divide(ones, total, out=np.zeros_like(total), where=total > 0).T  # count, last state
        law[t, 1:, 1] = (law[t - 1] * one).sum(1)[:-1]
        law[t, :, 0] = (law[t - 1] * (1 - one)).sum(1)
    return law


def determined(
    prompts: Int[np.ndarray, "batch position"], n_states: int
) -> Int[np.ndarray, "state_from state"]:
    """Which ratios of the base chain prompts can tell: parts of each row's co-occurrence graph.

    Two states are joined in the graph of state q if some prompt that ends in q has both. The likelihood of
    what follows the prompts depends on row q by the ratios within a part alone, so that the base chain can be
    estimated consistently iff each row has one part (Ildiz et al., section 3).

    Returns:
        For each last state q a number for the part of each state.

    Example:
        >>> determined(np.array([[0, 1], [1, 0], [2, 1]]), n_states=3).tolist()
        [[0, 0, 1], [0, 0, 0], [0, 1, 2]]
    """
    check_tokens(prompts, n_states)
    holds = (prompts[..., None] == np.arange(n_states)).any(1).astype(int)
    parts = [holds[prompts[:, -1] == q] for q in range(n_states)]
    return np.stack([connected_components(had.T @ had, directed=False)[1] for had in parts])
