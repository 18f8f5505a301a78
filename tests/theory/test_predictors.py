"""Predictors against enumeration of all paths, numerical integration over chains and plain loops."""

import tracemalloc
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.sources import (
    Binary,
    Chain,
    Circle,
    DirichletChains,
    DoublyStochastic,
    Graph,
    LaggedChain,
    OrderK,
    Switch,
)
from mechmarkov.theory import predictors

THREE = Chain([[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]])
SOURCES = [
    Binary(p=0.2, q=0.3),
    Circle(n_states=5, p=0.3),
    THREE,
    DirichletChains(n_states=3, concentration=0.7),
    DirichletChains(n_states=3, start="uniform"),
    DirichletChains(n_states=3, rows="alike"),
    DoublyStochastic(n_states=2),
    Graph(edges=[[0, 1], [1, 2, 3.0], [0, 2]], n_states=3),
    LaggedChain([[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]], lag=5),
    OrderK(np.random.default_rng(0).dirichlet(np.ones(2), (2,) * 6)),  # longer than some sequences are
    Switch(p=0.2, q=0.3, lag=2),
]


def posterior_by_integration(tokens, concentration, stationary):
    """The posterior mean of the next token's law for two states, `[batch, position, state]`.

    The chain is `(a, b) = (Pr(1 | 0), Pr(0 | 1))`, each from Beta(c, c). Gauss's rule with 400 x 400
    nodes: in every case here the weight is a polynomial in a and b, times 1 / (a + b) where the start is
    stationary.
    """
    node, weight = np.polynomial.legendre.leggauss(400)
    a, b = np.meshgrid((node + 1) / 2, (node + 1) / 2, indexing="ij")
    prior = np.outer(weight, weight) * (a * (1 - a) * b * (1 - b)) ** (concentration - 1)
    P = np.array([[1 - a, a], [b, 1 - b]])
    start = np.array([b, a]) / (a + b) if stationary else np.full((2, *a.shape), 0.5)
    mean = np.empty((*tokens.shape, 2))
    for i, sequence in enumerate(tokens):
        posterior = prior * start[sequence[0]]
        for t, x in enumerate(sequence):
            if t:
                posterior = posterior * P[sequence[t - 1], x]
            mean[i, t] = [(posterior * P[x, j]).sum() / posterior.sum() for j in (0, 1)]
    return mean


def all_tokens(n_states, length):
    return np.array(list(product(range(n_states), repeat=length)))


@pytest.mark.parametrize("concentration", [1.0, 2.0, 4.0])
def test_with_a_uniform_start_smoothed_counts_are_the_posterior_mean(concentration):
    source = DirichletChains(n_states=2, concentration=concentration, start="uniform")
    best = source.best()
    assert best.exact
    assert "exact posterior mean" in best.label
    tokens = all_tokens(2, 6)
    expected = posterior_by_integration(tokens, concentration, stationary=False)
    np.testing.assert_allclose(best.probabilities(tokens), expected, rtol=0, atol=1e-12)


def test_with_a_stationary_start_smoothed_counts_are_close_and_say_so():
    source = DirichletChains(n_states=2, start="stationary")
    assert isinstance(source.best(), str)
    assert "no closed form" in source.best()
    rule = source.predictors()["in_context_bigram"]
    assert not rule.exact
    assert "close to the posterior mean (stationary start)" in rule.label

    # After one token: Pr(1 | 0) is on average 4/3 (1 - log 2), by hand, not 1/2.
    first = posterior_by_integration(np.array([[0]]), 1.0, stationary=True)[0, 0]
    np.testing.assert_allclose(first[1], 4 / 3 * (1 - np.log(2)), rtol=0, atol=1e-6)

    tokens = source.sample(40, 60, generator=torch.Generator().manual_seed(0)).numpy()
    exact = posterior_by_integration(tokens, 1.0, stationary=True)
    gap = np.abs(rule.probabilities(tokens) - exact).max(axis=-1)
    assert gap[:, :6].min(axis=1).max() > 1e-3
    assert (gap[:, 0] > 0.09).all()
    by_position = gap.mean(axis=0)
    blocks = by_position.reshape(6, 10).mean(axis=1)
    assert (np.diff(blocks) < 0).all()  # the first token is forgotten
    assert by_position[-10:].mean() < by_position[0] / 10


@pytest.mark.parametrize("concentration", [0.5, 1.0])
def test_three_states_by_importance_weights(concentration):
    # Chains from the prior, weighted by the likelihood of the tokens under a uniform start.
    rng = np.random.default_rng(0)
    chains = rng.dirichlet(np.full(3, concentration), (200_000, 3))
    tokens = np.array([[0, 1, 1, 2, 0, 1], [2, 2, 2, 2, 2, 2], [1, 0, 2, 1, 0, 2]])
    found = predictors.in_context_bigram(tokens, 3, concentration)
    for i, sequence in enumerate(tokens):
        weight = np.ones(len(chains))
        for t, x in enumerate(sequence):
            if t:
                weight = weight * chains[:, sequence[t - 1], x]
            share = weight / weight.sum()
            mean = share @ chains[:, x]
            error = np.sqrt((share**2) @ (chains[:, x] - mean) ** 2)
            assert error.max() < 5e-3
            np.testing.assert_array_less(np.abs(found[i, t] - mean), 5 * error)


@given(
    st.integers(2, 5), st.integers(1, 9), st.sampled_from([1e-3, 0.5, 1.0, 3.0]), st.integers(0, 2**32 - 1)
)
@settings(deadline=None, max_examples=50)
def test_counts_by_a_plain_loop(n_states, length, concentration, seed):
    tokens = np.random.default_rng(seed).integers(n_states, size=(3, length))
    unigram = predictors.in_context_unigram(tokens, n_states, concentration)
    bigram = predictors.in_context_bigram(tokens, n_states, concentration)
    for i, sequence in enumerate(tokens.tolist()):
        for t in range(length):
            seen = sequence[: t + 1]
            after = [y for x, y in pairwise(seen) if x == seen[-1]]
            for j in range(n_states):
                expected = (seen.count(j) + concentration) / (len(seen) + n_states * concentration)
                assert unigram[i, t, j] == pytest.approx(expected, rel=1e-14)
                expected = (after.count(j) + concentration) / (len(after) + n_states * concentration)
                assert bigram[i, t, j] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("source", [Binary(p=0.2, q=0.3), THREE], ids=repr)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_k_steps_by_enumeration_of_all_paths(source, k):
    n, length = source.n_states, 5
    paths = all_tokens(n, length + 1)  # one more than is read: the predicted token
    probability = source.pi[paths[:, 0]].copy()
    for t in range(length):
        probability *= source.P[paths[:, t], paths[:, t + 1]]
    tokens = paths[:, :-1]
    found = predictors.k_step(tokens, np.linalg.matrix_power(source.P, k), source.pi, k)
    for t in range(length):
        known = np.zeros(len(paths), dtype=int) if t - k + 1 < 0 else paths[:, t - k + 1]
        joint = np.zeros((n, n))
        np.add.at(joint, (known, paths[:, t + 1]), probability)
        conditional = joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-300)
        possible = joint.sum(axis=1)[known] > 0
        np.testing.assert_allclose(found[possible, t], conditional[known[possible]], rtol=0, atol=1e-14)
    if k > 1:
        np.testing.assert_array_equal(source.predictors()[f"step_{k}"].probabilities(tokens), found)


def test_the_predictors_of_a_fixed_chain():
    tokens = THREE.sample(4, 7, generator=torch.Generator().manual_seed(0)).numpy()
    rules = THREE.predictors()
    assert list(rules) == ["uniform", "unigram", "bigram", "step_2", "step_3", "step_4"]
    assert all(rule.exact and rule.name == name and "\n" not in rule.label for name, rule in rules.items())
    assert THREE.best().name == "bigram"
    for i, t in np.ndindex(*tokens.shape):
        assert rules["uniform"].probabilities(tokens)[i, t].tolist() == [1 / 3] * 3
        assert rules["unigram"].probabilities(tokens)[i, t].tolist() == THREE.pi.tolist()
        assert rules["bigram"].probabilities(tokens)[i, t].tolist() == THREE.P[tokens[i, t]].tolist()
    fresh = DirichletChains(n_states=3).predictors()
    assert list(fresh) == ["uniform", "in_context_unigram", "in_context_bigram"]
    assert [rule.exact for rule in fresh.values()] == [True, False, False]


@pytest.mark.parametrize("source", SOURCES, ids=repr)
def test_every_predictor_gives_laws_from_the_past_alone(source):
    generator = torch.Generator().manual_seed(0)
    tokens = source.sample(5, 12, generator=generator).numpy()
    for rule in source.predictors().values():
        law = rule.probabilities(tokens)
        assert law.shape == (5, 12, source.n_states)
        assert law.dtype == np.float64
        assert law.min() >= 0
        np.testing.assert_allclose(law.sum(axis=-1), 1, rtol=0, atol=1e-14)
        for t in (0, 1, 4, 10):
            changed = tokens.copy()
            changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % source.n_states
            np.testing.assert_array_equal(rule.probabilities(changed)[:, : t + 1], law[:, : t + 1])
            np.testing.assert_array_equal(rule.probabilities(tokens[:, : t + 1]), law[:, : t + 1])


def test_a_large_batch_needs_no_table_per_position():
    # Counts [batch, position, K, K] in float64 would take 1.3 GB here; the answer and one table take 13 MB.
    tokens = np.random.default_rng(0).integers(200, size=(2, 2_000))
    tracemalloc.start()
    law = predictors.in_context_bigram(tokens, 200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * law.nbytes + 1e6
    np.testing.assert_allclose(law.sum(axis=-1), 1, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "predict",
    [
        lambda tokens: predictors.uniform(tokens, 2),
        lambda tokens: predictors.unigram(tokens, np.array([0.5, 0.5])),
        lambda tokens: predictors.bigram(tokens, np.full((2, 2), 0.5)),
        lambda tokens: predictors.k_step(tokens, np.full((2, 2), 0.5), np.array([0.5, 0.5]), 2),
        lambda tokens: predictors.in_context_unigram(tokens, 2),
        lambda tokens: predictors.in_context_bigram(tokens, 2),
    ],
)
def test_tokens_that_are_no_states_are_refused(predict):
    with pytest.raises(ValueError, match="tokens run from -1 to 1, expected states from 0 to 1"):
        predict(np.array([[0, -1, 1]]))
    with pytest.raises(ValueError, match="tokens run from 0 to 2, expected states from 0 to 1"):
        predict(np.array([[0, 2, 1]]))
    with pytest.raises(ValueError, match="tokens run from 0 to 3, expected states from 0 to 1"):
        predict(np.array([[0, 3, 1]]))


def test_a_lag_of_zero_is_refused():
    with pytest.raises(ValueError, match="k is 0, expected a lag of at least 1"):
        predictors.k_step(np.array([[0]]), np.full((2, 2), 0.5), np.array([0.5, 0.5]), 0)
