"""Laws of chains against exact fractions, boolean matrix powers and enumeration of all paths."""

import re
from fractions import Fraction
from itertools import pairwise, product
from math import gcd, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.sources import Binary, Chain, Circle
from mechmarkov.sources.sampling import law


def exact_stationary(off_diagonal):
    """`pi P = pi` in exact arithmetic; the diagonal is whatever is missing from 1."""
    n = len(off_diagonal)
    rates = [[Fraction(off_diagonal[i][j]) if i != j else Fraction(0) for j in range(n)] for i in range(n)]
    for i in range(n):
        rates[i][i] = -sum(rates[i])
    # Columns of rates give n balance equations; the last is replaced by sum(pi) = 1.
    rows = [[rates[i][j] for i in range(n)] + [Fraction(0)] for j in range(n - 1)] + [[Fraction(1)] * (n + 1)]
    for k in range(n):
        pivot = next(r for r in range(k, n) if rows[r][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [value / rows[k][k] for value in rows[k]]
        for r in range(n):
            if r != k:
                rows[r] = [a - rows[r][k] * b for a, b in zip(rows[r], rows[k], strict=True)]
    return [row[-1] for row in rows]


@st.composite
def irreducible(draw):
    """Small chains with zeros in them, irreducible because a cycle through all states is possible."""
    n = draw(st.integers(2, 7))
    weight = np.array(
        draw(st.lists(st.lists(st.integers(0, 6), min_size=n, max_size=n), min_size=n, max_size=n))
    )
    weight[np.arange(n), (np.arange(n) + 1) % n] += 1
    return weight / weight.sum(axis=1, keepdims=True)


@st.composite
def graphs(draw):
    """Which transitions are possible; every state has a way on."""
    n = draw(st.integers(1, 7))
    possible = np.array(
        draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=n, max_size=n)), dtype=bool
    )
    targets = draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n))
    possible[np.arange(n), targets] = True
    if draw(st.booleans()):  # thin ones have more classes and longer periods
        possible &= np.arange(n) == np.array(targets)[:, None]
    return possible / possible.sum(axis=1, keepdims=True)


@given(irreducible())
@settings(deadline=None, max_examples=60)
def test_stationary_is_the_left_eigenvector(P):
    pi = law.stationary(P)
    np.testing.assert_allclose(pi @ P, pi, rtol=0, atol=1e-14)
    exact = [float(value) for value in exact_stationary(P.tolist())]
    np.testing.assert_allclose(pi, exact, rtol=1e-13)
    values, vectors = np.linalg.eig(P.T)
    vector = vectors[:, np.abs(values - 1).argmin()].real
    np.testing.assert_allclose(pi, vector / vector.sum(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("coupling", [1e-4, 1e-10, 1e-15, 1e-100, 1e-300])
def test_stationary_is_accurate_in_every_digit_for_nearly_uncoupled_chains(coupling):
    # Two blocks of three states that hardly ever exchange, more often one way than the other.
    rng = np.random.default_rng(0)
    P = np.zeros((6, 6))
    P[:3, :3], P[3:, 3:] = rng.dirichlet(np.ones(3), 3), rng.dirichlet(np.ones(3), 3)
    P[2, 3], P[4, 0] = coupling, 3 * coupling
    exact = [float(value) for value in exact_stationary(P.tolist())]
    np.testing.assert_allclose(law.stationary(P), exact, rtol=1e-13)
    if coupling == 1e-15:  # where a general solver is no longer any good
        solved = np.linalg.lstsq(np.vstack([P.T - np.eye(6), np.ones(6)]), np.eye(7)[6], rcond=None)[0]
        assert np.abs(solved / exact - 1).max() > 1e-3


def test_stationary_of_rates_whose_ratios_overflow():
    np.testing.assert_array_equal(Binary(p=0.5, q=5e-324).pi, [1e-323, 1])
    # A ladder: each state is 1e-200 as likely to go up as down.
    P = np.array([[1 - 1e-200, 1e-200, 0], [1.0, 0.0, 1e-200], [0.0, 1.0, 0.0]])
    np.testing.assert_allclose(law.stationary(P), [1, 1e-200, 0], rtol=1e-14, atol=0)
    np.testing.assert_allclose(law.stationary(P[::-1, ::-1]), [0, 1e-200, 1], rtol=1e-14, atol=0)


def test_eliminate_takes_many_chains_at_once():
    P = np.random.default_rng(1).dirichlet(np.full(4, 0.5), (5, 3, 4))
    many = law.eliminate(torch.tensor(P)).numpy()
    assert many.shape == (5, 3, 4)
    one_by_one = np.array([[law.stationary(chain) for chain in chains] for chains in P])
    np.testing.assert_array_equal(many, one_by_one)


def test_transient_states_have_probability_zero():
    P = [[0.5, 0.25, 0.25, 0], [0, 0.2, 0.8, 0], [0, 0.5, 0.5, 0], [1, 0, 0, 0]]
    chain = Chain(P)
    assert chain.reducible
    assert chain.pi[0] == chain.pi[3] == 0
    np.testing.assert_allclose(chain.pi[1:3], [5 / 13, 8 / 13], rtol=1e-14)
    assert not Chain(np.array(P)[1:3, 1:3]).reducible
    assert Binary(p=0.5, q=0).reducible  # one transient state is enough
    assert Binary(p=0.5, q=0).pi.tolist() == [0, 1]


@given(graphs())
@settings(deadline=None, max_examples=80)
def test_classes_and_period_follow_from_which_paths_exist(P):
    n = len(P)
    reach = {(i, j) for i in range(n) for j in range(n) if P[i, j] > 0 or i == j}
    for k, i, j in product(range(n), repeat=3):  # Warshall
        if (i, k) in reach and (k, j) in reach:
            reach.add((i, j))
    found = {tuple(j for j in range(n) if (i, j) in reach and (j, i) in reach) for i in range(n)}
    assert law.classes(P) == sorted(found)
    closed = [c for c in sorted(found) if all(j in c for i in c for j in range(n) if (i, j) in reach)]
    assert law.closed_classes(P) == closed
    if len(closed) > 1:
        with pytest.raises(ValueError, match=f"P has {len(closed)} closed classes"):
            law.period(P)
        return
    state, returns, ways = closed[0][0], 0, np.eye(n)
    for length in range(1, 2 * n * n + 1):
        ways = (ways @ P > 0).astype(float)
        returns = gcd(returns, length) if ways[state, state] else returns
    assert law.period(P) == returns


@pytest.mark.parametrize(
    ("source", "period"),
    [
        (Circle(n_states=6, p=0.5), 2),
        (Circle(n_states=6, p=0.01), 2),
        (Circle(n_states=7, p=0.5), 1),
        (Circle(n_states=6, p=1), 6),
        (Circle(n_states=6, p=0), 6),
        (Circle(n_states=7, p=1), 7),
        (Binary(p=1, q=1), 2),
        (Binary(p=0.5, q=1), 1),
        (Binary(p=0.5, q=0), 1),  # absorbed in state 1
        (Chain([[0, 0, 0.5, 0.5], [0, 0, 0.1, 0.9], [0.3, 0.7, 0, 0], [1, 0, 0, 0]]), 2),  # bipartite
        (Chain([[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]]), 2),  # to and fro on a line
        (Chain([[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 1, 0]]), 2),
        (Chain([[0.5, 0.5, 0], [0, 0, 1], [0, 1, 0]]), 2),  # a transient state before a cycle
    ],
)
def test_period(source, period):
    assert source.period == period


def test_several_closed_classes_are_refused_by_name():
    P = np.array([[1, 0, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]])
    message = "P has 2 closed classes of states, {0}, {2, 3}, expected one: the stationary law is not unique"
    for refuse in (law.stationary, law.period, Chain):
        with pytest.raises(ValueError, match=re.escape(message)):
            refuse(P)


@pytest.mark.parametrize(
    "source",
    [Binary(p=0.5, q=0.8), Circle(n_states=3, p=0.9), Chain([[0.2, 0.8, 0], [0.5, 0.1, 0.4], [1, 0, 0]])],
)
def test_entropies_by_all_paths(source):
    # The entropy of a block of n states is that of its first state and n - 1 times the rate.
    def block(n):
        total = 0.0
        for path in product(range(source.n_states), repeat=n):
            probability = source.pi[path[0]]
            for i, j in pairwise(path):
                probability *= source.P[i, j]
            total -= probability * log(probability) if probability else 0
        return total

    assert source.unigram_entropy == pytest.approx(block(1), rel=1e-13)
    assert source.entropy_rate == pytest.approx(block(5) - block(4), rel=1e-12)


def test_entropies_in_closed_form():
    def h(x):
        return -x * log(x) - (1 - x) * log(1 - x)

    source = Binary(p=0.2, q=0.3)
    np.testing.assert_allclose(source.pi, [0.6, 0.4], rtol=1e-15)
    assert source.unigram_entropy == pytest.approx(h(0.4), rel=1e-14)
    assert source.entropy_rate == pytest.approx(0.6 * h(0.2) + 0.4 * h(0.3), rel=1e-14)
    assert Circle(n_states=6, p=1).entropy_rate == 0
    assert Circle(n_states=6, p=0.3).entropy_rate == pytest.approx(h(0.3), rel=1e-14)
    assert Circle(n_states=6, p=0.3).unigram_entropy == pytest.approx(log(6), rel=1e-14)
    assert Circle(n_states=7, p=0.3).pi.tolist() == [1 / 7] * 7


def test_laws_over_many_steps_are_repeated_products():
    source = Circle(n_states=5, p=0.3)
    expected = np.eye(5)
    for m, step in zip(range(7), source.step_laws(), strict=False):
        np.testing.assert_allclose(source.step_law(m), expected, rtol=0, atol=1e-15)
        np.testing.assert_allclose(step, expected, rtol=0, atol=1e-15)
        expected = expected @ source.P
    with pytest.raises(ValueError, match="m is -1, expected at least 0 steps"):
        source.step_law(-1)


def test_transition_matrices_as_they_are_defined():
    np.testing.assert_allclose(Binary(p=0.2, q=0.3).P, [[0.8, 0.2], [0.3, 0.7]], rtol=1e-15)
    P = Circle(n_states=4, p=0.9).P
    for i in range(4):
        assert P[i, (i + 1) % 4] == 0.9
        assert P[i, (i - 1) % 4] == pytest.approx(0.1)
        assert P[i, i] == P[i, (i + 2) % 4] == 0


def test_the_law_is_read_only():
    for source in (Binary(p=0.5, q=0.8), Circle(n_states=5, p=0.3), Chain([[0.5, 0.5], [1, 0]])):
        for array in (source.P, source.pi):
            assert array.dtype == np.float64
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_rows_that_are_off_by_rounding_become_laws():
    single = torch.tensor([[0.1, 0.2, 0.7], [1, 1, 1], [0, 0.3, 0.7]])
    chain = Chain(single / single.sum(1, keepdim=True))
    np.testing.assert_allclose(chain.P.sum(axis=1), 1, rtol=0, atol=2e-16)
    np.testing.assert_allclose(chain.step_law(10_000).sum(axis=1), 1, rtol=0, atol=1e-11)
    exact = [[0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3], [0.1, 0.2, 0.7]]
    assert Chain(exact).P.tolist() == exact  # not one bit is changed where nothing is wrong
