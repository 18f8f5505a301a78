"""One to eight sequences: each probe answers, or says in one line how many it needs; and it is warned of."""

from itertools import product

import numpy as np
import pytest
from probing_cases import RAW_LOG, config_of, randomise, run_of

import mechmarkov as mm
from mechmarkov.models import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.sources import Binary, Chain, Circle, DirichletChains

pytestmark = pytest.mark.usefixtures("few_nulls")

SMALLEST = {
    "a chain of two states": Chain(np.array([[0.9, 0.1], [0.2, 0.8]])),
    "two states that take turns": Chain(np.array([[0.0, 1.0], [1.0, 0.0]])),
    "a circle": Circle(n_states=3, p=0.5),
    "a binary chain": Binary(p=0.3, q=0.6),
    "fresh chains": DirichletChains(n_states=2),
}


@pytest.mark.parametrize(("example", "sequences"), [("walk", 1), ("walk", 2), ("walk", 3), ("induction", 2)])
def test_a_probe_answers_or_says_how_many_sequences_it_needs(example, sequences):
    result = mm.probe(mm.example(example), sequences=sequences)
    for name, why in result.failed.items():
        assert f"sequences is {sequences}, expected at least " in why, name
    assert {"ablation", "program"} <= {*result.failed}
    assert "storage" not in result.outcomes
    assert any(f"evaluated on only {sequences} sequence" in warning for warning in result.warnings)
    for outcome in result.outcomes.values():
        for score in outcome.scores.values():
            assert score.interval is None or score.interval[0] <= score.interval[1]


# Every source, shape and objective; which go together here does not matter.
OBJECTIVES = {"softmax": Objective(), "scores": RAW_LOG}
SHAPES = {"one token of context": 1, "two tokens of context": 2, "LN and MLP": 3}
IN_ORDINARY = {
    ("a chain of two states", "two tokens of context", "softmax"),
    ("two states that take turns", "two tokens of context", "scores"),
    ("a circle", "two tokens of context", "scores"),
    ("a binary chain", "one token of context", "softmax"),
    ("a binary chain", "LN and MLP", "scores"),
    ("fresh chains", "LN and MLP", "softmax"),
}


@pytest.mark.parametrize(
    ("name", "shape", "objective"),
    [
        pytest.param(*case, marks=() if case in IN_ORDINARY else pytest.mark.system)
        for case in product(SMALLEST, SHAPES, OBJECTIVES)
        if SHAPES[case[1]] > OBJECTIVES[case[2]].query
    ],
)
def test_only_sequences_are_missing_on_the_smallest_inputs(name, shape, objective):
    """One sequence, one step, two states, one or two tokens."""
    source, loss = SMALLEST[name], OBJECTIVES[objective]
    tokens = {"d_vocab": source.n_states + loss.query, "d_vocab_out": source.n_states}
    config = config_of(shape, n_ctx=SHAPES[shape], **tokens)
    run = run_of(randomise(HookedDecoder(config), 0, 0.3), source=source, objective=loss)
    failed = mm.probe(run, sequences=1).failed
    assert all("sequences is 1, expected at least " in why for why in failed.values())


def test_enough_sequences_are_not_warned_of():
    assert mm.probe(mm.example("walk"), ["attention"], sequences=16).warnings == ()
