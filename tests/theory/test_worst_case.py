"""The worst context of a head, against every context, counted in integers, where nothing rounds."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.theory.worst_case import largest_ratio, largest_sum

HEADS = 1000
SPREAD = 10  # weights up to 2^10, values within 2^10: products of sums of 8 stay far below 2^63


def draw_head(rng):
    """Weights and values in whole numbers, what is known of the states, and which may follow which."""
    n_states, n_keys = int(rng.integers(2, 5)), int(rng.integers(1, 9))
    weight = 2 ** rng.integers(0, SPREAD + 1, (n_keys, n_states))
    value = rng.integers(-(2**SPREAD), 2**SPREAD + 1, (n_keys, n_states))
    allowed = np.ones((n_keys, n_states), dtype=bool)
    allowed[-1] = np.arange(n_states) == rng.integers(n_states)  # the query's own token
    if rng.random() < 0.3:
        allowed[0] = rng.random(n_states) < 0.5  # a start law with zeros
    if rng.random() < 0.3:
        weight[: n_keys // 2] = 0  # behind a window
    transitions = rng.random((n_states, n_states)) < 0.6 if rng.random() < 0.5 else None
    return weight, value, allowed, transitions


def every_context(n_keys, n_states):
    return np.array(list(product(range(n_states), repeat=n_keys)), dtype=np.int64)


def is_allowed(contexts, allowed, transitions):
    keys = np.arange(contexts.shape[1])
    good = allowed[keys, contexts].all(1)
    if transitions is not None:
        good &= transitions[contexts[:, :-1], contexts[:, 1:]].all(1)
    return good


def brute_force(weight, value, contexts):
    """The largest mean of the contexts, as a fraction: compared by whole numbers alone."""
    keys = np.arange(contexts.shape[1])
    bottom = weight[keys, contexts].sum(1)
    top = (weight * value)[keys, contexts].sum(1)
    best = 0
    while (better := np.flatnonzero(top * bottom[best] > top[best] * bottom)).size:
        best = better[0]
    return Fraction(int(top[best]), int(bottom[best]))


def mean_of(weight, value, context):
    keys = np.arange(len(context))
    w = weight[keys, context]
    return Fraction(int((w * value[keys, context]).sum()), int(w.sum()))


def test_a_thousand_heads_have_the_largest_mean_of_all_contexts():
    rng, with_paths, without_any = np.random.default_rng(0), 0, 0
    for _ in range(HEADS):
        weight, value, allowed, transitions = draw_head(rng)
        contexts = every_context(*weight.shape)
        contexts = contexts[is_allowed(contexts, allowed, transitions)]
        worst = largest_ratio((weight * value).astype(float), weight.astype(float), allowed, transitions)
        with_paths += transitions is not None
        if not len(contexts):
            without_any += 1
            assert worst.value == -np.inf
            continue
        exact = brute_force(weight, value, contexts)
        assert abs(worst.value - float(exact)) <= 1e-15 * 2**SPREAD
        assert (contexts == worst.context).all(1).any()  # the witness is allowed
        assert mean_of(weight, value, worst.context) == exact  # and has the largest mean, to the last digit
    assert with_paths > HEADS / 3
    assert 0 < without_any < HEADS / 5


def test_what_is_asked_at_once_is_what_is_asked_one_by_one():
    rng = np.random.default_rng(1)
    weight, value = rng.exponential(size=(3, 1, 6, 4)), rng.normal(size=(3, 5, 6, 4))
    allowed, transitions = rng.random((3, 1, 6, 4)) < 0.9, rng.random((4, 4)) < 0.7
    whole = largest_ratio(weight * value, weight, allowed, transitions)
    for at in np.ndindex(3, 5):
        one = largest_ratio(weight[at[0], 0] * value[at], weight[at[0], 0], allowed[at[0], 0], transitions)
        assert whole.value[at] == one.value
        assert np.array_equal(whole.context[at], one.context)


def test_wherever_it_begins_it_ends_alike():
    rng, everything = np.random.default_rng(2), np.ones((6, 4), dtype=bool)
    for _ in range(50):
        weight, value = rng.exponential(size=(6, 4)), rng.normal(size=(6, 4))
        contexts = every_context(6, 4)
        mean = (weight * value)[range(6), contexts].sum(1) / weight[range(6), contexts].sum(1)
        for begin in (contexts[mean.argmin()], contexts[mean.argmax()], rng.integers(0, 4, 6)):
            worst = largest_ratio(weight * value, weight, everything, begin=begin)
            assert float(worst.value) == pytest.approx(mean.max(), rel=1e-12)


def test_a_head_that_attends_to_nothing_has_no_mean():
    weight = np.array([[0.0, 1.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"^the weights of a context sum to 0, expected a sum above 0"):
        largest_ratio(weight, weight, np.ones((2, 2), dtype=bool))
    with pytest.raises(ValueError, match=r"^the weights of a context sum to -2, expected"):
        largest_ratio(weight, -weight[:1], np.eye(2, dtype=bool)[1:])
    never = np.zeros((2, 2), dtype=bool)  # where no context is allowed, none attends to nothing
    assert largest_ratio(weight, weight, never).value == -np.inf


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_allowed_context_has_a_larger_sum_or_mean(seed):
    rng = np.random.default_rng(seed)
    n_keys, n_states = int(rng.integers(1, 12)), int(rng.integers(2, 6))
    weight = np.exp(rng.normal(scale=rng.choice([0.1, 3.0, 30.0]), size=(n_keys, n_states)))
    value = rng.normal(size=(n_keys, n_states))
    transitions = rng.random((n_states, n_states)) < 0.7
    np.fill_diagonal(transitions, True)  # so that every start has a path
    everything = np.ones((n_keys, n_states), dtype=bool)
    worst = largest_ratio(weight * value, weight, everything, transitions)
    largest = largest_sum(weight * value, everything, transitions)
    keys = np.arange(n_keys)
    for _ in range(50):
        path = [int(rng.integers(n_states))]
        while len(path) < n_keys:
            path.append(int(rng.choice(np.flatnonzero(transitions[path[-1]]))))
        w, f = weight[keys, path], value[keys, path]
        assert (w * f).sum() <= largest.value + 1e-12 * (w * abs(f)).sum()
        assert (w * f).sum() / w.sum() <= worst.value + 1e-12


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.floats(0.1, 10))
def test_the_support_function_is_convex_shifts_and_scales(seed, shift, scale):
    """`h(f + shift) = h(f) + shift`, `h(scale f) = scale h(f)` and `h(f + g) <= h(f) + h(g)`."""
    rng = np.random.default_rng(seed)
    weight, f, g = np.exp(rng.normal(size=(5, 3))), *rng.normal(size=(2, 5, 3))
    everything = np.ones((5, 3), dtype=bool)

    def h(value):
        return float(largest_ratio(weight * value, weight, everything).value)

    assert abs(h(f + shift) - h(f) - shift) < 1e-12
    assert abs(h(scale * f) - scale * h(f)) < 1e-12 * scale
    assert h(f + g) <= h(f) + h(g) + 1e-12
