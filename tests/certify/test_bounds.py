"""Bounds of log odds against every sequence: never below what a model does, and equal to it for one head."""

import numpy as np
import pytest
import torch
from certify_cases import bounds_of, largest_odds, one_layer, small_run
from probing_cases import RAW_LOG, SHAPES, run_of

from mechmarkov.certify.bounds.ball import EXACT, FLOAT32
from mechmarkov.objectives import Objective
from mechmarkov.sources import Chain, Circle

SOFTMAX, RAW = Objective(), Objective(kind="raw_log", read="last")
ONE_LAYER = [shape for shape in SHAPES if shape not in ("three layers",)]


def is_above(bound, odds, slack=0.0):
    """Whether bounds hold, where both are of contexts that exist."""
    some = np.isfinite(odds).any((2, 3))
    return bool((bound.log_odds[some] >= odds[some] - slack).all())


@pytest.mark.parametrize("unit", [EXACT, FLOAT32])
@pytest.mark.parametrize("shape", ONE_LAYER)
def test_no_sequence_has_larger_odds_in_any_architecture(shape, unit):
    for seed in range(2):
        run = one_layer(shape, seed=seed)
        bound, odds = bounds_of(run, unit), largest_odds(run, unit)
        assert np.isfinite(bound.log_odds).all()
        assert is_above(bound, odds)
        assert np.array_equal(bound.exists, np.isfinite(odds).any((2, 3)))


@pytest.mark.parametrize(
    "shape",
    ["plain", "shortformer", "rotary", "relative", "relative bias", "ALiBi", "no positions", "window"],
)
def test_of_one_head_the_bound_is_what_the_worst_sequence_has(shape):
    run = one_layer(shape, n_heads=1, scale=1.0)
    bound, odds = bounds_of(run, EXACT), largest_odds(run, EXACT)
    np.testing.assert_allclose(bound.log_odds, odds, rtol=0, atol=1e-9)
    single = bounds_of(run, FLOAT32)
    assert is_above(single, odds)  # what is covered in float32 covers exact arithmetic too
    np.testing.assert_allclose(single.log_odds, odds, rtol=0, atol=2e-2)  # sines take most of it


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_brute_force_agrees_on_random_small_models(count):
    """One to three heads, 2 to 4 states, up to 8 positions, a softmax or raw scores, all paths or some."""
    rng, finite, exact = np.random.default_rng(count), 0, 0
    for _ in range(count):
        run = small_run(rng)
        odds = largest_odds(run, EXACT)
        bound = bounds_of(run, EXACT)
        assert np.array_equal(bound.exists, np.isfinite(odds).any((2, 3)))
        assert is_above(bound, odds)
        some = bound.exists
        finite += bool(np.isfinite(bound.log_odds[some]).all())
        if run.config.n_heads == 1 and np.isfinite(bound.log_odds[some]).all():
            np.testing.assert_allclose(bound.log_odds[some], odds[some], rtol=0, atol=1e-9)
            exact += 1
        single = bounds_of(run, FLOAT32)
        assert is_above(single, odds)
        assert is_above(single, largest_odds(run, FLOAT32))
    assert finite > 0.6 * count
    assert exact > 0.15 * count


def test_a_walk_that_may_not_stay_has_the_odds_of_its_own_paths():
    """Without its forbidden transitions the same model has larger odds."""
    walk = Circle(n_states=4, p=0.3)
    run = one_layer("plain", RAW_LOG, n_heads=1, scale=0.4, source=walk, n_ctx=7)
    run.states["unembed.b_U"] += 6.0
    bound, odds = bounds_of(run, EXACT), largest_odds(run, EXACT)
    np.testing.assert_allclose(bound.log_odds, odds, rtol=0, atol=1e-9)
    free = run_of(run.model(), source=Chain(np.full((4, 4), 0.25)), objective=RAW_LOG)
    assert (bounds_of(free, EXACT).log_odds > bound.log_odds + 1e-3).any()


def test_a_score_that_may_be_zero_has_no_odds_and_one_that_always_is_has_none_either():
    run = one_layer("plain", RAW, n_heads=1, scale=0.4)
    run.states["unembed.b_U"][:] = torch.tensor([[-50.0, 6.0, 6.0]])
    bound, odds = bounds_of(run), largest_odds(run)
    assert (bound.log_odds[:, :, 0, 1:] == -np.inf).all()  # never positive
    assert (bound.log_odds[:, :, 1:, 0] == np.inf).all()
    assert is_above(bound, odds)
    run.states["unembed.b_U"][:] = torch.tensor([[-50.0, -50.0, -50.0]])
    assert (bounds_of(run).log_odds == 0).all()  # uniform
    run.states["unembed.b_U"][:] = torch.tensor([[-50.0, -50.0, 0.0]])  # uniform in some contexts
    assert np.isin(largest_odds(run)[:, :, :2, :2], 0.0).any()
    assert is_above(bounds_of(run), largest_odds(run))


def test_a_law_without_a_sequence_of_that_parent_has_no_bound_there():
    absorbing = Chain([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.3, 0.3, 0.4]])  # state 2 is left for good
    bound = bounds_of(one_layer("plain", source=absorbing))
    assert bound.exists[:, :2].all()
    assert not bound.exists[:, 2].any()
