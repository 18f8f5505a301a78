"""What `induction` says where few sequences, or a small lead, leave something open."""

import numpy as np
import pytest
import torch
import xarray as xr
from probing_cases import run_of, says, subject_of

from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.probes import induction
from mechmarkov.sources import DirichletChains

REDRAWN = DirichletChains(n_states=3, start="uniform")


def measured(decoder, sequences: int = 64) -> xr.Dataset:
    return induction.probe.measure(subject_of(run_of(decoder, source=REDRAWN), sequences=sequences))


def test_a_model_that_is_hardly_nearer_than_the_simpler_rule_does_not_carry_the_bigram():
    head = xr.Dataset(
        {
            "kl_intact": 0.08,
            "kl_cut": ("input", [0.3]),
            "kl_error": ("input", [0.001]),
            "simpler_error": 0.001,
        },
        {"input": ["K"]},
    )
    assert induction._carries(head, 0.2) == "carries the bigram"
    assert induction._carries(head, 0.1) == "carries most of what the model has of the bigram"
    assert induction._carries(head.assign(kl_cut=("input", [0.095])), 0.12) == "carries some of the bigram"
    assert induction._carries(head, 0.085) == "carries predictions, but not surely the bigram's"
    assert induction._carries(head, 0.05) == "carries predictions, but not the bigram's"
    # What counts is how surely the model is nearer, and not how surely the cut does harm.
    assert induction._carries(head.assign(kl_error=("input", [0.05])), 0.2) == "carries the bigram"
    # And whether it does most of it has an interval of its own.
    assert induction._carries(head.assign(kl_error=("input", [0.09])), 0.2) == "carries some of the bigram"
    unsure = head.assign(simpler_error=0.05)
    assert induction._carries(unsure, 0.1) == "carries predictions, but not surely the bigram's"


@pytest.mark.parametrize(
    ("rise", "error", "said"),
    [
        (0.0, 0.0, "carries no predictions"),
        (0.004, 0.003, "carries no predictions"),  # 0.0099 at most
        (0.004, 0.004, "may carry predictions: without it KL changes by −0.00384 to 0.0118 nats"),
        (0.05, 0.03, "may carry predictions: without it KL changes by −0.0088 to 0.109 nats"),
        (-0.05, 0.03, "carries no predictions"),
        (-0.05, 0.02, "does harm: without it the model is 0.05 nats nearer"),
        (-0.005, 0.001, "carries no predictions"),
    ],
)
def test_a_path_is_said_to_carry_nothing_only_where_that_is_sure(rise, error, said):
    found = {"kl_intact": 0.08, "kl_cut": ("input", [0.08 + rise]), "kl_error": ("input", [error])}
    assert induction._carries(xr.Dataset(found, {"input": ["K"]}), 0.2) == said


def test_what_few_sequences_leave_open_is_not_denied():
    """A predecessor may move attention by all of the ideal, by a fifth of it, or surely by nothing."""
    for high, said in ((1.4, "may move"), (0.2, "by more than 0.20"), (0.02, "at most 0.02")):
        effects = {
            name: (("layer", "head"), [[value]]) for name, value in (("effect", 0.01), ("effect_high", high))
        }
        assert said in induction._no_head(xr.Dataset(effects))
    data = measured(value_table(torch.eye(3), 16))
    open_data = data.assign(effect_high=data["effect_high"] + 0.7)
    assert induction.verdict(open_data).startswith("Too few sequences tell of an induction circuit: ")


def test_few_sequences_leave_open_which_head_feeds():
    """Two sequences of 16 leave half of a score to chance; that no cut can tell is said as such."""
    data = measured(induction_pair(3, 16), sequences=2)
    said = induction.verdict(data)
    assert induction.scores(data, None)["feeders"].value is None
    assert says(
        said,
        "L1H0 is an induction head",
        "too few sequences tell whether an earlier head feeds its keys",
        "0%",
    )
    assert says(said, " 100% of its attention")  # a row of float32 sums to a little more
    shares = ("step", "estimate")
    for left, told in (
        ([0.9, 0.8, 1.0], "from its keys leaves 80% to 100% of the score"),
        ([np.nan] * 3, "cuts cannot tell"),
    ):
        changed = data.assign(earlier_left=(shares, [left]))
        assert told in induction.verdict(changed)
        assert told in induction.scores(changed, None)["feeders"].reason
    data = measured(induction_pair(3, 16))
    assert induction.scores(data, None)["feeders"].value == "L0H0"
    assert says(induction.verdict(data), "L0H0 feeds L1H0")
