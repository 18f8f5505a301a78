"""Studies of tasks, graphs, emergence, trees and qubits, on values made by hand."""

from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mechmarkov as mm
from experiments.emergence.exponents import exponent, fitted, with_interval
from experiments.emergence.lags import LAGS, WEIGHTS, P, kernel
from experiments.graphs_in_context.geometry import energies, low_modes, overlaps
from experiments.hidden_parts.quantum import by_last_tokens
from experiments.order_and_lag import lags
from experiments.task_mixtures.border import border, crossing
from experiments.variable_order.leaves import LEAVES, leaf_of

RING = np.roll(np.eye(5), 1, 1) + np.roll(np.eye(5), -1, 1)


def test_a_border_lies_between_its_neighbours():
    numbers = np.array([2.0, 4.0, 8.0, 16.0])
    shares = np.tile(np.array([[0.0], [0.25], [0.75], [1.0]]), (1, 16))
    found = border(numbers, shares)
    assert found.value == pytest.approx(np.sqrt(32))
    assert found.low == pytest.approx(found.value) == found.high
    assert crossing(numbers, np.full(4, 0.4)) == np.inf


def test_noisy_seeds_widen_the_border():
    rng = np.random.default_rng(0)
    numbers = 2.0 ** np.arange(1, 7)
    steep = 1 / (1 + np.exp(-2 * (np.log2(numbers)[:, None] - 3.5 + rng.normal(size=(6, 16)))))
    found = border(numbers, steep)
    assert found.low < found.value < found.high
    assert found.low < 2**3.5 < found.high


def test_a_head_selects_lags_it_looks_at(monkeypatch):
    mass = np.zeros((2, 2, 1, 2))  # of a sequence of each lag, two heads
    mass[0, :, 0, 0] = mass[1, 0, 0, 1] = mass[1, 1, 0, 0] = 1
    monkeypatch.setattr(lags, "at_lags", lambda *_: mass)
    source = SimpleNamespace(posterior=lambda tokens: np.eye(2)[:, None], lags=(1, 2))
    run = SimpleNamespace(source=source, model=lambda: None)
    assert lags.selects(run, torch.zeros(2, 1)).tolist() == [[True, True], [True, False]]


def test_an_exponent_is_found_with_its_interval():
    sizes = np.array([8.0, 16, 32, 64, 128])
    times = sizes[:, None] ** 2 * np.exp(np.random.default_rng(0).normal(size=(5, 16)) / 10)
    ((low, value, high),) = with_interval(sizes[:, None], times)
    assert low < 2 < high
    assert value == pytest.approx(2, abs=0.1)
    assert exponent(sizes, np.array([1, 2, 4, np.inf, np.inf])) == pytest.approx(1)
    assert np.isnan(exponent(sizes, np.array([1, 2, np.inf, np.inf, np.inf])))


def test_two_exponents_are_found_at_once():
    """Cells in which the event did not come are left out."""
    cells = np.array(list(product([4.0, 8, 16], [10.0, 20, 40])))
    times = 100 * cells[:, 0] ** -0.5 * cells[:, 1] ** 1.5
    missing = np.where(np.arange(9) == 4, np.inf, times)
    exponents, again = fitted(cells, missing)
    np.testing.assert_allclose(exponents, [-0.5, 1.5])
    np.testing.assert_allclose(again, times)
    found = with_interval(cells, np.tile(missing[:, None], 5))
    np.testing.assert_allclose(found, np.repeat([[-0.5], [1.5]], 3, axis=1))


def test_the_kernel_mixes_rows_at_its_lags():
    table = kernel()
    np.testing.assert_allclose(table.sum(-1), 1, atol=1e-12)
    for history in list(product(range(3), repeat=max(LAGS)))[::37]:
        expected = np.zeros(3)
        for lag, weight in zip(LAGS, WEIGHTS, strict=True):
            expected += weight * P[history[-lag]]
        np.testing.assert_allclose(table[history], expected, atol=1e-12)


def test_shuffled_nodes_have_energy_one_on_average():
    at = np.random.default_rng(0).normal(size=(5, 7))
    every = np.stack([at[list(order)] for order in permutations(range(5))])
    assert energies(every, RING).mean() == pytest.approx(1, abs=1e-12)
    assert overlaps(every, low_modes(RING)).mean() == pytest.approx(0.5, abs=1e-12)


def test_a_pentagon_is_low_and_a_pentagram_high():
    angle = 2 * np.pi * np.arange(5) / 5
    shapes = [np.stack([np.cos(k * angle), np.sin(k * angle)], -1)[None] for k in (1, 2)]
    assert energies(shapes[0], RING)[0] < 1 < energies(shapes[1], RING)[0]
    assert overlaps(shapes[0], low_modes(RING))[0] == pytest.approx(1)
    assert overlaps(shapes[1], low_modes(RING))[0] == pytest.approx(0, abs=1e-12)


def test_every_past_ends_with_its_leaf():
    pasts = np.array(list(product(range(2), repeat=4)))
    contexts = list(LEAVES)
    for past, leaf in zip(pasts, leaf_of(pasts)[:, -1], strict=True):
        assert tuple(past[-len(contexts[leaf]) :]) == contexts[leaf]
    assert (leaf_of(pasts)[:, :2] == -1).all()


def test_a_projected_qubit_is_its_last_token():
    from_one = by_last_tokens(mm.sources.GeneralisedHiddenMarkov.qubit(turn=1.0, strength=1.0), 8)
    assert from_one[:4] == pytest.approx(1, abs=1e-9)  # longer words may be new to a reading
    weakly = by_last_tokens(mm.sources.GeneralisedHiddenMarkov.qubit(turn=1.0, strength=0.8), 8)
    assert (np.diff(weakly) > 0).all()
    assert weakly[0] < 0.9
