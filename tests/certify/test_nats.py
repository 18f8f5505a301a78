"""What odds say of whole predictions: never below what any law does, and equal to it for two states."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.certify.nats import MOST, largest_kl, largest_kl_of_any, log_ratios, odds_off
from mechmarkov.theory.kernel import kl

SEEDS = st.integers(0, 2**32 - 1)


def odds_of(laws):
    """The largest log odds of every pair over some laws `[law, state]`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(laws)
        odds = logs[:, :, None] - logs[:, None]
    odds = np.where((laws == 0)[:, :, None], -np.inf, odds)
    odds[:, range(laws.shape[1]), range(laws.shape[1])] = 0.0
    return odds.max(0)


@settings(deadline=None)
@given(SEEDS, st.sampled_from([2, 3, 6, 11]), st.sampled_from([0.01, 0.3, 2.0]))
def test_no_law_within_the_odds_is_further_off(seed, n, width):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(n))
    laws = p * np.exp(width * rng.normal(size=(50, n)))
    laws /= laws.sum(1, keepdims=True)
    odds = odds_of(laws)
    low, high = log_ratios(odds, p)
    ratios = np.log(laws / p)
    assert (low <= ratios.min(0)).all()
    assert (high >= ratios.max(0)).all()
    assert largest_kl(odds, p) >= kl(p, laws).max()
    assert largest_kl_of_any(odds_off(odds, p)) >= kl(p, laws).max()
    assert odds_off(odds, p).max() >= np.ptp(ratios, axis=1).max() - 1e-9 * width or n > 2
    if n == 2:
        assert abs(largest_kl(odds, p) - kl(p, laws).max()) < 1e-8


@settings(deadline=None)
@given(SEEDS)
def test_what_the_program_holds_impossible_counts(seed):
    rng = np.random.default_rng(seed)
    p, laws = np.append(rng.dirichlet(np.ones(3)), 0.0), rng.dirichlet(np.ones(4), size=30)
    odds = odds_of(laws)
    assert largest_kl(odds, p) >= kl(p, laws).max()
    low, high = log_ratios(odds, p)
    ratios = np.log(laws[:, :3] / p[:3])
    assert (low[:3] <= ratios.min(0)).all()
    assert (high[:3] >= ratios.max(0)).all()


def test_a_state_that_may_get_no_probability_costs_what_the_floor_does():
    laws = np.array([[0.5, 0.5], [1.0, 0.0]])
    assert largest_kl(odds_of(laws), np.array([0.5, 0.5])) == MOST
    assert kl(np.array([0.5, 0.5]), laws).max() <= MOST
    assert largest_kl(odds_of(laws[1:]), np.array([1.0, 0.0])) < 1e-12  # nor does the program
    assert log_ratios(odds_of(laws), np.array([0.5, 0.5]))[0].min() == -np.inf


@pytest.mark.parametrize("n", [3, 9])
def test_many_positions_at_once_are_each_alone(n):
    rng = np.random.default_rng(n)
    laws, p = rng.dirichlet(np.ones(n), size=(4, 2, 10)), rng.dirichlet(np.ones(n), size=(4, 2))
    odds = np.array([[odds_of(own) for own in row] for row in laws])
    whole = largest_kl(odds, p)
    for at in np.ndindex(4, 2):
        assert whole[at] == largest_kl(odds[at], p[at])
