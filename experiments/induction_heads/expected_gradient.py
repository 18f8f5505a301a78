"""Expected gradients of the minimal model at v = 0, exact, for two states and uniformly drawn chains.

The loss is read at the last of T + 1 tokens, as in appendix B, and chains start in their stationary law. Let
M_i be the mean of P^0 ... P^i. Then the first gradient of W, and to leading order in W that of v, are

    E[dL/dW_ab] = pi_b sum_i sum_s (1/2 - P_as) (M_i)_bs (P^(T-i))_sa
    E[dL/dv_n] = A sum_{i >= n} sum_us (1/2 - P_us) pi_u (P^(T-i))_su ((P^n)_us - (M_i)_us) / (i + 1)

where W = A I + B 1 1^T. Means over both switching probabilities, uniform on [0, 1], are Gauss-Legendre sums.
"""

import numpy as np
from einops import einsum
from jaxtyping import Float

NODES = 60  # an axis; 120 give the same to nine digits up to T = 1024
POWER = 3  # nodes are cubes, so that they are dense where a chain hardly leaves a state
ENTRIES = 2_000_000  # of the largest array at once

Chains = tuple[Float[np.ndarray, " chain"], Float[np.ndarray, " chain"]]


def chains() -> tuple[Chains, Float[np.ndarray, " chain"]]:
    """Both switching probabilities on a grid, and the weight of each pair; weights sum to 1."""
    x, weight = np.polynomial.legendre.leggauss(NODES)
    x, weight = (x + 1) / 2, weight / 2
    p, weight = x**POWER, weight * POWER * x ** (POWER - 1)
    there, back = np.meshgrid(p, p, indexing="ij")
    return (there.ravel(), back.ravel()), np.outer(weight, weight).ravel()


def powers(
    pair: Chains, length: int
) -> tuple[Float[np.ndarray, "chain state"], Float[np.ndarray, "chain power state_from state_to"]]:
    """Stationary laws, and the powers 0 to `length` of each chain."""
    p, q = pair
    stationary = np.stack([q / (p + q), p / (p + q)], axis=-1)
    decay = (1 - p - q)[:, None] ** np.arange(length + 1)
    deviation = np.eye(2) - stationary[:, None, :]
    return stationary, stationary[:, None, None, :] + deviation[:, None] * decay[..., None, None]


def _over_powers(
    P: Float[np.ndarray, "chain power state_from state_to"],
) -> Float[np.ndarray, "chain power state_from state_to"]:
    """M_i, the mean of the powers up to each."""
    return P.cumsum(1) / np.arange(1, P.shape[1] + 1)[:, None, None]


def of_W(pair: Chains, length: int) -> Float[np.ndarray, "chain state key_state"]:
    """E[dL/dW] at W = 0, for each chain."""
    stationary, P = powers(pair, length)
    return einsum(
        0.5 - P[:, 1], stationary, _over_powers(P), P[:, ::-1], "c a s, c b, c i b s, c i s a -> c a b"
    )


def of_v(pair: Chains, length: int) -> Float[np.ndarray, "chain lag"]:
    """E[dL/dv] for A = 1, for each chain; what all entries of W share adds nothing."""
    stationary, P = powers(pair, length)
    weight = P[:, ::-1].swapaxes(-1, -2) / np.arange(1, length + 2)[:, None, None]  # [chain, i, u, s]
    each = weight[:, ::-1].cumsum(1)[:, ::-1]  # over i from each lag on
    mean = (weight * _over_powers(P))[:, ::-1].cumsum(1)[:, ::-1]
    return einsum((0.5 - P[:, 1]) * stationary[..., None], each * P - mean, "c u s, c n u s -> c n")


def expected(length: int) -> tuple[Float[np.ndarray, "state key_state"], Float[np.ndarray, " lag"]]:
    """Both gradients, in expectation over chains drawn uniformly."""
    (p, q), weight = chains()
    W, v = np.zeros((2, 2)), np.zeros(length + 1)
    for part in np.array_split(np.arange(len(p)), max(1, len(p) * length // ENTRIES)):
        pair = p[part], q[part]
        W += einsum(weight[part], of_W(pair, length), "c, c a b -> a b")
        v += einsum(weight[part], of_v(pair, length), "c, c n -> n")
    return W, v


def signal(n: int) -> float:
    """E[sum_us pi_u^2 P_us (pi_s - (P^n)_us)], to which the gradient of v_n is proportional (lemma B.2)."""
    pair, weight = chains()
    stationary, P = powers(pair, n)
    by_chain = einsum(
        stationary**2, powers(pair, 1)[1][:, 1], stationary[:, None, :] - P[:, n], "c u, c u s, c u s -> c"
    )
    return float(weight @ by_chain)
