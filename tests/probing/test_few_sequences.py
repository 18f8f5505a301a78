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


@pytest.mark.parametrize("sequences", [1, 2, 3])
@pytest.mark.parametrize("example", ["walk", "induction"])
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


# Every source with two tokens, and both other shapes with a chain that is fixed and with fresh ones.
TWO, SHAPES = "two tokens of context", ("one token of context", "LN and MLP")
IN_ORDINARY = {(name, TWO) for name in SMALLEST} | set(product(("a binary chain", "fresh chains"), SHAPES))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(*case, marks=() if case in IN_ORDINARY else pytest.mark.system)
        for case in product(SMALLEST, (TWO, *SHAPES))
    ],
)
def test_only_sequences_are_missing_on_the_smallest_inputs(name, shape):
    """One sequence, one step, two states, one or two tokens."""
    source = SMALLEST[name]
    for objective in (Objective(), RAW_LOG):
        tokens = {"d_vocab": source.n_states + objective.query, "d_vocab_out": source.n_states}
        n_ctx = {"one token of context": 1, "two tokens of context": 2}.get(shape, 3)
        config = config_of(shape, n_ctx=n_ctx, **tokens)
        if n_ctx > objective.query:
            run = run_of(randomise(HookedDecoder(config), 0, 0.3), source=source, objective=objective)
            failed = mm.probe(run, sequences=1).failed
            assert all("sequences is 1, expected at least " in why for why in failed.values())


def test_enough_sequences_are_not_warned_of():
    assert mm.probe(mm.example("walk"), ["attention"], sequences=16).warnings == ()
