"""Runs and models that would make a sentence of symmetry, landscape, graph or belief false."""

import numpy as np
import pytest
import torch
from probing_cases import probe_quickly, run_of
from test_landscape import SMALL_WALK, trained

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
    assert "Trapped by symmetry: 3 divides N - 1 = 18" in found.verdict
    assert "The reduced system of K + N = 22 numbers has a spread of 0." in found.verdict
    assert "at random" not in found.verdict


@pytest.mark.parametrize(
    ("every", "steps", "said"),
    [
        (
            20,
            400,
            "Linear theory had it leave by step 18; its amplitude is below 1 at every kept step from 0 on.",
        ),
        (5, 10, "By linear theory it will leave by step 18."),  # and it did not: see the first
    ],
)
def test_a_run_that_has_learned_is_not_said_to_leave_in_the_past(every, steps, said):
    """The minimum itself lies at an amplitude of 0.6, which is below the one that counts as away."""
    model = mm.load_recipe("binary-p08-q08-tied-gd").to_data()["model"] | {"n_ctx": 16}
    changes = {"source": {"kind": "binary", "p": 0.4, "q": 0.4}, "model": model, "data": {"batch": 64}}
    run = trained("binary-p08-q08-tied-gd", steps=steps, checkpoints={"every": every}, **changes)
    found = verdict_of(run, "landscape")
    assert said in found.verdict
    assert ("will leave" in found.verdict) == (steps < 18)
    reason = "the amplitude along the growing modes is below 1 at every kept step from 0 on"
    assert found.scores["escape_step"].reason == reason


SPARSE = [[], [], [], [], [], [], [], [0], [1], [2], [3], [4], [5], []]
SINK = [[0] if not parents and i else parents for i, parents in enumerate(SPARSE[:-1])]


def along(parents):
    source = mm.CausalGraph(n_states=3, parents=SPARSE, concentration=0.5)
    objective = mm.Objective(kind="raw_log", read="last")
    return verdict_of(run_of(graph_heads(3, parents), source=source, objective=objective), "graph")


def test_where_roots_put_their_attention_does_not_hide_the_graph():
    """A softmax sums to one, and a root has no parent to look at."""
    found = along(SINK)
    assert found.scores["graph_head"].value == "L0H0"
    assert found.scores["precision"].value == found.scores["recall"].value == 1.0
    assert found.scores["precision"].null == along(SPARSE[:-1]).scores["precision"].null
    assert "L0H0 attends along the graph: 6 of its 6 edges are true, of 6 between" in found.verdict
    assert "(6 more from tokens without a parent count neither way)" in found.verdict
    assert "neither way" not in along(SPARSE[:-1]).verdict


def test_edges_of_roots_alone_are_edges_and_none_of_the_graph():
    found = along([[0] if not parents and i else [] for i, parents in enumerate(SPARSE[:-1])])
    assert "none of the 6 edges that heads have is one of the graph's 6" in found.verdict
    assert found.scores["precision"].reason.startswith("no position that has a parent gives an earlier one")


@pytest.mark.parametrize("table", [torch.zeros(2, 2), 2 * torch.eye(2)], ids=["exact", "wrong"])
def test_a_state_that_changes_no_law_leaves_nothing_to_follow(table):
    source = mm.HiddenMarkov(transitions=[[0.5, 0.5], [0.5, 0.5]], emissions=[[0.9, 0.1], [0.1, 0.9]])
    found = verdict_of(run_of(direct_table(table, 8), source=source), "belief")
    assert belief.is_used(found.data.isel(step=-1)) is None
    said = (
        "The exact laws under different hidden states are under 0.001 nats apart: there is nothing to follow."
    )
    assert found.verdict.endswith(said)
    assert "follow a forced state" not in found.verdict


@pytest.mark.parametrize(
    ("highest", "said"),
    [
        (
            (0.84, 0.92),
            "The stream after block 0 may carry the belief over 8 hidden states: R² 0.885 held out.",
        ),
        ((0.92, 0.89), "The stream after block 0 may carry"),  # the other stream may
        ((0.84, 0.89), "The stream after block 0 does not carry the belief"),
    ],
)
def test_a_belief_is_denied_only_where_no_stream_may_carry_it(highest, said):
    """The earliest stream that is nearly the best has a smaller R² than the best."""
    data = verdict_of(run_of(direct_table(torch.eye(2), 6), source=mm.HiddenMarkov.rrxor()), "belief").data
    shares = {"r2": (0.811, 0.885), "r2_low": (0.78, 0.86), "r2_high": highest, "beyond": (0.6, 0.7)}
    data = data.assign({name: 0 * data[name] + np.array(value) for name, value in shares.items()})
    data = data.assign(best=0 * data["best"], baseline_r2=0 * data["baseline_r2"] + 0.5)
    assert belief.verdict(data).startswith(said)
    assert "A state is forced in the embedding (R² 0.811), the earliest with" in belief.verdict(data)


def test_the_formula_of_the_belief_stream_is_the_one_that_is_computed():
    assert (
        belief.FORMULAS["belief_stream"] == "the earliest residual stream with 1 − R² ≤ 2 · the least + 0.001"
    )
