"""Canonical coordinates against the chain itself and the gradient flow, integrated."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize_scalar

from mechmarkov.sources import Binary
from mechmarkov.theory import canonical

CHAINS = [(0.2, 0.3), (0.5, 0.8), (0.8, 0.8), (0.9, 0.05)]


def cross_entropy(s, c, p, q):
    one = 1 / (1 + np.exp(-np.array([c, s + c])))
    predicted = np.stack([1 - one, one], axis=1)
    source = Binary(p=p, q=q)
    return -float((source.pi[:, None] * source.P * np.log(predicted)).sum())


@pytest.mark.parametrize(("p", "q"), CHAINS)
def test_the_loss_is_that_of_the_best_offset(p, q):
    for s in (-3.0, -0.4, 0.0, 1.7):
        best = minimize_scalar(lambda c, s=s: cross_entropy(s, c, p, q), (-3, 3), tol=1e-12)
        at = np.array([s])
        assert canonical.loss(at, p, q)[0] == pytest.approx(best.fun, abs=1e-10)
        assert canonical.best_offset(at, p, q)[0] == pytest.approx(best.x, abs=1e-4)


@pytest.mark.parametrize(("p", "q"), [(0.2, 0.3), (0.3, 0.2)])
def test_the_best_offset_at_a_steep_slope(p, q):
    # State 1 never follows itself: it is as likely as it should be, p / (p + q), after state 0 alone.
    offset = canonical.best_offset(np.array([-200.0]), p, q)[0]
    after_0, after_1 = 1 / (1 + np.exp(-np.array([offset, offset - 200.0])))
    assert q * after_0 + p * after_1 == pytest.approx(p)


@pytest.mark.parametrize(("p", "q"), CHAINS)
def test_the_unigram_and_the_bigram(p, q):
    source = Binary(p=p, q=q)
    slopes = np.array([0.0, canonical.best_slope(p, q)])
    assert canonical.loss(slopes, p, q) == pytest.approx([source.unigram_entropy, source.entropy_rate])
    around = slopes[1] + np.array([-0.01, 0.01])
    assert (canonical.loss(around, p, q) > source.entropy_rate).all()


def flow(e, w, p, q, until):
    def velocity(_, y):
        h, s = 1e-6, canonical.slope(y[:1], y[1:])
        pull = float(canonical.loss(s + h, p, q)[0] - canonical.loss(s - h, p, q)[0]) / (2 * h)
        return [-pull * 2 * y[0] * (1 + 2 * y[1] * abs(y[1])), -pull * 4 * y[0] ** 2 * abs(y[1])]

    return solve_ivp(velocity, (0, until), [e, w], rtol=1e-8, atol=1e-11, method="LSODA").y


@pytest.mark.parametrize(("p", "q"), CHAINS[:3])
def test_energy_is_kept_and_the_basin_is_where_the_flow_ends(p, q):
    rng = np.random.default_rng(int(10 * p))
    starts = [*zip(rng.uniform(0.05, 1.5, 7), rng.uniform(-1.6, 0.9, 7), strict=True)]
    # One on either side of the border, so that no draw leaves a basin out.
    starts += [(0.2, -1.2), (0.2, 0.5)]
    ends = set()
    for e, w in starts:
        path = flow(e, w, p, q, until=1e5)
        kept = canonical.energy(path[0], path[1])
        assert np.ptp(kept[np.abs(path[1]) > 1e-6]) < 1e-3
        s = canonical.slope(path[:1, -1], path[1:, -1])[0]
        end = "bigram" if abs(s - canonical.best_slope(p, q)) < 0.02 else "unigram"
        assert end == "bigram" or abs(s) < 0.02
        assert canonical.basin(e, w, p, q) == end, (e, w)
        ends.add(end)
    assert ends == {"bigram", "unigram"}


def test_independent_tokens_have_one_end():
    assert canonical.basin(0.3, 0.2, 0.4, 0.6) == "independent"
    assert canonical.best_slope(0.4, 0.6) == pytest.approx(0)
    assert canonical.best_slope(0.0, 0.5) == np.inf
    assert np.isnan(canonical.best_slope(0.0, 1.0))
    assert np.isnan(canonical.best_slope(1.0, 0.0))
