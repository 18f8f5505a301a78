"""Wrong arguments of the theory's functions: one line that says what is expected, and no number."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from mechmarkov.bench.case import Case, case_of
from mechmarkov.bench.counterfactuals import Change, places
from mechmarkov.bench.estimators import exact_loss
from mechmarkov.bench.patching import node_effects
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.report.dashboard import read_dashboard
from mechmarkov.sources import Chain
from mechmarkov.sources.tokens.tokenisers import Merges
from mechmarkov.theory.bootstrap import wilson
from mechmarkov.theory.kernel import cosine, directional_distance
from mechmarkov.theory.predictors import check_tokens, switching
from mechmarkov.theory.unigram_trap import unigram_point
from mechmarkov.theory.walk.reduced_walk import (
    accuracy,
    descend,
    deterministic_displacements,
    forward,
    loss,
    zero_state,
)
from mechmarkov.theory.worst_case import largest_sum

P = np.array([[0.8, 0.2], [0.3, 0.7]])
PI = np.array([0.6, 0.4])
TRUE = np.ones((2, 2), dtype=bool)
ONE_PATH = deterministic_displacements(n_states=3, length=4)
HISTORY = torch.tensor([[0, 1, 0, 2, 0]])
STACK = HookedDecoder.stack([value_table(np.log(P), n_ctx=4)] * 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(unigram_point, P, np.full(2, 0.5), tied=True), "pi is not stationary"),
        (partial(unigram_point, P - [[1, -1], [0, 0]], PI, tied=True), r"P\[0\] is \[.*\], expected a law"),
        (partial(unigram_point, P[:1], PI, tied=True), r"P has shape \(1, 2\)"),
        (
            partial(unigram_point, P, PI, tied=True, within=np.ones((1, 2))),
            r"within\[0\] adds up to 2, expected 0",
        ),
        (partial(cosine, np.eye(3), np.ones((3, 1))), r"b has shape \(3, 1\) and a \(3, 3\)"),
        (partial(directional_distance, PI, PI), r"b has shape \(2,\)"),
        (partial(largest_sum, np.array([[np.nan, 0.0]]), TRUE[:1]), "gain has nan, expected finite numbers"),
        (partial(largest_sum, P, TRUE, P), r"transitions has dtype float64 .* P > 0"),
        (partial(largest_sum, P, TRUE, np.ones((3, 3), dtype=bool)), r"expected bool and \(2, 2\)"),
        (partial(forward, zero_state(3, 5), ONE_PATH), "displacements has 3 columns, expected 4"),
        (partial(forward, zero_state(2, 4), ONE_PATH), "displacements has 2, expected 0 to 1"),
        (
            partial(loss, zero_state(3, 4), ONE_PATH, np.ones(2) / 2, 0.1),
            r"weights has shape \(2,\), expected",
        ),
        (partial(accuracy, zero_state(3, 4), ONE_PATH, np.ones((1, 1))), r"weights has shape \(1, 1\)"),
        (partial(Merges, merges=[["a", "b", "c"]]), r"merges\[0\]"),
        (partial(Chain, Q=[[1.0]]), "P is missing, expected a list; unknown key Q"),
        (partial(switching, np.array([0, 1])), r"tokens has shape \(2,\), expected \[batch, position\]"),
        (partial(Change, "parents"), "which is 'parents', expected one of 'parent', 'match', 'state'"),
        (partial(Change, lags=()), "lags is empty"),
        (partial(Change, lags=(0,)), r"lags\[0\] is 0, expected at least 1"),
        (partial(Change, order=0), "order is 0, expected at least 1"),
        (partial(wilson, 3, 10), "share is 3, expected hits over trials, from 0 to 1"),
        (partial(case_of, "a", "b", STACK, Chain(P.tolist()), seed=0), "model is a stack of 2, expected one"),
        (partial(places, HISTORY, Change(lags=(9,)), seed=0), "lags reach 9 states back, expected at most 5"),
        (partial(places, HISTORY, Change("match", order=6), seed=0), "order reach 6 states back"),
    ],
)
def test_a_wrong_value_is_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(switching, [[0, 1]]), "tokens is list, expected an array of integers"),
        (partial(switching, torch.tensor([[0, 1]])), r"tokens is Tensor, .*: tokens.numpy\(\)$"),
        (partial(switching, np.array([[0.0, 1.0]])), "tokens is float64, expected an array of integers"),
        (partial(Change, lags=1), "lags is 1, expected integers"),
        (partial(exact_loss, np.eye(2)), "run is a ndarray, expected a Run"),
        (partial(read_dashboard, b"reports"), "folder is b'reports', expected"),
        (partial(node_effects, np.eye(2), ["kl"]), "case is a ndarray, expected a Case"),
        (partial(node_effects, object.__new__(Case), "kl"), "metrics is 'kl', expected a list"),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_line(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_laws_of_a_chain_that_was_written_with_few_digits_are_taken():
    rounded = np.array([[0.3333333, 0.6666667], [0.5, 0.5]])
    pi = np.array([0.4285714, 0.5714286])
    assert unigram_point(rounded, pi, tied=True).growth >= 0


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        (np.array([[0, 1]]), None),
        (np.array([[0, 1]], dtype=np.uint8), None),
        (np.zeros((0, 3), int), None),
        (np.array([[0, 2]]), ValueError),
        (np.array([[-1, 0]]), ValueError),
        (np.array([0, 1]), ValueError),
        (np.array([[[0]]]), ValueError),
        (np.array([[0.0]]), TypeError),
        (np.array([[True]]), TypeError),
        ([[0, 1]], TypeError),
    ],
)
def test_tokens_are_states_of_sequences(tokens, error):
    if error is None:
        check_tokens(tokens, 2)
    else:
        with pytest.raises(error, match=r"^tokens "):
            check_tokens(tokens, 2)


def descended(displacements, weights, **changes):
    given = {"n_states": 3, "position_norm_sq": 1.0, "eta": 0.1, "eps": 0.1, "steps": 1}
    return descend(np.array(displacements), np.array(weights), **given | changes)


def test_weights_add_up_to_a_billionth():
    one = [[0, 1, 2]]
    for off in (0.9e-9, -0.9e-9):
        assert [state.step for state in descended(one, [1 + off])] == [0, 1]
    for wrong in ([1 + 1.1e-9], [1 - 1.1e-9], [math.nan], [0.5, 0.5], [-1.0]):
        with pytest.raises(ValueError, match=r"^weights are . numbers .*, expected 1 probabilities"):
            descended(one, wrong)
    for wrong, ends in ([0, 1, 3], "0 to 3"), ([0, 1, -1], "-1 to 1"):
        with pytest.raises(ValueError, match=f"^displacements run from {ends}, expected 0 to 2$"):
            descended([wrong], [1.0])
    with pytest.raises(ValueError, match=r"^displacements are 0 paths of 3 tokens, expected at least one$"):
        descended(np.zeros((0, 3), int), [1.0])
    for name in ("position_norm_sq", "eta", "eps"):
        with pytest.raises(ValueError, match=f"^{name} is 0, expected above 0$"):
            descended(one, [1.0], **{name: 0})
    assert len(descended(one, [1.0], steps=0)) == 1
    with pytest.raises(ValueError, match=r"^steps is -1, expected at least 0$"):
        descended(one, [1.0], steps=-1)
