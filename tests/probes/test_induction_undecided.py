"""What `induction` says where few sequences, or a small lead, leave something open."""

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.induction.claims import carried as what_is_carried
from mechmarkov.probes.induction.claims import no_head
from probing_cases import claims_of, run_of, subject_of

from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.probes import induction
from mechmarkov.sources import DirichletChains

REDRAWN = DirichletChains(n_states=3, start="uniform")


def measured(decoder, sequences: int = 64) -> xr.Dataset:
    return induction.probe.measure(subject_of(run_of(decoder, source=REDRAWN), sequences=sequences))


TOLD = {"does harm", "not the law's", "some of it", "most of what there is"}


def carried(
    intact: float, cut: float, error: float, simpler: float, apart: float = 0.001
) -> tuple[str, dict[str, bool | None]]:
    """The status of "the path carries the bigram", and how much of it, of these nats and errors."""
    data = xr.Dataset(attrs={"simpler": "unigram", "reference": "in-context bigram"})
    head = xr.Dataset(
        {
            "kl_intact": intact,
            "kl_cut": ("input", [cut]),
            "kl_error": ("input", [error]),
            "simpler_error": apart,
        },
        {"input": ["K"]},
    )
    (claim,) = what_is_carried(data.assign(kl_simpler=simpler), head, ("L1H0",), ("L0H0",))
    return claim.status, {premise.name: premise.holds for premise in claim.because if premise.name in TOLD}


def test_a_model_that_is_hardly_nearer_than_the_simpler_rule_does_not_carry_the_bigram():
    assert carried(0.08, 0.3, 0.001, 0.2) == ("shown", {})
    assert carried(0.08, 0.3, 0.001, 0.1) == ("shown", {"most of what there is": True})
    assert carried(0.08, 0.095, 0.001, 0.12) == ("shown", {"some of it": True})
    assert carried(0.08, 0.3, 0.001, 0.085) == ("shown", {"not the law's": False})  # perhaps
    assert carried(0.08, 0.3, 0.001, 0.05) == ("shown", {"not the law's": True})
    # What counts is how surely the model is nearer, and not how surely the cut does harm.
    assert carried(0.08, 0.3, 0.05, 0.2) == ("shown", {})
    # And whether it does most of it has an interval of its own.
    assert carried(0.08, 0.3, 0.09, 0.2) == ("shown", {"some of it": True})
    assert carried(0.08, 0.3, 0.001, 0.1, apart=0.05) == ("shown", {"not the law's": False})


@pytest.mark.parametrize(
    ("rise", "error", "status"),
    [
        (0.0, 0.0, "excluded"),
        (0.004, 0.003, "excluded"),  # 0.0099 at most
        (0.004, 0.004, "open"),
        (0.05, 0.03, "open"),
        (-0.05, 0.03, "excluded"),
        (-0.05, 0.02, "does harm"),
        (-0.005, 0.001, "excluded"),
    ],
)
def test_a_path_is_said_to_carry_nothing_only_where_that_is_sure(rise, error, status):
    told, premises = carried(0.08, 0.08 + rise, error, 0.2)
    assert ("does harm" if "does harm" in premises else told) == status


def test_what_few_sequences_leave_open_is_not_denied():
    """A predecessor may move attention by all of the ideal, by a fifth of it, or surely by nothing."""
    for high, status, weak in ((1.4, "open", False), (0.2, "open", True), (0.02, "excluded", False)):
        effects = {
            name: (("layer", "head"), [[value]])
            for name, value in (("effect", 0.01), ("effect_high", high), ("effect_low", 0.02 - high))
        }
        claim = no_head(xr.Dataset(effects))
        assert claim.status == status
        assert (claim.condition("no strong circuit") is not None) == weak
        assert claim.interval[1] == high
    data = measured(value_table(torch.eye(3), 16))
    open_data = data.assign(effect_high=data["effect_high"] + 0.7)
    assert claims_of(induction.probe, open_data).first("is_induction_head").status == "open"


def test_few_sequences_leave_open_which_head_feeds():
    """Two sequences of 16 leave half of a score to chance; that no cut can tell is said as such."""
    data = measured(induction_pair(3, 16), sequences=2)
    said = claims_of(induction.probe, data)
    assert induction.scores(data, None)["feeders"].value is None
    assert said.first("is_induction_head").subject == ("L1H0",)
    assert (said.first("feeds").status, said.first("feeds").interval[0]) == ("open", 0)
    shares = ("step", "estimate")
    for left, status, interval in (([0.9, 0.8, 1.0], "excluded", (0.8, 1.0)), ([np.nan] * 3, "open", None)):
        changed = data.assign(earlier_left=(shares, [left]))
        feeds = claims_of(induction.probe, changed).first("feeds")
        assert (feeds.status, feeds.interval) == (status, interval)
        told = "cuts cannot tell" if interval is None else "leaves 80% to 100% of the score"
        assert told in induction.scores(changed, None)["feeders"].reason
    data = measured(induction_pair(3, 16))
    assert induction.scores(data, None)["feeders"].value == "L0H0"
    feeds = claims_of(induction.probe, data).first("feeds", status="shown")
    assert (feeds.subject, feeds.object) == (("L0H0",), ("L1H0",))
