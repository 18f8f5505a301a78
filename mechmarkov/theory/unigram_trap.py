"""Is the unigram a trap? The Hessian of a decoder at the point where it predicts the stationary law.

Setting: Makkuva et al. 2025 (arXiv 2402.04161), any number of states, cross-entropy, no final norm. At
`theta_pi` token embeddings say nothing and the unembedding's bias is `log pi`. To second order only the
path straight from embedding to unembedding acts, with logits `<U_y, E_x> + log pi_y`, and the loss changes by
`sum_xy (pi_x pi_y - pi_x P_xy) <U_y, E_x>`.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechmarkov.theory.predictors import Matrix

# Eigenvalues of tables of probabilities are rounded at 1e-16.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class UnigramPoint:
    """The Hessian at the unigram point along the linear path.

    Attributes:
        embedding: Eigenvalues along token embeddings, ascending; each d_model times.
        bias: Eigenvalues along the unembedding's bias, ascending, without that of a logit common to all.
        growth: The rate at which gradient flow leaves the point, 0 where it does not.
        modes: Unit patterns over states of the eigenvalues in `embedding`: of `E` where weights are tied,
            else of `E` and then of `U`.
    """

    embedding: Float[np.ndarray, " mode"]
    bias: Float[np.ndarray, " pattern"]
    growth: float
    modes: Float[np.ndarray, "mode state"]

    @property
    def trap(self) -> bool:
        """Returns whether it is a local minimum along this path, up to flat directions."""
        return self.growth == 0


def unigram_point(
    P: Matrix,
    pi: Float[np.ndarray, " state"],
    *,
    tied: bool,
    within: Float[np.ndarray, "pattern state"] | None = None,
) -> UnigramPoint:
    """Eigenvalues of the Hessian at the unigram point.

    Tied: `-2 eig(C)`, `C = sym(diag(pi) P) - pi pi^T` on the complement of the all-ones vector; a trap iff
    none is negative. Untied: `± sigma(diag(pi) P - pi pi^T)`, a saddle unless tokens are independent.

    Args:
        P: The chain.
        pi: Its stationary law.
        tied: Whether the unembedding is the embedding's transpose.
        within: Orthonormal patterns over states to stay within, each adding up to zero and together invariant
            under the chain's automorphisms; by default all that add up to zero.

    Example:
        >>> P = np.array([[0.2, 0.8], [0.8, 0.2]])
        >>> unigram_point(P, np.full(2, 0.5), tied=True).embedding.round(3).tolist()  # 4 pi0 pi1 (p+q-1)
        [0.6]
    """
    n = len(P)
    joint = pi[:, None] * P - np.outer(pi, pi)
    # A logit common to all states changes nothing.
    rest = np.linalg.svd(np.ones((1, n)))[2][1:] if within is None else within
    bias = np.linalg.eigvalsh(rest @ (np.diag(pi) - np.outer(pi, pi)) @ rest.T)
    inner = rest @ joint @ rest.T
    if tied:
        values, vectors = np.linalg.eigh(-(inner + inner.T))
        modes = vectors.T @ rest
    else:
        left, sigma, right = np.linalg.svd(inner)
        values = np.concatenate([-sigma, sigma[::-1]])
        towards = np.concatenate([left.T @ rest, right @ rest], axis=1)
        against = np.concatenate([left.T @ rest, -right @ rest], axis=1)[::-1]
        modes = np.concatenate([towards, against]) / np.sqrt(2)
    lowest = float(values.min(initial=0.0))
    return UnigramPoint(values, bias, -lowest if lowest < -ROUNDING else 0.0, modes)
