"""Bootstrap intervals: those of SciPy, however many rows are resampled at a time."""

import numpy as np
import pytest
import scipy.stats

from mechmarkov.theory import bootstrap
from mechmarkov.theory.bootstrap import interval, mean_after, ratio, resampled_means, standard_error, wilson


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


@pytest.mark.parametrize("n", [2, 3, 10])
def test_standard_errors_are_those_of_scipy(n):
    values = np.random.default_rng(n).normal(size=(4, n))
    np.testing.assert_allclose(standard_error(values), scipy.stats.sem(values, axis=-1), rtol=1e-12)


def test_the_error_of_a_ratio_is_that_of_small_changes_of_the_weights():
    """The infinitesimal jackknife: how the ratio moves with the weight of each sequence, by differences."""
    rng = np.random.default_rng(0)
    part, whole, n, step = rng.normal(size=12), -rng.uniform(1, 3, size=12), 12, 1e-6
    moved = []
    for i in range(n):
        weights = np.ones((2, n))
        weights[:, i] += (step, -step)
        up, down = (w @ part / (w @ whole) for w in weights)
        moved.append((up - down) / (2 * step))
    value, error = ratio(part, whole)
    assert value == pytest.approx(part.sum() / whole.sum(), rel=1e-12)
    assert error == pytest.approx(np.sqrt(np.square(moved).sum() * n / (n - 1)), rel=1e-6)


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (3, 10), (64, 64), (1, 1000)])
def test_intervals_of_shares_are_scipys(hits, n):
    expected = scipy.stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_few_sequences_of_a_state_have_students_error():
    """Four sequences have state 0 and two state 1: t of 3 and of 1 degrees of freedom, over the normal's."""
    values = np.random.default_rng(0).normal(size=(4, 2))
    parents = np.array([[0, 1], [0, 1], [0, 0], [0, 0]])
    mean, error = mean_after(parents, values, 2)
    zeros = [values[0, 0], values[1, 0], *values[2:].mean(1)]
    counts = np.array([1, 1, 2, 2])
    assert mean[0] == pytest.approx(np.average(zeros, weights=counts))
    of_ratio = scipy.stats.sem(counts * (np.array(zeros) - mean[0])) / counts.mean()
    quantile = scipy.stats.t.ppf(0.975, [3, 1]) / scipy.stats.norm.ppf(0.975)
    assert error[0] == pytest.approx(of_ratio * quantile[0])
    off = np.array([*(values[:2, 1] - mean[1]), 0, 0])
    assert error[1] == pytest.approx(scipy.stats.sem(off) / 0.5 * quantile[1])
