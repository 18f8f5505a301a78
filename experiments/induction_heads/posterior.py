"""The exact posterior mean for two states and a stationary start, by quadrature over the chain."""

import numpy as np
from jaxtyping import Float, Int

NODES = 64  # on each axis


def posterior_mean(
    tokens: Int[np.ndarray, "batch position"], stationary: bool
) -> Float[np.ndarray, "batch position state"]:
    """The law of the token after each position, for a chain with both rows from Dirichlet(1).

    The integrals over `p = P(1 | 0)` and `q = P(0 | 1)` in [0, 1] are Gauss-Legendre sums: exact for
    polynomials up to degree `2 NODES - 1`, which the likelihood is with a uniform start.

    Args:
        tokens: States 0 and 1.
        stationary: Whether the first state is drawn from the chain's stationary law, or uniformly.
    """
    x, weight = np.polynomial.legendre.leggauss(NODES)
    x, weight = (x + 1) / 2, weight / 2
    p, q = np.meshgrid(x, x, indexing="ij")
    log_row = np.log(np.stack([np.stack([1 - p, p]), np.stack([q, 1 - q])]))  # [state_from, state_to, p, q]
    start = np.stack([q, p]) / (p + q) if stationary else np.full((2, *p.shape), 0.5)
    log_seen = np.log(start)[tokens[:, 0]]  # [batch, p, q]
    found = np.empty((*tokens.shape, 2))
    for t in range(tokens.shape[1]):
        if t:
            log_seen = log_seen + log_row[tokens[:, t - 1], tokens[:, t]]
        seen = np.exp(log_seen - log_seen.max((1, 2), keepdims=True)) * np.outer(weight, weight)
        one = np.exp(log_row[tokens[:, t], 1])
        found[:, t, 1] = (seen * one).sum((1, 2)) / seen.sum((1, 2))
        found[:, t, 0] = 1 - found[:, t, 1]
    return found
