"""Models of odd sources, tables and trainings: what their pages told that was not so."""

import pytest
import torch
from mixed_models import LONG, P, lag, log_of, reading, with_direct_table
from more_models import P4, only_after
from probing_cases import probe_quickly, run_of

from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.sources import Chain, DirichletChains, LaggedChain, TriggerBigram

L, L4 = log_of(P), log_of(P4)


def told(*models, probes, source=None, sequences=64):
    steps = "all" if len(models) > 1 else "last"
    source = Chain(P) if source is None else source
    result = probe_quickly(run_of(*models, source=source), probes, sequences=sequences, steps=steps)
    screen = headline(result)
    return result, screen, {tile.question: tile for tile in screen.tiles}


# Harm


def test_harm_beyond_all_help_comes_first():
    """What is worth 0.2 nats was the answer, next to a head that costs 1.4."""
    model = reading([0.5 * L, 3 * L.roll(1, 0)], [lag(2), lag(3)])
    probes = ["behaviour", "ablation"]
    _, _, tiles = told(model, probes=probes, source=LaggedChain(P.tolist(), 2))
    lives = tiles["Where does it live?"]
    assert lives.answer == "L0H1 does harm, more than L0H0 helps"
    assert lives.sentence.startswith("L0H1 does harm: without it the loss falls by")
    assert "L0H0 is needed most" in lives.sentence


def test_harm_next_to_a_circuit_is_told():
    model = with_direct_table(induction_pair(3, LONG, gain=3.0), 2 * torch.eye(3))
    probes = ["behaviour", "induction", "ablation"]
    _, _, tiles = told(model, probes=probes, source=DirichletChains(n_states=3))
    lives = tiles["Where does it live?"]
    assert lives.answer == "L0H0 → L1H0"
    assert "The direct path does harm" in lives.sentence


@pytest.mark.parametrize(("table", "is_circuit"), [(0.5, False), (0.0, True)])
def test_a_circuit_that_disturbs_is_not_the_home(table, is_circuit):
    """Half a table is nearer to the bigram without the circuit, which the title named."""
    model = with_direct_table(induction_pair(3, LONG, gain=2.0), table * L)
    _, screen, tiles = told(model, probes=["behaviour", "induction", "ablation"])
    assert ("L1H0" in tiles["Where does it live?"].answer) is is_circuit
    assert ("feeds" in screen.title) is is_circuit


# Induction


def after_triggers(gain):
    """Build an induction circuit after two triggers, next to a table of the global bigram elsewhere."""
    model = induction_pair(4, LONG, gain=gain, only_after=[0, 2])
    return with_direct_table(model, only_after(L4, [1, 3]))


def test_a_circuit_is_judged_by_the_best_law():
    """Without the path KL from the mean of all sequences' laws falls, and it was said to do harm."""
    source = TriggerBigram(P4.tolist(), [0, 2])
    result, *_ = told(after_triggers(6.0), probes=["induction", "ablation"], source=source)
    carries = result.claims.first("carries")
    assert carries.object == ("repeat_output",)
    assert carries.is_shown
    assert not carries.condition("does harm")
    backwards, *_ = told(after_triggers(-6.0), probes=["induction"], source=source)
    assert backwards.claims.first("carries").condition("does harm")
