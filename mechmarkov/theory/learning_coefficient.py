"""Learning coefficients that are known exactly (Watanabe 2009): half the directions that count."""

import numpy as np
from jaxtyping import Float


def of_bigram_table(n_states: int) -> float:
    """`K (K - 1) / 2`, of a free table of logits at a chain with positive transitions.

    Each of its K rows has K - 1 directions that change its softmax, with a positive definite Fisher matrix.

    Example:
        >>> of_bigram_table(4)
        6.0
    """
    return n_states * (n_states - 1) / 2


def of_tied_plateau(
    P: Float[np.ndarray, "state_from state_to"], pi: Float[np.ndarray, " state"], d_model: int
) -> float | None:
    """`(d + 1) (K - 1) / 2`, of tied embeddings `E` and a bias at the unigram, `E = 0`; None at a saddle.

    Logits are `E_y · E_x + b_y`. To second order the loss is `-tr(Eᵀ C E)` and the Fisher form of the bias,
    with `C = sym(diag(π) P) - π πᵀ`. Embeddings that are the same for all states change nothing, whatever
    they are: d flat directions, along which the form stays the same up to a shift of the bias. The other
    d (K - 1) count if C is negative there, and so do K - 1 of the bias.

    Example:
        >>> P = np.array([[0.3, 0.7], [0.8, 0.2]])  # p + q > 1
        >>> of_tied_plateau(P, np.array([8, 7]) / 15, d_model=3)
        2.0
        >>> of_tied_plateau(1 - P, np.array([7, 8]) / 15, d_model=3) is None
        True
    """
    n = len(pi)
    joint = pi[:, None] * P
    C = (joint + joint.T) / 2 - np.outer(pi, pi)
    across = np.linalg.svd(np.ones((1, n)))[2][1:]  # directions that sum to 0
    if np.linalg.eigvalsh(across @ C @ across.T).max() >= 0:
        return None
    return (d_model + 1) * (n - 1) / 2
