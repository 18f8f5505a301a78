"""Where the bigram is: a wrong run does not hold, floors and what is followed against direct computation."""

import numpy as np
import pytest
import torch

import mechmarkov as mm
from experiments.where_is_the_bigram import births, data, homes, layers, steps
from experiments.where_is_the_bigram.shared import follow


@pytest.fixture
def short(small_runs):
    """A run of twenty steps."""
    return small_runs(births.learned(True, steps=20), (3,))[0]


def still(recipe: mm.Recipe) -> mm.Recipe:
    """The same recipe with nothing learned: a step so small that float32 does not see it."""
    return recipe.replace(
        **{"optimiser": {"kind": "gd", "lr": 1e-20}, "steps": 30, "checkpoints": [10, 20, 30]}
    )


def test_a_model_that_learns_nothing_has_no_memories(monkeypatch, small_runs):
    runs = small_runs(still(births.learned(True)), (0, 1))
    monkeypatch.setattr(births, "fleet", lambda quick: runs)
    assert {claim.direction for claim in births.births(True).findings} == {"against"}


def test_without_damage_by_mlps_or_heads_the_layers_have_no_parts_to_play(monkeypatch):
    nothing = {"L0H0": (0.3, 0.0), "L0.mlp": (0.0, 0.1), "L1H0": (0.0, 0.0), "direct": (0.2, 0.0)}
    monkeypatch.setattr(layers, "damage", lambda run: nothing)
    monkeypatch.setattr(layers, "fleet", lambda quick: [None])
    monkeypatch.setattr(layers, "fully_trained", lambda quick: [None])
    assert {claim.direction for claim in layers.layers(True).findings} == {"against"}


def test_a_first_step_from_which_nothing_is_recalled_does_not_hold(monkeypatch):
    monkeypatch.setattr(steps, "recall", lambda width, sequences, seeds: [1 / 12] * seeds)
    assert steps.first_step(True).findings[0].direction == "against"


def test_homes_that_are_elsewhere_do_not_hold(monkeypatch):
    found = homes.Home(
        share={"direct": 0.1, "L0H0": 0.2, "L0.mlp": 0.3}, only=0.1, full=0.001, empty=0.3, floor=0.2
    )
    monkeypatch.setattr(homes, "homes_of", lambda shape, n_states, quick: [found])
    assert {claim.direction for claim in homes.homes(True).findings} == {"against"}


def test_the_floor_is_zero_for_a_table_that_the_direct_path_can_hold():
    symmetric = np.array([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]])
    assert homes.floor(mm.Chain(symmetric), tied=False) == 0
    # L-BFGS stops at a gradient of 1e-7.
    assert homes.floor(mm.Chain(symmetric), tied=True) == pytest.approx(0, abs=1e-6)
    turning = np.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    assert homes.floor(mm.Chain(turning), tied=True) > 0.3


def test_a_tied_direct_path_cannot_turn_two_states_round():
    """Two states: the tied table is `[[a, c], [c, b]]`, positive semidefinite, with a bias a column."""
    P = np.array([[0.1, 0.9], [0.8, 0.2]])
    pi = mm.Chain(P).pi
    # In log-odds the rows are c - a + bias and b - c + bias: the second less the first is a + b - 2 c >= 0,
    # while the chain's is negative. So the best table has both rows alike: the unigram.
    expected = (pi[:, None] * P * np.log(P / pi)).sum()
    assert homes.floor(mm.Chain(P), tied=True) == pytest.approx(expected, abs=1e-6)


def test_what_is_followed_early_is_the_recall_of_the_first_positions(short):
    run, found = short, follow(short)
    assert found.step.tolist() == [0, 10, 20]
    # The first quarter of the positions, by hand.
    model = run.model()
    p, attn = model.W_pos[:8].detach(), model.blocks[0].attn
    scores = (p @ attn.W_Q[0] @ attn.W_K[0].T @ p.T).detach()
    scores = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
    hits = [int(scores[t].argmax() == t - 1) for t in range(1, 8)]
    assert found.early[-1] == pytest.approx(np.mean(hits))


def test_outputs_that_cost_nothing_do_not_hold(monkeypatch):
    monkeypatch.setattr(data, "trained", lambda recipes, seeds: [[recipes[0].source.outputs]])
    monkeypatch.setattr(data, "accuracy", lambda run, outputs: 0.9)
    (found,) = data.outputs(True).findings
    assert found.count == (0, 1)
    # A model of the bigram's outputs is worse on uniform ones, the other one is not.
    monkeypatch.setattr(data, "accuracy", lambda run, outputs: 0.4 if run != outputs == "uniform" else 0.9)
    (found,) = data.outputs(True).findings
    assert found.count == (1, 1)
