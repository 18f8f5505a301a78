"""Automorphism groups against all permutations, and against groups known by name."""

from itertools import permutations
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.probing.preconditions import why_no_chain
from mechmarkov.sources import Binary, Chain, Circle, Graph
from mechmarkov.sources.sampling import symmetries as automorphisms
from mechmarkov.sources.sampling.symmetries import SymmetriesUnknownError


def brute_force(P):
    n = len(P)
    return [g for g in permutations(range(n)) if np.array_equal(P[np.ix_(g, g)], P)]


def closure(generators, n):
    """The group that permutations generate, by multiplying until nothing new comes."""
    group = {tuple(range(n))}
    frontier = list(group)
    while frontier:
        h = frontier.pop()
        for g in generators:
            product = tuple(g[i] for i in h)
            if product not in group:
                group.add(product)
                frontier.append(product)
    return sorted(group)


def shuffled(matrix, seed):
    order = np.random.default_rng(seed).permutation(len(matrix))
    return matrix[np.ix_(order, order)]


@st.composite
def few_valued(draw):
    """Matrices with many equal entries: any, symmetric, circulant or in blocks, and relabelled."""
    n = draw(st.integers(2, 6))
    values = st.integers(0, draw(st.integers(1, 3)))
    shape = draw(st.sampled_from(["any", "symmetric", "circulant", "blocks"]))
    if shape == "circulant":
        profile = np.array(draw(st.lists(values, min_size=n, max_size=n)))
        matrix = profile[(np.arange(n) - np.arange(n)[:, None]) % n]
    elif shape == "blocks":
        block = np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
        table = np.array(draw(st.lists(st.lists(values, min_size=3, max_size=3), min_size=3, max_size=3)))
        matrix = table[block][:, block] + draw(values) * np.eye(n, dtype=int)
    else:
        matrix = np.array(draw(st.lists(st.lists(values, min_size=n, max_size=n), min_size=n, max_size=n)))
        matrix = matrix + matrix.T if shape == "symmetric" else matrix
    return shuffled(matrix, draw(st.integers(0, 99))).astype(float)


@given(few_valued())
@settings(deadline=None, max_examples=60)
def test_every_automorphism_and_no_other(P):
    expected = brute_force(P)
    assert automorphisms.elements(P, limit=720) == expected
    assert automorphisms.order(P) == len(expected)
    generators = automorphisms.generators(P)
    assert closure(generators, len(P)) == expected
    assert tuple(range(len(P))) not in generators


@pytest.mark.parametrize(("p", "n_elements"), [(0.5, 40), (0.3, 20), (1.0, 20), (0.0, 20)])
def test_the_circle_has_its_rotations_and_at_one_half_its_reflections(p, n_elements):
    rotations = {tuple((i + d) % 20 for i in range(20)) for d in range(20)}
    reflections = {tuple((d - i) % 20 for i in range(20)) for d in range(20)}
    found = Circle(n_states=20, p=p).automorphisms()
    assert len(found) == n_elements
    assert found == sorted(rotations | reflections if p == 0.5 else rotations)
    assert found[0] == tuple(range(20))


def test_a_group_too_large_to_list_still_has_generators():
    uniform = Chain(np.full((20, 20), 1 / 20))
    generators = uniform.automorphism_generators()
    assert automorphisms.order(uniform.P) == factorial(20)
    assert len(generators) < 20
    # Neighbouring transpositions among them, or others that merge all orbits: the group is transitive.
    reached = {0}
    for _ in range(20):
        reached |= {g[i] for g in generators for i in reached}
    assert reached == set(range(20))
    message = (
        rf"the chain has {factorial(20)} automorphisms, more than the limit of 10000: use automorphism_gen"
    )
    with pytest.raises(ValueError, match=message):
        uniform.automorphisms()
    with pytest.raises(ValueError, match="has 6 automorphisms, more than the limit of 5"):
        Chain(np.full((3, 3), 1 / 3)).automorphisms(limit=5)


def test_an_asymmetric_chain_has_only_the_identity():
    P = np.random.default_rng(0).dirichlet(np.ones(9), 9)
    assert Chain(P).automorphisms() == [tuple(range(9))]
    assert Chain(P).automorphism_generators() == []
    assert Binary(p=0.5, q=0.8).automorphisms() == [(0, 1)]
    assert Binary(p=0.8, q=0.8).automorphisms() == [(0, 1), (1, 0)]


def test_a_direction_is_no_symmetry():
    # The cycle 0 -> 1 -> 2 -> 0 has rotations only, though its set of edges has all six permutations.
    assert len(Circle(n_states=3, p=1).automorphisms()) == 3
    assert len(Circle(n_states=3, p=0.5).automorphisms()) == 6


def cayley(steps):
    """The graph on 4 x 4 points of a torus, each joined to those a given step away."""
    points = [(a, b) for a in range(4) for b in range(4)]
    return np.array(
        [[((c - a) % 4, (d - b) % 4) in steps for c, d in points] for a, b in points], dtype=float
    )


def petersen():
    pairs = [(a, b) for a in range(5) for b in range(a)]
    return np.array([[not set(x) & set(y) for y in pairs] for x in pairs], dtype=float)


ROOK = {(0, d) for d in (1, 2, 3)} | {(d, 0) for d in (1, 2, 3)}
SHRIKHANDE = {(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)}


@pytest.mark.parametrize(
    ("graph", "n_elements"), [(petersen(), 120), (cayley(ROOK), 1152), (cayley(SHRIKHANDE), 192)]
)
def test_graphs_that_colour_refinement_alone_cannot_tell_apart(graph, n_elements):
    # Rook's and Shrikhande's graphs are strongly regular with the same parameters: only the search differs.
    P = shuffled(graph / graph.sum(axis=1, keepdims=True), seed=3)
    found = automorphisms.elements(P, limit=2000)
    assert len(found) == len(set(found)) == n_elements
    for g in found[:: len(found) // 50]:
        np.testing.assert_array_equal(P[np.ix_(g, g)], P)


def test_equal_up_to_rounding_is_equal():
    noise = np.random.default_rng(0).uniform(-1, 1, (6, 6)) * 1e-15
    assert len(automorphisms.elements(Circle(n_states=6, p=0.5).P + noise, limit=100)) == 12
    assert len(automorphisms.elements(Circle(n_states=6, p=0.5).P + 1e6 * noise, limit=100)) == 1


@pytest.mark.parametrize("seed", range(4))
def test_an_image_that_looks_right_may_lead_nowhere(seed):
    # Two triangles and a hexagon: every state has two neighbours, so colours alone tell nothing, and a state
    # of the hexagon may at first be sent to a triangle. Each triangle has 6 symmetries, they may be swapped,
    # and the hexagon has 12.
    graph = np.zeros((12, 12))
    for cycle in ([0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10, 11]):
        for i, j in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            graph[i, j] = graph[j, i] = 0.5
    assert len(automorphisms.elements(shuffled(graph, seed), limit=1000)) == 6 * 6 * 2 * 12


def latin_square_graph(n, seed):
    """Cells of a random Latin square, neighbours where row, column or symbol agree: strongly regular."""
    generator = np.random.default_rng(seed)
    square = (np.arange(n)[:, None] + np.arange(n)) % n
    for _ in range(2000):  # exchange the two symbols of a 2 x 2 subsquare, where there is one
        (r, s), (c, d) = generator.choice(n, 2, replace=False), generator.choice(n, 2, replace=False)
        if square[r, c] == square[s, d] and square[r, d] == square[s, c]:
            square[[r, s, r, s], [c, d, d, c]] = square[[r, s, r, s], [d, c, c, d]]
    row, column = np.divmod(np.arange(n * n), n)
    equal = [labels[:, None] == labels for labels in (row, column, square.ravel())]
    return np.any(equal, axis=0) & ~np.eye(n * n, dtype=bool)


def test_a_search_without_end_is_given_up_and_the_answer_is_unknown(monkeypatch):
    monkeypatch.setattr(automorphisms, "MAX_PAIRS", 2_000_000)
    edges = np.argwhere(np.triu(latin_square_graph(10, 1))).tolist()
    source = Graph(edges=edges, n_states=100)
    with pytest.raises(SymmetriesUnknownError, match="search over its 100 states was given up"):
        source.automorphism_generators()
    assert "symmetries are unknown" in why_no_chain(source, "")


def test_a_large_chain_is_not_searched():
    with pytest.raises(
        SymmetriesUnknownError, match="it has 4096 states, and they are searched for up to 512"
    ):
        Circle(n_states=4096, p=0.5).automorphism_generators()
