"""Walks on a graph named anew in each sequence: against the sum over all names of its nodes."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from enumeration import EXACT, assert_drawn, assert_optimal, assert_posterior, generator, table

from mechmarkov.sources import RelabelledGraph

PATH = {"edges": [[0, 1], [1, 2]], "n_states": 3}
KITE = {"edges": [[0, 1], [1, 2], [2, 0], [2, 3, 2.0]], "n_states": 4}
LOOP = {"edges": [[0, 0], [0, 1], [1, 2, 3.0]], "n_states": 3}
CASES = [
    RelabelledGraph(graph=PATH),
    RelabelledGraph(graph=KITE),
    RelabelledGraph(graph=LOOP),
    RelabelledGraph(graph=PATH, endpoint=1, at=3),
    RelabelledGraph(graph=PATH, endpoint=0, at=2),
    RelabelledGraph(graph=KITE, endpoint=3, at=3),
    RelabelledGraph(graph=LOOP, endpoint=2, at=5),
]


def weights(graph, names):
    """The graph's weights between tokens; node i is token names[i]."""
    W = np.zeros((graph["n_states"],) * 2)
    for i, j, weight in ((*edge, 1.0)[:3] for edge in graph["edges"]):
        W[names[i], names[j]] = W[names[j], names[i]] = weight
    return W


def free(W, x):
    """Of a stationary walk: by degree, then by edge."""
    steps = [W[a, b] / W[a].sum() for a, b in pairwise(x)]
    return W[x[0]].sum() / W.sum() * np.prod(steps)


def walk(source, graph, names):
    """The law of one graph's sequences, by summing over all walks up to the endpoint."""
    W = weights(graph, names)
    if source.endpoint is None:
        return lambda x: free(W, x)
    n, missing = len(W), lambda x: max(source.at + 1 - len(x), 0)
    at_end = W[source.endpoint].sum() / W.sum()

    def law(x):
        if len(x) > source.at and x[source.at] != source.endpoint:
            return 0.0
        rest = np.ndindex(*(n,) * missing(x))
        walks = (tuple(x) + tail for tail in rest)
        if missing(x):
            walks = (w for w in walks if w[-1] == source.endpoint)
        return sum(free(W, w) for w in walks) / at_end

    return law


def law_of(source, graph):
    laws = [walk(source, graph, names) for names in permutations(range(graph["n_states"]))]
    return lambda x: np.mean([law(x) for law in laws])


BOTH = list(zip(CASES, [PATH, KITE, LOOP, PATH, PATH, KITE, LOOP], strict=True))


@pytest.mark.parametrize(("source", "graph"), BOTH, ids=repr)
def test_sequences_and_best_against_all_short_sequences(source, graph):
    joint = table(law_of(source, graph), source.n_states, 4)
    assert_drawn(source, joint)
    assert_optimal(source, joint)
    assert source.best().name == "belief_over_graphs"


@pytest.mark.parametrize(("source", "graph"), BOTH, ids=repr)
def test_the_posterior_is_bayes_rule_over_graphs(source, graph):
    tokens = source.sample(5, 4, generator=generator()).numpy()
    laws = [walk(source, graph, names) for names in source.relabelled.tolist()]
    assert_posterior(source.posterior(tokens), tokens, lambda x: [law(x) for law in laws])


def test_graphs_that_symmetries_share_count_once():
    assert [len(source.relabelled) for source in CASES[:3]] == [3, 12, 6]
    square = {"edges": [[0, 1], [1, 2], [2, 3], [3, 0]], "n_states": 4}
    assert len(RelabelledGraph(graph=square).relabelled) == 3


def test_every_walk_is_at_its_endpoint():
    source = CASES[5]
    tokens, which = source.sample_with_hidden(50, 9, generator=generator())
    assert (tokens[:, 3] == 3).all()
    W = np.stack([weights(KITE, names) for names in source.relabelled.tolist()])[which.numpy()]
    for x, own in zip(tokens.tolist(), W, strict=True):
        assert all(own[a, b] > 0 for a, b in pairwise(x))
    assert (source.sample(50, 2, generator=generator()) == tokens[:, :2]).all()


def test_neighbours_are_those_seen_in_either_order():
    law = CASES[1].predictors()["neighbours"].probabilities(np.array([[0, 1, 2, 1, 0]]))[0]
    expected = [[0, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0]]
    np.testing.assert_allclose(law, np.array(expected) / np.sum(expected, 1, keepdims=True), **EXACT)


def test_tokens_that_no_graph_makes_leave_all_alike():
    source = CASES[0]
    found = source.posterior(np.array([[0, 0, 1]]))[0]
    np.testing.assert_allclose(found[1:], np.full((2, 3), 1 / 3), **EXACT)
    laws = source.best().probabilities(np.array([[0, 0, 1]]))
    np.testing.assert_allclose(laws.sum(-1), 1, **EXACT)


def test_each_graph_is_drawn():
    tokens, which = CASES[0].sample_with_hidden(3000, 2, generator=torch.Generator().manual_seed(1))
    assert tokens.shape == (3000, 2)
    assert min(which.bincount().tolist()) > 850
