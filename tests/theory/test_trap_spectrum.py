"""The closed-form spectrum of the trap against a dense Hessian by automatic differentiation."""

import numpy as np
import pytest
import torch

from mechmarkov.theory.walk.trap_spectrum import trap_spectrum

EPS = 0.1


def dense_hessian(n_states, length, norm, alpha, query_logit):
    """Hessian of the population loss in V and u at V = alpha J, the query's logit shifted, plain torch."""
    K, N = n_states, length
    walks = (torch.arange(K)[:, None] + torch.arange(N)) % K
    x = torch.nn.functional.one_hot(walks[:, :-1], K).double()
    label = walks[:, -1]

    def loss(theta):
        V, token, position = theta[: K * K].view(K, K), theta[K * K : K * K + K], theta[K * K + K :]
        logits = norm**2 * position + torch.cat([norm * x @ token, torch.zeros(K, 1)], dim=1)
        S = logits.softmax(-1)
        scores = torch.einsum("yx,bnx,bn->by", V, x, S[:, :-1])
        return -(scores[torch.arange(K), label] + EPS).log().mean()

    theta = torch.zeros(K * K + K + N, dtype=torch.float64)
    theta[: K * K] = alpha
    theta[-1] = query_logit / norm**2
    return torch.autograd.functional.hessian(loss, theta).numpy()


def outside(n_states, length):
    """An orthonormal basis of V with rows adding up to zero, and of attention that does over tokens."""
    K, N = n_states, length
    rest = np.linalg.svd(np.ones((1, K)))[2][1:]
    position = np.linalg.svd(np.ones((1, N - 1)))[2][1:]
    basis = np.zeros((K * K + K + N, K * (K - 1) + (K - 1) + (N - 2)))
    basis[: K * K, : K * (K - 1)] = np.kron(np.eye(K), rest.T)
    basis[K * K : K * K + K, K * (K - 1) : K * (K - 1) + K - 1] = rest.T
    basis[K * K + K : -1, -(N - 2) :] = position.T
    return basis


@pytest.mark.parametrize(
    ("n_states", "length", "norm", "alpha", "query_logit"),
    [
        (3, 7, 1.0, 0.0, 0.0),
        (3, 7, 2.0, 1.3, 0.0),
        (4, 13, 3.0, 0.4, -2.0),
        (5, 11, 1.5, 2.0, 3.0),
        (2, 9, 4.0, 0.7, -30.0),
    ],
)
def test_every_eigenvalue_is_the_closed_form(n_states, length, norm, alpha, query_logit):
    hessian = dense_hessian(n_states, length, norm, alpha, query_logit)
    basis = outside(n_states, length)
    measured = np.linalg.eigvalsh(basis.T @ hessian @ basis)
    weight = np.exp(query_logit)
    query_mass = weight / (length - 1 + weight)
    z = alpha * (1 - query_mass)
    found = trap_spectrum(
        n_states=n_states,
        length=length,
        position_norm=norm,
        alpha=alpha,
        query_mass=query_mass,
        slope=-1 / (z + EPS),
    )
    assert len(found.eigenvalues) == n_states**2 + length - 3 == len(measured)
    scale = np.abs(measured).max()
    assert found.eigenvalues == pytest.approx(measured, abs=1e-9 * scale)
    assert max(found.growth_position, found.growth_token) == pytest.approx(-measured[0], rel=1e-9)
    # Nothing couples the two subspaces, or judging one alone would mean nothing.
    inside = np.linalg.svd(basis.T)[2][basis.shape[1] :].T
    assert np.abs(inside.T @ hessian @ basis).max() < 1e-9 * scale


def test_the_rate_of_the_papers_first_step():
    # At zero: c = |l'(0)| |p|² / N sqrt(r/K) and no pull.
    found = trap_spectrum(
        n_states=6, length=97, position_norm=np.sqrt(500.5), alpha=0.0, query_mass=1 / 97, slope=-10.0
    )
    assert found.growth_position == pytest.approx(10 * 500.5 / 97 * np.sqrt(16 / 6))
    assert found.growth_token == pytest.approx(10 * np.sqrt(500.5) / 97 * 16 / np.sqrt(6))
    assert (found.coupling, found.pull) == (pytest.approx(found.growth_position), 0)
    assert found.growing_position == pytest.approx((np.sqrt(0.5), np.sqrt(0.5)))
    assert found.growing_token == pytest.approx((np.sqrt(0.5), np.sqrt(0.5)))


def test_where_states_are_not_read_alike_there_is_no_trap():
    with pytest.raises(ValueError, match="n_states is 6, expected a divisor of length - 1 = 98"):
        trap_spectrum(n_states=6, length=99, position_norm=1.0, alpha=0.0, query_mass=0.0, slope=-1.0)
