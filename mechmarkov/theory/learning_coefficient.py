"""Learning coefficients that are known exactly (Watanabe 2009): half the directions that count."""

import numpy as np
from jaxtyping import Float

from mechmarkov.theory.predictors import Matrix
from mechmarkov.theory.unigram_trap import unigram_point


def of_bigram_table(n_states: int) -> float:
    """`K (K - 1) / 2`, of a free table of logits at a chain with positive transitions.

    Each of its K rows has K - 1 directions that change its softmax, with a positive definite Fisher matrix.

    Example:
        >>> of_bigram_table(4)
        6.0
    """
    return n_states * (n_states - 1) / 2


def of_tied_plateau(P: Matrix, pi: Float[np.ndarray, " state"], d_model: int) -> float | None:
    """`(d + 1) (K - 1) / 2`, of tied embeddings `E` and a bias at the unigram, `E = 0`; None at a saddle.

    Logits are `E_y · E_x + b_y`. To second order the loss is `-tr(Eᵀ C E)` and the Fisher form of the bias,
    with `C = sym(diag(π) P) - π πᵀ`. Embeddings that are the same for all states change nothing, whatever
    they are: d flat directions, along which the form stays the same up to a shift of the bias. The other
    d (K - 1) count if C is negative there, and so do K - 1 of the bias.

    Example:
        >>> P = np.array([[0.3, 0.7], [0.8, 0.2]])  # p + q > 1
        >>> of_tied_plateau(P, np.array([8, 7]) / 15, d_model=3)
        2.0
        >>> of_tied_plateau(1 - P, np.array([0.4, 0.6]), d_model=3) is None
        True
    """
    if unigram_point(P, pi, tied=True).embedding.min() <= 0:
        return None
    return (d_model + 1) * (len(pi) - 1) / 2


def of_canonical_line(P: Matrix, slopes: tuple[float, float]) -> float | None:
    """1, of two tied embeddings of width 1 at 0, before an MLP without biases; None at a saddle.

    The line `e = 0` of Makkuva et al.'s coordinates (2024, arXiv 2406.03072). A relu MLP multiplies an
    embedding by one slope above 0 and by another one below, its residual connection included. To second
    order the loss is `-c (e_0 - e_1) (g_0 - g_1)`, `g` the embeddings times their slopes and
    `c = π_0 π_1 (1 - p - q)`, and the Fisher form of the bias. If `c` and the slopes have opposite signs the
    first part lies between two multiples of `(e_0 - e_1)²`. So it counts half a direction, and the bias
    another half; the MLP's weights count nothing.

    Args:
        P: The matrix of two states.
        slopes: The slopes of embeddings above 0, and below.

    Example:
        >>> P = np.array([[0.3, 0.7], [0.8, 0.2]])  # p + q > 1
        >>> of_canonical_line(P, (2.0, 1.0)), of_canonical_line(P, (2.0, -1.0))
        (1.0, None)
        >>> of_canonical_line(1 - P, (-2.0, -1.0))
        1.0
    """
    switching = P[0, 1] + P[1, 0] - 1
    return 1.0 if min(slope * switching for slope in slopes) > 0 else None
