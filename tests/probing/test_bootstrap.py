"""Bootstrap intervals: those of SciPy, however many rows are resampled at a time."""

import numpy as np
import pytest
import scipy.stats

from mechmarkov.theory import bootstrap
from mechmarkov.theory.bootstrap import interval, resampled_means


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
