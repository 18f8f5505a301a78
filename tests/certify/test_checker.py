"""The checker's own arithmetic: forms hold points and float32 results, multipliers hold in all contexts."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.certify.checked_layer import FUNCTIONS, OWN, UNITS, Case, Form

SEEDS = st.integers(0, 2**32 - 1)
WIDTHS = st.sampled_from([0.0, 1e-3, 0.3, 3.0])
ORACLES = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "1/sqrt": lambda x: x.abs().rsqrt(),
    "square": torch.square,
}


def drawn(rng, d=5, symbols=3, width=0.3, u=0.0):
    return Form(u, 2 * rng.normal(size=d), width * rng.normal(size=(d, symbols)), 0.1 * width * rng.random(d))


def points(form, rng, count=20):
    """Symbols, and numbers that the form has at these."""
    e = rng.choice([-1, 1, 0.3], (count, form.slope.shape[-1]))
    return [(one, form.mid + form.slope @ one + form.rad * rng.uniform(-1, 1, form.mid.shape)) for one in e]


def holds(form, e, values):
    """Whether a form has these values at the first symbols, whatever the others."""
    known = form.mid + form.slope[..., : len(e)] @ e
    free = np.abs(form.slope[..., len(e) :]).sum(-1) + form.rad
    within = (form.low <= values) & (values <= form.high)
    return bool((np.abs(values - known) <= free + 1e-13 * (1 + np.abs(values))).all() and within.all())


@pytest.mark.parametrize("name", list(FUNCTIONS))
@settings(max_examples=25, deadline=None)
@given(SEEDS, WIDTHS)
def test_a_function_of_a_form_holds_its_values(name, seed, width):
    rng = np.random.default_rng(seed)
    form = drawn(rng, width=width)
    if name == "1/sqrt":
        form = Form(0.0, np.abs(form.mid) + form.spread + 0.01, form.slope, form.rad)
    through = form.through(name)
    for e, x in points(form, rng):
        assert holds(through, e, ORACLES[name](torch.tensor(x)).numpy())


@settings(max_examples=25, deadline=None)
@given(SEEDS, WIDTHS)
def test_sums_products_and_norms_hold_their_values(seed, width):
    rng = np.random.default_rng(seed)
    a, W = drawn(rng, width=width), rng.normal(size=(5, 2))
    b = Form(0.0, rng.normal(size=5), width * rng.normal(size=(5, 3)))
    norms = {kind: a.normed({}, "", kind, 1e-3) for kind in ("LN", "RMS")}
    for e, x in points(a, rng):
        y = b.mid + b.slope @ e
        assert holds(a + b, e, x + y)
        assert holds(a * b, e, x * y)
        assert holds(a.dot(W), e, x @ W)
        for kind, normed in norms.items():
            at = x - x.mean() if kind == "LN" else x
            assert holds(normed, e, at / np.sqrt((at**2).mean() + 1e-3))


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_forms_hold_what_float32_gives(seed):
    """Numbers that are stored as they are: what is left is the rounding of float32, in another order too."""
    rng = np.random.default_rng(seed)
    x, y, W = (np.float32(rng.normal(size=shape)) for shape in ((9,), (9,), (9, 4)))
    a, none = Form(UNITS["float32"], x), np.zeros(0)
    assert holds(a + y, none, np.float64(x + y))
    assert holds(a * y, none, np.float64(x * y))
    order = rng.permutation(9)
    total = np.zeros(4, dtype=np.float32)
    for k in order:
        total = np.float32(total + np.float32(x[k] * W[k]))
    assert holds(a.dot(np.float64(W)), none, np.float64(total))
    for name in ("gelu", "silu", "gelu_new"):
        assert holds(a.through(name), none, ORACLES[name](torch.tensor(x)).double().numpy())
    assert not (Form(0.0, x) * y).rad.any() or (Form(0.0, x) * y).rad.max() < 16 * OWN * np.abs(x * y).max()


def case_of(rng, n_heads, n_keys, n_states):
    """A case by hand: weights with radii, values with radii, and which states and transitions there are."""
    case = Case.__new__(Case)
    weight = rng.exponential(size=(n_heads, n_keys, n_states)) + 0.1
    case.weight, case.where = (weight, weight * rng.choice([0.0, 1e-9, 0.1], weight.shape)), "here"
    case.allowed = rng.random((n_keys, n_states)) < 0.8
    case.transitions = rng.random((n_states, n_states)) < 0.8
    case.allowed[:, 0] = case.transitions[0] = True
    shape = (n_heads, n_keys, n_states, 2)
    return case, Form(0.0, rng.normal(size=shape), None, rng.choice([0.0, 1e-9, 0.1], shape))


def worst_means(case, value, direction):
    """The largest mean of each head over all allowed contexts, and all weights and values within radii."""
    (weight, rad), keys = case.weight, np.arange(case.allowed.shape[0])
    f = value.mid @ direction + value.rad @ np.abs(direction)
    found = np.full(len(weight), -np.inf)
    for context in product(range(case.allowed.shape[1]), repeat=len(keys)):
        path = np.array(context)
        if case.allowed[keys, path].all() and case.transitions[path[:-1], path[1:]].all():
            for signs in product([-1, 1], repeat=len(keys)):
                w = (weight + np.array(signs)[:, None] * rad)[:, keys, path]
                found = np.maximum(found, (w * f[:, keys, path]).sum(1) / w.sum(1))
    return found


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_a_multiplier_is_confirmed_only_if_it_holds_in_every_context(seed):
    rng = np.random.default_rng(seed)
    case, value = case_of(rng, *rng.integers([1, 1, 2], [3, 5, 4]))
    direction = rng.normal(size=2)
    worst = worst_means(case, value, direction)
    assert case.heads_add(value, direction[None], worst[None] + 1e-8)[0] >= worst.sum()
    for below in (1e-12, 1e-10, 1e-3):
        lower = worst - below * (np.arange(len(worst)) == rng.integers(len(worst)))
        with pytest.raises(ValueError, match=r"^a multiplier here is too small"):
            case.heads_add(value, direction[None], lower[None])
