"""Sequences along a graph against the Dirichlet-multinomial law of all short ones, and against chains."""

from collections import Counter
from itertools import product
from math import lgamma

import numpy as np
import pytest
import torch
from enumeration import assert_drawn, assert_optimal, generator, table

from mechmarkov.sources import CausalGraph, DirichletChains
from mechmarkov.theory import predictors

TREE = [[], [0], [0], [], [1], [3]]
BOTH = [[], [], [0, 1], [1], [0, 2], [4, 2]]
GRAPHS = {
    "tree": (2, TREE, 1.0),
    "path": (3, [[], [0], [1], [2], [3]], 0.5),
    "query": (3, [[], [0], [0], [], [3]], 0.1),
    "two parents": (2, BOTH, 0.7),
    "order of parents": (2, [[], [], [1, 0], [0, 1], [2, 3]], 0.3),
}


def probability(x, n_states, parents, a):
    """Roots are uniform; a row with counts c has the Dirichlet-multinomial weight of its draws in turn."""
    log_p = -np.log(n_states) * sum(not each for each in parents)
    edges = Counter()
    for i, each in enumerate(parents):
        if each:
            edges[len(each), tuple(x[j] for j in each), x[i]] += 1
    rows = Counter()
    for (m, row, _), count in edges.items():
        rows[m, row] += count
        log_p += lgamma(a + count) - lgamma(a)
    for count in rows.values():
        log_p += lgamma(n_states * a) - lgamma(n_states * a + count)
    return float(np.exp(log_p))


@pytest.mark.parametrize("name", GRAPHS)
def test_counts_along_the_graph_are_the_conditional_law_of_every_short_sequence(name):
    n_states, parents, a = GRAPHS[name]
    source = CausalGraph(n_states=n_states, parents=parents, concentration=a)
    joint = table(lambda x: probability(x, n_states, parents, a), n_states, len(parents))
    assert_optimal(source, joint)
    assert_drawn(source, joint)


def test_counts_along_another_graph_are_not_optimal():
    joint = table(lambda x: probability(x, 2, TREE, 1.0), 2, len(TREE))
    path = CausalGraph(n_states=2, parents=[[], *([i] for i in range(5))])
    with pytest.raises(AssertionError):
        assert_optimal(path, joint)


@pytest.mark.parametrize("start", ["uniform", "stationary"])
def test_the_path_graph_draws_in_context_chains_bit_for_bit(start):
    parents = [[], *([i] for i in range(19))]
    path = CausalGraph(n_states=4, parents=parents, concentration=0.3, start=start)
    chains = DirichletChains(n_states=4, concentration=0.3, start=start)
    tokens = path.sample(500, 20, generator=generator())
    assert torch.equal(tokens, chains.sample(500, 20, generator=generator()))
    known = tokens[:, :-1].numpy()
    np.testing.assert_array_equal(
        path.predictors()["in_context_graph"].probabilities(known),
        predictors.in_context_bigram(known, 4, 0.3),
    )
    assert isinstance(path.best(), str) == isinstance(chains.best(), str) == (start == "stationary")


def test_roots_are_stationary_and_the_query_is_uniform():
    parents = [[], [0], [], [], [3]]
    source = CausalGraph(n_states=3, parents=parents, concentration=0.5, start="stationary")
    tokens, P = source.sample_with_hidden(40_000, 5, generator=generator())
    pi = np.linalg.matrix_power(P.numpy(), 1 << 40)[:, 0]
    for root, law in ((0, pi), (2, pi), (3, np.full_like(pi, 1 / 3))):
        hits = np.eye(3)[tokens[:, root].numpy()]
        sigma = np.sqrt((law * (1 - law)).sum(0))
        np.testing.assert_array_less(np.abs((hits - law).sum(0)), 5 * sigma)
        np.testing.assert_array_less(np.abs(((hits - law) * pi).sum(0)), 5 * sigma)
    rows = P.numpy()[np.arange(40_000), tokens[:, 3].numpy()]
    answers = np.eye(3)[tokens[:, 4].numpy()]
    np.testing.assert_array_less(np.abs((answers - rows).sum(0)), 5 * np.sqrt((rows * (1 - rows)).sum(0)))


def test_what_it_refuses_and_says_of_itself():
    source = CausalGraph(n_states=3, parents=[[], [0], [0, 1]])
    assert source.redraws
    assert source.length == 3
    assert source.sample_chains(2, generator=generator()).shape == (2, 12, 3)
    assert "kernel per sequence" in source.title()
    with pytest.raises(ValueError, match=r"^length is 4, expected 3"):
        source.sample(1, 4, generator=generator())
    with pytest.raises(ValueError, match=r"^tokens have 3 positions, expected at most 2"):
        source.best().probabilities(np.zeros((1, 3), dtype=int))


def test_every_history_has_a_law():
    source = CausalGraph(n_states=2, parents=BOTH)
    histories = np.array(list(product(range(2), repeat=5)))
    for rule in source.predictors().values():
        np.testing.assert_allclose(rule.probabilities(histories).sum(-1), 1, atol=1e-12)


def test_parents_at_the_last_lags_are_an_order():
    source = CausalGraph.of_lags(3, length=9, lags=(1, 2), concentration=0.5)
    tokens = source.sample(20, 9, generator=generator()).numpy()[:, :-1]
    found = source.best().probabilities(tokens)[:, 1:]
    np.testing.assert_allclose(found, predictors.in_context_order(tokens, 3, 2, 0.5)[:, 1:], atol=1e-14)
    other = CausalGraph.of_lags(3, length=9, lags=(1, 3), concentration=0.5)
    assert other.parents[3:5] == ((0, 2), (1, 3))
    assert np.abs(other.best().probabilities(tokens)[:, 1:] - found).max() > 0.1


@pytest.mark.parametrize("lags", [(), (0,), (2, 2), (1, 5)])
def test_lags_that_are_wrong(lags):
    with pytest.raises(ValueError, match=r"^lags are \[.*\], expected different ones from 1 to 4$"):
        CausalGraph.of_lags(2, length=5, lags=lags)
