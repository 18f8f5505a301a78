"""Walks on graphs against the walk's definition, enumerated."""

import math

import numpy as np
import pytest
import torch
from enumeration import assert_deterministic, assert_drawn, path_probability, table
from oracles import assert_laws

from mechmarkov.sources import Circle, FixedChain, Graph

WEIGHTS = [[0.0, 1.0, 2.5], [1.0, 0.5, 0.0], [2.5, 0.0, 0.0]]
ONE_WAY = [[0.0, 3.0, 1.0], [0.0, 1.0, 1.0], [2.0, 0.0, 0.0]]
LEFT = [[1.0, 1.0, 0.0], [0.0, 1.0, 2.0], [0.0, 1.0, 0.0]]  # node 0 is left for good
GRAPHS = [Graph(weights=WEIGHTS), Graph(weights=ONE_WAY, directed=True), Graph(weights=LEFT, directed=True)]


def all_walks(weights, length):
    """Each step leaves by an edge in proportion to its weight; the start is where lazy walks end up."""
    step = [[weight / sum(row) for weight in row] for row in weights]
    start = np.linalg.matrix_power((np.eye(len(step)) + step) / 2, 1 << 12)[0]
    return table(lambda x: path_probability(start, step, x), len(step), length)


@pytest.mark.parametrize("source", GRAPHS, ids=repr)
def test_laws_and_samples_by_enumeration(source):
    joint = all_walks(source.weights, 5)
    assert_laws(source, joint)
    assert_drawn(source, all_walks(source.weights, 4))
    assert_deterministic(source)
    assert isinstance(source, FixedChain)


def test_the_stationary_law_of_an_undirected_graph_is_its_degrees():
    rng = np.random.default_rng(0)
    W = rng.integers(0, 4, (12, 12)) * rng.random((12, 12))
    W = W + W.T + np.eye(12)
    source = Graph(weights=W)
    degrees = [math.fsum(row) for row in W]
    np.testing.assert_array_equal(source.pi, np.array(degrees) / math.fsum(degrees))
    np.testing.assert_allclose(source.pi @ source.P, source.pi, rtol=0, atol=1e-15)
    flow = source.pi[:, None] * source.P  # a walk on an undirected graph is reversible
    np.testing.assert_allclose(flow, flow.T, rtol=0, atol=1e-16)


def test_edges_are_weights():
    edges = [[0, 1], [0, 2, 2.5], [1, 1, 0.5]]
    assert Graph(edges=edges, n_states=3).weight_matrix.tolist() == WEIGHTS
    one_way = [[0, 1, 3], [0, 2], [1, 1], [1, 2], [2, 0, 2]]
    assert Graph(edges=one_way, n_states=3, directed=True).weight_matrix.tolist() == ONE_WAY
    ring = [[i, (i + 1) % 6] for i in range(6)]
    np.testing.assert_array_equal(Graph(edges=np.array(ring), n_states=6).P, Circle(n_states=6, p=0.5).P)
    assert Graph(edges=ring, n_states=6).pi.tolist() == Circle(n_states=6, p=0.5).pi.tolist()
    assert len(Graph(edges=ring, n_states=6).automorphisms()) == 12


def test_scale_changes_nothing_and_tiny_weights_count():
    np.testing.assert_allclose(Graph(weights=np.array(WEIGHTS) * 1e90).P, GRAPHS[0].P, rtol=1e-15)
    uneven = Graph(weights=[[1e100, 1e-100], [1e-100, 0]])
    assert uneven.P[0].tolist() == [1.0, 1e-200]
    assert uneven.pi[1] == pytest.approx(1e-200, rel=1e-14)


def test_names_and_titles():
    source = Graph(weights=WEIGHTS, labels=["hall", "attic", "cellar"])
    assert source.labels == ("hall", "attic", "cellar")
    assert Graph(weights=WEIGHTS).labels == ("0", "1", "2")
    assert source.title() == "Walk on a graph of 3 nodes, 3 edges"
    assert GRAPHS[1].title() == "Walk on a directed graph of 3 nodes, 5 edges"
    assert Graph(edges=[[0, 1]], n_states=2).title() == "Walk on a graph of 2 nodes, 1 edge"


def test_arrays_become_plain_numbers():
    edges = [[0, 1, 1.0], [1, 2, 0.5], [2, 2, 1.0]]
    assert Graph(weights=torch.tensor(WEIGHTS)) == Graph(weights=WEIGHTS)
    assert Graph(edges=edges, n_states=np.int64(3)).n_states == 3


TWO = [[0, 1], [1, 0]]
