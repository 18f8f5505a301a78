"""Which set of lags is selected: against the definition, drawn sequences, and integrated flow."""

from itertools import product

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from mechmarkov.theory.causal_graph import chi_squared_information
from mechmarkov.theory.lag_sets import (
    finite_scores,
    lag_sets,
    over_window,
    selection_score,
    selection_shares,
    window_law,
)

SETS = lag_sets(2, 2)


def drawn(n_states, order, n=3, concentration=0.5):
    rng = np.random.default_rng(0)
    kernels = rng.dirichlet(np.full(n_states, concentration), (n, *order * (n_states,)))
    return kernels.clip(1e-9) / kernels.clip(1e-9).sum(-1, keepdims=True)


def test_the_window_law_stays_what_it_is_and_sums_to_one():
    kernels = over_window(drawn(3, 2), (1, 3), 3)
    joint = window_law(kernels)
    np.testing.assert_allclose(joint.sum((1, 2, 3, 4)), 1, atol=1e-14)
    np.testing.assert_allclose(joint.sum(1), joint.sum(-1), atol=1e-13)  # a window later
    np.testing.assert_allclose(joint / joint.sum(-1, keepdims=True), kernels, atol=1e-12)


def test_kernels_over_a_window_read_their_lags_alone():
    kernels = drawn(2, 2)
    wide = over_window(kernels, (1, 3), 3)
    for far, middle, near in product(range(2), repeat=3):
        assert np.array_equal(wide[:, far, middle, near], kernels[:, far, near])
    with pytest.raises(ValueError, match=r"^lags are \[3, 1\], expected 2 ascending lags from 1 to 3$"):
        over_window(kernels, (3, 1), 3)
    with pytest.raises(ValueError, match=r"^lags are \[1, 4\], expected 2"):
        over_window(kernels, (1, 4), 3)
    for lags in ((2,), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"^lags are \[.*\], expected 2 ascending lags from 1 to 3$"):
            over_window(kernels, lags, 3)


def test_scores_are_their_definition():
    joint = window_law(drawn(3, 2))
    for kernel, law in enumerate(joint):
        state = law.sum((0, 1))
        for lags, pair in {(1,): law.sum(0), (2,): law.sum(1), (1, 2): law.reshape(9, 3)}.items():
            modified = sum(row.sum() ** 2 * (((row / row.sum()) ** 2 / state).sum() - 1) for row in pair)
            assert abs(selection_score(joint, lags)[kernel] - modified) < 1e-14
            information = chi_squared_information(pair)
            assert abs(selection_score(joint, lags, power=1)[kernel] - information) < 1e-12
        assert abs(selection_score(joint, ())[kernel]) < 1e-14


def test_long_inputs_have_the_closed_form():
    """Heads that copy exactly; drawn sequences of 40 and 320 positions."""
    kernels, rng, gaps = drawn(2, 2, concentration=2.0), np.random.default_rng(2), []
    kernel = kernels[:1]
    exact = np.array([selection_score(window_law(kernel), each)[0] for each in SETS])
    for length in (40, 320):
        tokens = np.zeros((20_000, length), dtype=int)
        tokens[:, :2] = rng.integers(2, size=(20_000, 2))
        for i in range(2, length):
            tokens[:, i] = rng.random(20_000) > kernel[0, tokens[:, i - 2], tokens[:, i - 1], 0]
        values = np.stack(
            [
                np.all([tokens[:, 2 - lag : length - lag] == tokens[:, -lag, None] for lag in each], axis=0)
                if each
                else np.ones((20_000, length - 2))
                for each in SETS
            ],
            axis=-1,
        ).astype(float)
        answer = kernel[0, tokens[:, -2], tokens[:, -1]]
        found = finite_scores(values, tokens[:, 2:], answer, np.full(20_000, 1 / 20_000))
        gaps.append(np.abs(found - exact).max())
    assert gaps[1] < gaps[0] / 3
    assert gaps[1] < 0.1 * exact.max()


def test_shares_are_those_of_the_integrated_flow():
    scores, a, c = np.array([0.02, 0.05, 0.01, 0.08]), 0.3, np.array([0.3, 0.5, 0.4, 0.2])

    def slope(_, at):
        shares = at**2 / (at @ at)
        return 2 * a * at / (at @ at) * (scores - shares @ scores)

    end = solve_ivp(slope, (0, 20), c, rtol=1e-11, atol=1e-12).y[:, -1]
    assert abs(end @ end - c @ c) < 1e-8
    found = selection_shares(scores, c**2 / (c @ c), a * 20 / (c @ c))
    np.testing.assert_allclose(found, end**2 / (end @ end), atol=1e-8)
    assert selection_shares(scores, c**2 / (c @ c), 1e4).round(6).tolist() == [0, 0, 0, 1]


def test_more_lags_than_the_parents_are_never_above_them():
    for order, parents in ((2, (1, 2)), (2, (1, 3)), (1, (2,))):
        joint = window_law(over_window(drawn(3, order, n=200, concentration=0.1), parents, 3))
        parent = selection_score(joint, parents)
        information = selection_score(joint, parents, power=1)
        for each in lag_sets(3, 3):
            if set(each) > set(parents):
                assert (selection_score(joint, each) <= parent + 1e-12).all()
                np.testing.assert_allclose(selection_score(joint, each, power=1), information, atol=1e-9)
