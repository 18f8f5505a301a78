"""The first layer's gradient against autograd through the model, over every sequence there is."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechmarkov.models.constructions.disentangled import DisentangledShape, disentangled_decoder
from mechmarkov.theory.causal_graph import chi_squared_information, edge_scores, finite_scores, tree_pair_laws

P3 = np.array([[0.7, 0.2, 0.1], [0.15, 0.05, 0.8], [0.3, 0.6, 0.1]])
P2 = np.array([[0.8, 0.2], [0.45, 0.55]])
TREES = [[[], [0], [0], [1], [1], [3]], [[], [0], [], [2], [0], [4]], [[], [0], [1], [2], [3]]]


def stationary(P):
    values, vectors = np.linalg.eig(P.T)
    pi = np.real(vectors[:, np.argmax(np.real(values))])
    return pi / pi.sum()


def every_sequence(parents, P, root):
    """All states of the graph's positions, and the probability of each by the definition."""
    states = np.array(list(product(range(len(P)), repeat=len(parents))))
    weights = np.ones(len(states))
    for i, each in enumerate(parents):
        weights *= P[states[:, each[0]], states[:, i]] if each else root[states[:, i]]
    return states, weights


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize("P", [P2, P3])
def test_pair_laws_are_those_of_all_sequences(parents, P):
    root = np.arange(1, len(P) + 1) / np.arange(1, len(P) + 1).sum()
    states, weights = every_sequence(parents, P, root)
    laws = tree_pair_laws(parents, P, root)
    hot = np.eye(len(P))[states]
    np.testing.assert_allclose(laws, np.einsum("n,nja,nib->jiab", weights, hot, hot), atol=1e-14)


def derivative(parents, P, eps):
    """d/dA of d/dbeta of the expected loss at A = 0 and beta = 0, by autograd through the decoder itself."""
    K, n = len(P), len(parents) + 1
    states, weights = every_sequence(parents, P, stationary(P))
    tokens = torch.tensor([[*row, q] for row in states for q in range(K)])
    weight = torch.tensor(np.repeat(weights, K) / K)
    law = torch.tensor(P)[tokens[:, -1]]
    model = disentangled_decoder(DisentangledShape(K, n, form="reduced", key_start=0.0)).double()
    A = torch.zeros(n, n, dtype=torch.float64, requires_grad=True)
    beta = torch.zeros((), dtype=torch.float64, requires_grad=True)
    first, second = (dict(model.named_parameters())[f"blocks.{i}.attn.W_Q"].detach() for i in (0, 1))
    at_0, at_1 = torch.zeros_like(first), torch.zeros_like(second)
    place = torch.arange(n) + K
    at_0 = at_0.index_put(
        (torch.zeros(n * n, dtype=int), place.repeat_interleave(n), place.repeat(n)), A.flatten()
    )
    state = torch.arange(K)
    at_1 = at_1.index_put((torch.zeros(K, dtype=int), state, K + n + state), beta.expand(K))
    put = {"blocks.0.attn.W_Q": at_0, "blocks.1.attn.W_Q": at_1}
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no second derivative
        output = torch.func.functional_call(model, put, (tokens,))[:, -1]
    loss = -(weight[:, None] * law * (output + eps).log()).sum()
    (slope,) = torch.autograd.grad(loss, beta, create_graph=True)
    (found,) = torch.autograd.grad(slope, A)
    return states, weights, found.numpy()[:-1, :-1]


def first_layer_gradient(scores, n_states):
    """dL/dA of the module's docstring at beta = 1; the input has one position more, the query."""
    keys = np.arange(1, len(scores) + 1)[:, None]
    mean = np.nansum(scores, axis=1, keepdims=True) / keys
    return np.nan_to_num(-(scores - mean) / keys / ((len(scores) + 1) * n_states))


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize(("P", "eps"), [(P2, 0.1), (P3, 1e-3)])
def test_the_gradient_of_a_finite_input_is_that_of_autograd(parents, P, eps):
    states, weights, found = derivative(parents, P, eps)
    scores = finite_scores(states, weights, P, eps=eps)
    np.testing.assert_allclose(first_layer_gradient(scores, len(P)), found, rtol=0, atol=1e-14)
    assert np.abs(found).max() > 1e-3


def test_another_chain_along_the_edges_has_another_gradient():
    states, weights, found = derivative(TREES[0], P2, 0.1)
    scores = finite_scores(states, weights, P2 @ P2, eps=0.1)
    assert np.abs(first_layer_gradient(scores, 2) - found).max() > 1e-3


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize("P", [P2, P3])
def test_the_closed_form_is_the_information_of_edges_and_bounded_by_it_elsewhere(parents, P):
    pi = stationary(P)
    scores, information = edge_scores(parents, P, pi), chi_squared_information(tree_pair_laws(parents, P, pi))
    edge = float(chi_squared_information(pi[:, None] * P))
    for i, each in enumerate(parents):
        assert abs(scores[i, i] - (np.trace(P) - 1)) < 1e-12
        for j in range(i):
            assert scores[i, j] <= np.sqrt(edge * max(0, information[j, i])) + 1e-12
            if each:
                assert information[j, i] <= edge + 1e-12
        if each:
            assert abs(scores[i, each[0]] - edge) < 1e-12
            assert scores[i, :i].argmax() == information[:i, i].argmax() == each[0]
        else:
            np.testing.assert_allclose(scores[i, :i], 0, atol=1e-12)


def test_the_edge_is_the_largest_score_for_random_trees_and_chains():
    rng = np.random.default_rng(0)
    for _ in range(50):
        P = rng.dirichlet(np.full(4, 0.3), 4)
        parents = [[], *([int(rng.integers(i))] for i in range(1, 12))]
        scores = edge_scores(parents, P, stationary(P))
        for i in range(1, 12):
            assert scores[i, :i].max() <= scores[i, parents[i][0]] + 1e-9


def test_long_inputs_have_the_closed_form():
    """Drawn sequences of 40 and 160 positions: what differs falls about as 1 / N."""
    rng = np.random.default_rng(1)
    pi, gap = stationary(P3), []
    for n in (40, 160):
        parents = [[] if i % 4 == 0 else [i - 1 - (i % 2)] for i in range(n)]
        parents = [[each[0]] if each and each[0] >= 0 else [] for each in parents]
        u, states = rng.random((20_000, n)), np.zeros((20_000, n), dtype=int)
        for i, each in enumerate(parents):
            cdf = P3.cumsum(1)[states[:, each[0]]] if each else np.broadcast_to(pi.cumsum(), (20_000, 3))
            states[:, i] = (u[:, i, None] > cdf[:, :2]).sum(1)
        found = finite_scores(states, np.full(20_000, 1 / 20_000), P3)
        exact = edge_scores(parents, P3, pi)
        edges = [(i, each[0]) for i, each in enumerate(parents) if each]
        gap.append(np.mean([abs(found[at] - exact[at]) / exact[at] for at in edges]))
    assert gap[1] < gap[0] / 2 < 0.1


def test_several_parents_are_refused():
    with pytest.raises(ValueError, match=r"^parents of position 2 are \[0, 1\], expected at most one$"):
        tree_pair_laws([[], [0], [0, 1]], P2, stationary(P2))
