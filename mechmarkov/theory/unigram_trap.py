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


# Of sums over rows: kernels that were written with few digits are meant too.
MAX_OFF = 1e-6


@dataclass(frozen=True, eq=False)
class UnigramPoint:
    """The Hessian at the unigram point along the linear path.

    Attributes:
        embedding: Eigenvalues along token embeddings, ascending; each d_model times.
        bias: Eigenvalues along the unembedding's bias, ascending, without that of a logit common to all.
        growth: Minus the lowest eigenvalue of `embedding`, the rate at which gradient flow leaves the point;
            0 where none is negative beyond rounding.
        modes: Unit patterns of the eigenvalues in `embedding`, `[mode, state]`; with untied weights
            `[mode, 2 state]`, the part of `E` and then that of `U`.
    """

    embedding: Float[np.ndarray, " mode"]
    bias: Float[np.ndarray, " pattern"]
    growth: float
    modes: Float[np.ndarray, "mode weight"]

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
    none is negative, that is where `growth` is 0 (an eigenvalue of 0 may come out as -1e-16).
    Untied: `± sigma(diag(pi) P - pi pi^T)`, a saddle unless tokens are independent.

    Args:
        P: The chain.
        pi: Its stationary law.
        tied: Whether the unembedding is the embedding's transpose.
        within: Orthonormal patterns over states to stay within, each adding up to zero and together invariant
            under the chain's automorphisms; by default all that add up to zero.

    Raises:
        ValueError: A row of `P` is not a law, `pi` is not stationary, or a pattern does not add up to zero.

    Example:
        >>> P = np.array([[0.2, 0.8], [0.8, 0.2]])
        >>> unigram_point(P, np.full(2, 0.5), tied=True).embedding.round(3).tolist()  # 4 pi0 pi1 (p+q-1)
        [0.6]
    """
    P, pi = np.asarray(P, dtype=float), np.asarray(pi, dtype=float)
    _check(P, pi, within)
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


def _check(P: np.ndarray, pi: np.ndarray, within: Float[np.ndarray, "pattern state"] | None) -> None:
    """Refuse what is not a chain, its stationary law and patterns that add up to zero."""
    if P.ndim != 2 or P.shape[0] != P.shape[1] or pi.shape != P.shape[:1]:
        raise ValueError(f"P has shape {P.shape} and pi {pi.shape}, expected (K, K) and (K,)")
    if not (P.min() >= 0 and np.abs(P.sum(1) - 1).max() <= MAX_OFF):
        row = int((np.abs(P.sum(1) - 1) + np.maximum(-P.min(1), 0)).argmax())
        raise ValueError(f"P[{row}] is {P[row].tolist()}, expected a law: nothing below 0, sum 1")
    if not (off := float(np.abs(pi @ P - pi).max())) <= MAX_OFF:
        raise ValueError(
            f"pi is not stationary under P: pi P differs by {off:.3g}, expected at most {MAX_OFF:g}"
        )
    if within is not None and not np.abs(sums := within.sum(1)).max(initial=0.0) <= MAX_OFF:
        at = int(np.abs(sums).argmax())
        raise ValueError(f"within[{at}] adds up to {sums[at]:.3g}, expected 0")
