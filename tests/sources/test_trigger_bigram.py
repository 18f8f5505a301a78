"""Triggers: against the sum over all draws of their outputs, for all short sequences."""

from itertools import product

import numpy as np
import pytest
import torch
from enumeration import (
    EXACT,
    assert_drawn,
    assert_exact,
    assert_optimal,
    assert_refused,
    generator,
    pair,
    path_probability,
    solve,
    table,
)

from mechmarkov.sources import TriggerBigram

P3 = [[0.1, 0.6, 0.3], [0.3, 0.2, 0.5], [0.5, 0.3, 0.2]]
P4 = [[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.4, 0.1], [0.4, 0.1, 0.1, 0.4], [0.3, 0.3, 0.2, 0.2]]
# State 3 is reached by an output alone, and so is transient in most draws.
SPARSE = [[0.5, 0.5, 0, 0], [0.2, 0.2, 0.6, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0]]
CASES = [
    TriggerBigram(P3, triggers=[0]),
    TriggerBigram(P4, triggers=[1], outputs=[0.5, 0, 0.25, 0.25]),
    TriggerBigram(P4, triggers=[3, 1]),
    TriggerBigram(P4, triggers=[0, 2], outputs=[0, 0.9, 0, 0.1]),
    TriggerBigram(SPARSE, triggers=[0, 1]),
    TriggerBigram(P4, triggers=[0, 1, 2]),  # one output is left
    TriggerBigram(SPARSE, triggers=[0], outputs=[0, 0.5, 0.5, 0]),  # state 3 is never reached
]


def draws(source):
    """The law of each draw and the chain it makes."""
    outputs = np.ones(source.n_states) if source.outputs == "uniform" else np.array(source.outputs)
    if source.outputs == "uniform":
        outputs[list(source.triggers)] = 0
        outputs /= outputs.sum()
    for chosen in product(range(source.n_states), repeat=len(source.triggers)):
        weight = np.prod(outputs[list(chosen)])
        if weight:
            P = np.array(source.rows, dtype=float)
            P[list(source.triggers)] = np.eye(source.n_states)[list(chosen)]
            yield weight, P


def law(source):
    parts = list(draws(source))
    mean = solve(sum(w * P for w, P in parts))
    starts = [mean if source.start == "global" else solve(P) for _, P in parts]
    return lambda x: sum(w * path_probability(pi, P, x) for (w, P), pi in zip(parts, starts, strict=True))


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_laws_draws_and_best_against_all_short_sequences(source):
    assert_exact(source, law(source), 5)


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_the_global_start(source):
    source = source.model_copy(update={"start": "global"})
    joint = table(law(source), source.n_states, 5)
    assert_drawn(source, joint)
    assert_optimal(source, joint)
    np.testing.assert_allclose(pair(joint, 0, 1), source.pi[:, None] * source.P, **EXACT)
    np.testing.assert_allclose(pair(joint, 0, 1).sum(0), source.pi, **EXACT)
    rest = np.setdiff1d(np.arange(source.n_states), source.triggers)
    later = pair(joint, 3, 4)[rest]
    np.testing.assert_allclose(later, later.sum(-1, keepdims=True) * source.P[rest], **EXACT)
    np.testing.assert_array_equal(source.step_law(0), np.eye(source.n_states))
    np.testing.assert_allclose(source.step_law(2), source.P @ source.P, **EXACT)
    inexact = [rule.name for rule in source.predictors().values() if not rule.exact]
    assert sorted(inexact) == ["bigram", "step_2", "step_3", "step_4", "unigram"]
    assert not any("exact" in source.predictors()[name].label for name in inexact)


def test_the_global_laws_leave_repeats_out():
    # What the docstring says is not exact is not: else the two starts would be one.
    source = TriggerBigram(P3, triggers=[0], start="global")
    joint = table(law(source), 3, 5)
    far = pair(joint, 3, 4)
    assert np.abs(far - far.sum(-1, keepdims=True) * source.P)[0].max() > 1e-3


def test_the_best_rule_where_everything_is_known_by_hand():
    source = TriggerBigram(P4, triggers=[1, 2], outputs=[0.25, 0, 0, 0.75], start="global")
    tokens = np.array([[0, 1, 3, 2, 0, 1, 3, 1, 3, 2]])
    found = source.best().probabilities(tokens)[0]
    prior, to_3, to_0 = [0.25, 0, 0, 0.75], [0, 0, 0, 1], [1, 0, 0, 0]
    expected = [P4[0], prior, P4[3], prior, P4[0], to_3, P4[3], to_3, P4[3], to_0]
    np.testing.assert_array_equal(found, expected)
    assert source.trigger_mask(tokens)[0].nonzero()[0].tolist() == [1, 3, 5, 7, 9]
    assert source.in_context_mask(tokens)[0].nonzero()[0].tolist() == [5, 7, 9]


def test_outputs_are_what_follows_the_triggers():
    source = TriggerBigram(P4, triggers=[3, 1])
    tokens, outputs = source.sample_with_hidden(500, 200, generator=generator())
    for i, trigger in enumerate(source.triggers):
        follows = torch.where(tokens[:, :-1] == trigger, tokens[:, 1:], outputs[:, i, None])
        assert torch.equal(follows, outputs[:, i, None].expand_as(follows))
    assert set(outputs.flatten().tolist()) == {0, 2}
    best = source.best().probabilities(tokens.numpy())
    known = source.in_context_mask(tokens.numpy())[:, :-1]
    chosen = np.take_along_axis(best[:, :-1], tokens[:, 1:, None].numpy(), axis=-1)[..., 0]
    assert known.mean() > 0.1
    np.testing.assert_array_equal(chosen[known], 1)


def test_tokens_that_no_draw_makes_are_no_error():
    source = TriggerBigram(P4, triggers=[1, 2])
    impossible = np.array([[1, 2, 1, 3, 2, 1]])  # a trigger after a trigger, and two outputs of one
    found = source.best().probabilities(impossible)
    np.testing.assert_allclose(found.sum(-1), 1, **EXACT)
    np.testing.assert_array_equal(found[0, 2], [0, 0, 1, 0])  # what followed it first


def test_many_triggers_need_the_global_start():
    P = np.random.default_rng(0).dirichlet(np.ones(40), 40)
    words = "expected 'global': 36 outputs of 4 triggers are 1679616 draws, more than the 2621 on 40 states"
    data = {"kind": "trigger_bigram", "P": P.tolist(), "triggers": [0, 1, 2, 3]}
    assert_refused(data, None, words)
    source = TriggerBigram(P, triggers=[0, 1, 2, 3], start="global")
    tokens = source.sample(20, 300, generator=generator()).numpy()
    assert source.in_context_mask(tokens).any()
    np.testing.assert_allclose(source.best().probabilities(tokens).sum(-1), 1, **EXACT)


def test_the_most_draws_still_have_exact_laws():
    P = np.random.default_rng(0).dirichlet(np.ones(12), 12)
    source = TriggerBigram(P, triggers=[2, 7, 9, 11], outputs=[0.25] * 2 + [0] + [0.125] * 4 + [0] * 5)
    assert len(source.draws.weight) == 6**4
    np.testing.assert_allclose(source.draws.weight.sum(), 1, **EXACT)
    np.testing.assert_allclose(source.pi @ source.P, source.pi, **EXACT)  # of any stationary process
    np.testing.assert_allclose(source.pi @ source.step_law(7), source.pi, **EXACT)
    for weight, row in zip(source.draws.outputs[::200], source.draws.law[::200], strict=True):
        chain = P.copy()
        chain[list(source.triggers)] = np.eye(12)[weight]
        np.testing.assert_allclose(row, solve(chain), rtol=0, atol=1e-11)


def test_what_it_says_of_itself():
    source = TriggerBigram(P4, triggers=[1, 3])
    assert TriggerBigram(np.array(P4), triggers=np.array([1, 3])) == source
    assert source.title() == "Bigram on 4 states, the successors of 1 and 3 redrawn per sequence"
    assert not source.redraws
    names = ["uniform", "unigram", "bigram", "step_2", "step_3", "step_4", "repeat_output"]
    assert list(source.predictors()) == names
