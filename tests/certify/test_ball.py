"""Balls hold what exact arithmetic gives, in fractions, and what float32 gives in any order."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import EXACT, FLOAT32, OWN, Ball, gamma
from mechmarkov.certify.bounds.norms import normalised

SEEDS = st.integers(0, 2**32 - 1)


def holds(ball, values):
    return bool((np.abs(np.asarray(values, dtype=np.float64) - ball.mid) <= ball.rad).all())


def exact_dot(x, W):
    """A product in fractions, of floats as they are."""
    rows = [[Fraction(v) for v in row] for row in x.tolist()]
    columns = [[Fraction(v) for v in column] for column in W.T.tolist()]
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in rows]


@settings(deadline=None)
@given(SEEDS, st.sampled_from([1.0, 1e-3, 1e6]))
def test_a_product_holds_the_exact_one_and_every_order_of_float32(seed, scale):
    rng = np.random.default_rng(seed)
    x, W = scale * rng.normal(size=(2, 9)), rng.normal(size=(9, 3))
    x, W = x.astype(np.float32).astype(np.float64), W.astype(np.float32).astype(np.float64)
    exact = exact_dot(x, W)
    for unit in (EXACT, FLOAT32):
        ball = Affine.exact(x, unit).dot(W)
        for i, j in np.ndindex(2, 3):
            assert abs(exact[i][j] - Fraction(ball.mid[i, j])) <= Fraction(ball.rad[i, j])
    single = Affine.exact(x, FLOAT32).dot(W)
    for _ in range(5):
        order = rng.permutation(9)
        found = np.zeros((2, 3), dtype=np.float32)
        for k in order:
            found = np.float32(found + np.float32(np.float32(x[:, k, None]) * np.float32(W[k])))
        assert holds(single, found)


@settings(deadline=None)
@given(SEEDS)
def test_operations_hold_their_results_from_any_point_of_their_inputs(seed):
    rng = np.random.default_rng(seed)
    a, b = (Ball(rng.normal(size=20), 0.1 * rng.random(20), FLOAT32) for _ in range(2))
    form = Affine(a.mid, np.zeros((20, 0)), a.rad, FLOAT32)
    for _ in range(20):
        x, y = (np.float32(ball.mid + (1 - 1e-6) * ball.rad * rng.uniform(-1, 1, 20)) for ball in (a, b))
        assert holds(a + b, x + y)
        assert holds(a * b, x * y)
        assert holds(form.inner(b), np.dot(x, y))


@pytest.mark.parametrize("centred", [True, False])
@settings(deadline=None)
@given(SEEDS)
def test_norms_hold_what_torch_computes(centred, seed):
    rng = np.random.default_rng(seed)
    x, gain, shift = rng.normal(size=(4, 8)), rng.normal(size=8), rng.normal(size=8)
    x, gain, shift = (
        np.float32(array).astype(np.float64) for array in (x * 10.0 ** rng.integers(-3, 3), gain, shift)
    )
    for unit, dtype in ((EXACT, torch.float64), (FLOAT32, torch.float32)):
        ball = normalised(Affine.exact(x, unit), gain, shift, 1e-5, centred)
        at = torch.tensor(x, dtype=dtype)
        at = at - at.mean(-1, keepdim=True) if centred else at
        found = at / (at.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        found = found * torch.tensor(gain, dtype=dtype) + torch.tensor(shift, dtype=dtype)
        assert holds(ball, found.numpy())
        if centred:
            fused = torch.nn.functional.layer_norm(
                torch.tensor(x, dtype=dtype),
                (8,),
                *(torch.tensor(p, dtype=dtype) for p in (gain, shift)),
                1e-5,
            )
            assert holds(ball, fused.numpy())


def test_a_norm_without_eps_is_refused_where_the_variance_may_be_zero():
    x = Affine.exact(np.ones((1, 4)), FLOAT32)
    with pytest.raises(ValueError, match=r"^eps is 0 and the variance of a token may be 0"):
        normalised(x, None, None, 0.0, centred=True)


def test_zeros_stay_exact_and_long_sums_are_refused():
    """A model of zeros predicts uniformly, which nothing else would show."""
    zero = Affine.exact(np.zeros((1, 3)), FLOAT32).dot(np.ones((3, 2))).hull * Ball.exact(2.0, FLOAT32)
    assert not zero.mid.any()
    assert not zero.rad.any()
    assert zero.upper.max() == zero.lower.min() == 0
    assert gamma(1, FLOAT32) > FLOAT32 + OWN
    with pytest.raises(ValueError, match=r"^a sum of 16777216 terms is too long"):
        gamma(1 << 24, FLOAT32)
