"""Context-conditioned Markov chains: a base chain, its rows weighted by how often each state has come.

Ildiz et al. 2024 (arXiv 2402.13512). Where state k has come `n_k` times and state q is the last,

    Pr(next = k) = n_k B[q, k] / sum_j n_j B[q, j]

with a base chain `B`. One attention layer samples this exactly: its query is the last token, its values are
the tokens, and `B` is the softmax of its token-by-token scores, row by row.
"""

import numpy as np

from mechmarkov.theory.predictors import Matrix, NextLaws, Tokens, check_tokens


def next_laws(tokens: Tokens, base: Matrix) -> NextLaws:
    """The law of the next token after each position (probability).

    Args:
        tokens: States, `[batch, position]`; each counts itself and all before it.
        base: The base chain, rows of positive numbers; a factor of a row cancels.

    Raises:
        ValueError: Tokens that are not states of the base chain.

    Example:
        >>> base = np.array([[0.75, 0.25], [0.5, 0.5]])
        >>> next_laws(np.array([[1, 0, 0]]), base)[0].round(3).tolist()
        [[0.0, 1.0], [0.75, 0.25], [0.857, 0.143]]
    """
    check_tokens(tokens, len(base))
    counts = (tokens[..., None] == np.arange(len(base))).cumsum(axis=1)
    weights = counts * base[tokens]
    return weights / weights.sum(-1, keepdims=True)
