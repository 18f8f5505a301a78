"""The Hessian at the unigram point against a dense one by automatic differentiation."""

import numpy as np
import pytest
import torch

from mechmarkov.sources import Binary, Chain, Circle
from mechmarkov.theory.unigram_trap import unigram_point

P3 = [[0.7, 0.2, 0.1], [0.15, 0.05, 0.8], [0.3, 0.6, 0.1]]
SOURCES = [Binary(p=0.8, q=0.8), Binary(p=0.2, q=0.3), Chain(P3), Circle(n_states=5, p=0.9)]


def dense(source, d, tied):
    P, pi = torch.tensor(source.P), torch.tensor(source.pi)
    n = len(P)

    def loss(theta):
        E = theta[: n * d].view(n, d)
        U = E if tied else theta[n * d : 2 * n * d].view(n, d)
        logits = E @ U.T + pi.log() + theta[-n:]
        return -(pi[:, None] * P * logits.log_softmax(-1)).sum()

    size = n * d * (1 if tied else 2) + n
    zero = torch.zeros(size, dtype=torch.float64)
    return np.linalg.eigvalsh(torch.autograd.functional.hessian(loss, zero).numpy())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.title())
def test_every_eigenvalue_is_that_of_the_dense_hessian(source, tied):
    d = 3
    point = unigram_point(np.array(source.P), np.array(source.pi), tied=tied)
    flat = (d if tied else 2 * d) + 1  # what is common to all states
    predicted = np.sort(np.concatenate([np.repeat(point.embedding, d), point.bias, np.zeros(flat)]))
    assert predicted == pytest.approx(dense(source, d, tied), abs=1e-12)
    assert point.growth == pytest.approx(max(0.0, -predicted[0]), abs=1e-12)


@pytest.mark.parametrize(("p", "q"), [(0.8, 0.8), (0.5, 0.8), (0.2, 0.3)])
def test_two_states_in_closed_form(p, q):
    source = Binary(p=p, q=q)
    pi0, pi1 = source.pi
    tied = unigram_point(np.array(source.P), np.array(source.pi), tied=True)
    untied = unigram_point(np.array(source.P), np.array(source.pi), tied=False)
    # Twice the values for one scalar logit, as a softmax over two has two.
    assert tied.embedding == pytest.approx([4 * pi0 * pi1 * (p + q - 1)])
    assert tied.trap == (p + q > 1)
    assert untied.embedding == pytest.approx(2 * pi0 * pi1 * abs(p + q - 1) * np.array([-1, 1]))
    assert not untied.trap
    assert tied.bias == untied.bias == pytest.approx([2 * pi0 * pi1])


def test_modes_are_unit_patterns_whose_curvature_is_the_eigenvalue():
    P, pi = np.array(P3), np.array(Chain(P3).pi)
    against = np.outer(pi, pi) - pi[:, None] * P
    for tied in (True, False):
        point = unigram_point(P, pi, tied=tied)
        for value, mode in zip(point.embedding, point.modes, strict=True):
            E, U = (mode, mode) if tied else (mode[:3], mode[3:])
            assert np.linalg.norm(mode) == pytest.approx(1)
            assert 2 * E @ against @ U == pytest.approx(value)


def test_independent_tokens_are_flat_and_a_basis_restricts():
    P, pi = np.tile([0.3, 0.7], (2, 1)), np.array([0.3, 0.7])
    assert unigram_point(P, pi, tied=False).trap
    circle = Circle(n_states=4, p=0.9)
    odd = np.array([[1.0, 0.0, -1.0, 0.0]]) / np.sqrt(2)
    one = unigram_point(np.array(circle.P), np.array(circle.pi), tied=True, within=odd)
    assert one.embedding == pytest.approx([-2 * float(odd[0] @ circle.P @ odd[0]) / 4])
