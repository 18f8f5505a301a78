"""Runs and models that would make a sentence of symmetry, landscape, graph or belief false."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.belief.claims import is_used
from models_by_hand import SMALL_WALK, trained
from probing_cases import claims_of, probe_quickly, run_of

import mechmarkov as mm
from mechmarkov.models.constructions.disentangled import graph_heads
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.probes import belief


def verdict_of(run, probe):
    return probe_quickly(run, [probe], sequences=64)[probe]


def test_a_random_start_of_no_size_is_a_start_from_zero():
    """Every weight is zero, so that no random number broke a symmetry."""
    changes = SMALL_WALK | {"init": {"scheme": "normal", "std": 0.0}, "steps": 5}
    found = verdict_of(trained("walk-k6-one", **changes), "symmetry")
    assert found.scores["trapped"].value is True
    trapped = found.claims.first("is_trapped_by")
    assert (trapped.status, trapped.object) == ("shown", ("shifts",))
    assert trapped.condition("reduced system's spread").value == 0
    assert trapped.condition("it started at random") is None


@pytest.mark.parametrize(
    ("every", "steps", "status"),
    [(20, 200, "open"), (5, 10, "shown")],  # the second: by linear theory; and it did not, see the first
)
def test_a_run_that_has_learned_is_not_said_to_leave_in_the_past(every, steps, status):
    """The minimum itself lies at an amplitude of 0.6, which is below the one that counts as away."""
    model = mm.load_recipe("binary-p08-q08-tied-gd").to_data()["model"] | {"n_ctx": 16}
    changes = {"source": {"kind": "binary", "p": 0.4, "q": 0.4}, "model": model, "data": {"batch": 64}}
    run = trained("binary-p08-q08-tied-gd", steps=steps, checkpoints={"every": every}, **changes)
    found = verdict_of(run, "landscape")
    leaves = found.claims.first("leaves_by")
    assert (round(leaves.value), leaves.status) == (18, status)
    assert leaves.condition("by linear theory").holds == (steps < 18)
    reason = "the amplitude along the growing modes is below 1 at every kept step from 0 on"
    assert found.scores["escape_step"].reason == reason


SPARSE = [[], [], [], [], [], [], [], [0], [1], [2], [3], [4], [5], []]
SINK = [[0] if not parents and i else parents for i, parents in enumerate(SPARSE[:-1])]


def along(parents):
    source = mm.sources.CausalGraph(n_states=3, parents=SPARSE, concentration=0.5)
    objective = mm.Objective(kind="raw_log", read="last")
    return verdict_of(run_of(graph_heads(3, parents), source=source, objective=objective), "graph")


def test_where_roots_put_their_attention_does_not_hide_the_graph():
    """A softmax sums to one, and a root has no parent to look at."""
    found = along(SINK)
    assert found.scores["graph_head"].value == "L0H0"
    assert found.scores["precision"].value == found.scores["recall"].value == 1.0
    assert found.scores["precision"].null == along(SPARSE[:-1]).scores["precision"].null
    recovers = found.claims.first("recovers", subject="L0H0")
    assert (recovers.status, recovers.value) == ("shown", 6)
    assert recovers.condition("edges from roots").value == 6
    assert along(SPARSE[:-1]).claims.first("recovers").condition("edges from roots").value == 0


def test_edges_of_roots_alone_are_edges_and_none_of_the_graph():
    found = along([[0] if not parents and i else [] for i, parents in enumerate(SPARSE[:-1])])
    recovers = found.claims.first("recovers")
    assert (recovers.status, recovers.value) == ("excluded", 0)
    assert recovers.condition("edges from roots").value == 6
    assert found.scores["precision"].reason.startswith("no position that has a parent gives an earlier one")


@pytest.mark.parametrize("table", [torch.zeros(2, 2), 2 * torch.eye(2)], ids=["exact", "wrong"])
def test_a_state_that_changes_no_law_leaves_nothing_to_follow(table):
    source = mm.HiddenMarkov(transitions=[[0.5, 0.5], [0.5, 0.5]], emissions=[[0.9, 0.1], [0.1, 0.9]])
    found = verdict_of(run_of(direct_table(table, 8), source=source), "belief")
    assert is_used(found.data.isel(step=-1)) is None
    follows = found.claims.first("follows_belief")
    assert follows.status == "does not apply"
    assert follows.condition("hidden states have one law")


@pytest.mark.parametrize(
    ("highest", "status"),
    [((0.84, 0.92), "open"), ((0.92, 0.89), "open"), ((0.84, 0.89), "excluded")],  # the second: another may
)
def test_a_belief_is_denied_only_where_no_stream_may_carry_it(highest, status):
    """The earliest stream that is nearly the best has a smaller R² than the best."""
    data = verdict_of(run_of(direct_table(torch.eye(2), 6), source=mm.HiddenMarkov.rrxor()), "belief").data
    shares = {"r2": (0.811, 0.885), "r2_low": (0.78, 0.86), "r2_high": highest, "beyond": (0.6, 0.7)}
    data = data.assign({name: 0 * data[name] + np.array(value) for name, value in shares.items()})
    data = data.assign(best=0 * data["best"], baseline_r2=0 * data["baseline_r2"] + 0.5)
    told = claims_of(belief.probe, data)
    carries, forced = told.first("carries_belief"), told.first("follows_belief").condition("forced at")
    assert (carries.subject, carries.status, carries.value) == (("L0",), status, pytest.approx(0.885))
    assert (forced.words, forced.value) == (("embed",), pytest.approx(0.811))


def test_the_formula_of_the_belief_stream_is_the_one_that_is_computed():
    assert (
        belief.probe.formulas["belief_stream"]
        == "the earliest residual stream with 1 − R² ≤ 2 · the least + 0.001"
    )
