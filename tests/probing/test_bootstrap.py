"""Bootstrap intervals: those of SciPy, however many rows are resampled at a time."""

import numpy as np
import pytest
import scipy.stats

from mechmarkov.theory import bootstrap
from mechmarkov.theory.bootstrap import interval, resampled_means, standard_error


@pytest.mark.parametrize("at_a_time", [1, 3000, 1 << 30])
def test_rows_at_a_time_are_all_rows(monkeypatch, at_a_time):
    values = np.random.default_rng(0).normal(size=(5, 2, 40))
    low, high = np.quantile(resampled_means(values), [0.025, 0.975], axis=-1)
    monkeypatch.setattr(bootstrap, "DRAWN", at_a_time)
    found = interval(values)
    np.testing.assert_allclose(found[0], low, rtol=1e-12)
    np.testing.assert_allclose(found[1], high, rtol=1e-12)


def test_it_is_the_percentile_interval_of_scipy():
    values = np.random.default_rng(1).exponential(size=300)
    theirs = scipy.stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=0)
    low, high = interval(values, draws=20_000)
    error = values.std() / np.sqrt(len(values))
    # Both ends are quantiles of 20 000 random means: they are known to about 2 % of a standard error.
    assert low == pytest.approx(theirs.confidence_interval.low, abs=0.1 * error)
    assert high == pytest.approx(theirs.confidence_interval.high, abs=0.1 * error)


def test_what_is_not_there_stays_so_and_nothing_has_no_interval():
    low, high = interval(np.full((2, 3), np.nan))
    assert np.isnan(low).all()
    assert np.isnan(high).all()
    assert interval(np.zeros((0, 3)))[0].shape == (0,)


def held(make) -> int:
    """How many of the 95 % intervals hold the true mean, 0."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        values, groups = make(rng)
        found += abs(values.mean()) <= 1.96 * standard_error(values, groups)
    return found


@pytest.mark.parametrize("count", [3, 8, 40])
def test_intervals_over_sequences_that_share_a_chain_hold_the_mean_in_ninety_five_percent(count):
    def make(rng):
        groups = rng.integers(count, size=128)
        return rng.normal(size=count)[groups] + 0.5 * rng.normal(size=128), groups

    # Of 200 draws at 95 % fewer than 181 come out once in two hundred.
    assert held(make) >= 181
    alone = held(lambda rng: (make(rng)[0], None))
    assert alone < 150  # as if sequences were independent: too narrow
    assert 181 <= held(lambda rng: (rng.exponential(size=128) - 1, None)) <= 199


def test_one_group_has_no_error():
    assert standard_error(np.arange(4.0), np.zeros(4, dtype=int)) == np.inf
