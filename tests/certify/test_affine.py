"""Affine forms hold every point that their symbols give, through functions, products and whole models."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.certify.bounds import tail
from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import EXACT
from mechmarkov.certify.bounds.norms import normalised

SEEDS = st.integers(0, 2**32 - 1)
ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def drawn(rng, d, symbols, width):
    return Affine(2 * rng.normal(size=d), width * rng.normal(size=(d, symbols)), np.zeros(d), EXACT)


def point(form, e):
    return form.mid + form.slope[..., : len(e)] @ e


def holds(form, e, values):
    """Whether a form has a point at those first symbols that is this value."""
    known = len(e)
    free = np.abs(form.slope[..., known:]).sum(-1) + form.rad
    return bool((np.abs(values - point(form, e)) <= free + 1e-12).all())


@pytest.mark.parametrize("name", list(ACTIVATIONS))
@settings(deadline=None)
@given(SEEDS, st.sampled_from([0.0, 1e-3, 0.3, 3.0]))
def test_an_activation_holds_its_values(name, seed, width):
    rng = np.random.default_rng(seed)
    form = drawn(rng, 6, 3, width)
    through = tail.activated(form, name)
    for e in rng.uniform(-1, 1, (20, 3)):
        assert holds(through, e, ACTIVATIONS[name](torch.tensor(point(form, e))).numpy())


@settings(deadline=None)
@given(SEEDS, st.sampled_from([1e-3, 0.3, 2.0]), st.booleans())
def test_products_and_norms_hold_their_values(seed, width, centred):
    rng = np.random.default_rng(seed)
    a, b = drawn(rng, 5, 3, width), drawn(rng, 5, 3, width)
    gain, shift = rng.normal(size=(2, 5))
    product, norm = a * b, normalised(a, gain, shift, 1e-5, centred)
    for e in rng.uniform(-1, 1, (20, 3)):
        x, y = point(a, e), point(b, e)
        assert holds(product, e, x * y)
        assert holds(a.dot(np.ones((5, 2))) + b.dot(np.ones((5, 2))), e, np.full(2, x.sum() + y.sum()))
        at = x - x.mean() if centred else x
        assert holds(norm, e, at / np.sqrt((at**2).mean() + 1e-5) * gain + shift)


@pytest.mark.parametrize("name", list(tail.SMOOTH))
def test_no_second_derivative_is_above_its_bound(name):
    function, bend = tail.SMOOTH[name]
    x, h = np.linspace(-12, 12, 240_001), 1e-3
    second = (function(x + h) - 2 * function(x) + function(x - h)) / h**2
    assert abs(second).max() <= bend
    assert abs(second).max() > 0.98 * bend  # and it is hardly above the largest


def test_a_narrow_form_is_hardly_wider_than_its_values():
    """What is not linear is of second order: a tenth of the width leaves a hundredth of the remainder."""
    rng, lost = np.random.default_rng(0), []
    base = drawn(rng, 8, 1, 1.0)
    for width in (1e-1, 1e-2):
        form = Affine(base.mid, width * base.slope, base.rad, EXACT)
        norm = tail.activated(normalised(form, None, None, 1e-5, True), "gelu")
        lost.append((np.abs(norm.slope[..., 1:]).sum(-1) + norm.rad).max())
    assert lost[1] < 0.02 * lost[0]
