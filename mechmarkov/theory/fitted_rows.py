"""Each row of a table of scores against a chain's, once what a softmax or other paths may add is fitted.

A table C holds P where `softmax(slope * C_i + bias)` is P_i for one slope and one bias, of few directions. KL
from P is convex in both. Unlike a cosine of logarithms it weighs transitions by their probability.
"""

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from mechmarkov.theory.kernel import kl, row_centred
from mechmarkov.theory.predictors import Matrix


def left_of_rows(
    table: Matrix, P: Matrix, biases: Float[np.ndarray, "bias state_to"]
) -> Float[np.ndarray, " state_from"]:
    """Returns KL of each row of P from the table's at the slope and bias that fit best (nats).

    Args:
        table: Scores `[state_from, state_to]`.
        P: The transition matrix, or a law of several steps.
        biases: Scores of which any multiples may be added to all rows.

    Example:
        >>> P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]])
        >>> bias = np.array([[1.0, 0.0, -2.0]])
        >>> table = 0.5 * np.log(P) + bias
        >>> bool(left_of_rows(table, P, bias).max() < 1e-6)
        True
        >>> table[0] = table[0, ::-1]
        >>> bool(left_of_rows(table, P, bias).max() > 0.1)
        True
    """
    directions = np.stack([row_centred(table), *np.broadcast_to(biases[:, None], (len(biases), *P.shape))])
    directions = directions - directions.mean(-1, keepdims=True)
    directions /= np.maximum(np.abs(directions).max((1, 2), keepdims=True), np.finfo(float).tiny)

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        """Cross-entropy of the rows of P, and its slope along each direction."""
        logits = np.tensordot(at, directions, 1)
        value = (logsumexp(logits, axis=-1) - (P * logits).sum(-1)).sum()
        return float(value), ((softmax(logits, axis=-1) - P) * directions).sum((1, 2))

    fitted = minimize(loss, np.eye(len(directions))[0], jac=True, method="L-BFGS-B").x
    return np.asarray(kl(P, softmax(np.tensordot(fitted, directions, 1), axis=-1)))
