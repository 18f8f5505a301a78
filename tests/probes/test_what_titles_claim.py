"""Models set by hand that would make a title or a tile false, and what the first screen says instead."""

import dataclasses

import numpy as np
import pytest
import torch
from probing_cases import P3, probe_quickly, run_of

import mechmarkov as mm
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.probing.source_check import unlikely_transition
from mechmarkov.report.first_screen.circuit import circuit
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.first_screen.readings import named_heads
from mechmarkov.sources import Chain, OrderK

LOG_P = torch.tensor(np.log(P3)).float()
PROBES = ["behaviour", "storage", "ablation", "attention"]


def screen(model, source=None, probes=PROBES):
    run = run_of(model) if source is None else run_of(model, source=source)
    result = probe_quickly(run, probes, sequences=64)
    return result, headline(result)


def test_a_chain_whose_bigram_gains_nothing_is_not_learned_by_the_unigram():
    weak = Chain([[0.56, 0.44], [0.44, 0.56]])
    _, shown = screen(direct_table(torch.zeros(2, 2), 8), weak)
    assert shown.badge is None
    assert shown.title == "Undecided: the unigram is within 0.01 nats of the bigram"


def test_the_exact_bigram_of_an_order_two_source_has_not_learned_order_two():
    source = OrderK([[[0.97, 0.03], [0.12, 0.88]], [[0.90, 0.10], [0.03, 0.97]]])
    _, shown = screen(direct_table(torch.tensor(np.log(source.P)).float(), 16), source, ["behaviour"])
    assert shown.badge == "partly"
    assert shown.title.startswith("Partly learned: 9")


def test_a_head_that_looks_at_the_parent_and_is_worth_nothing_is_not_named():
    decoy = value_table(torch.zeros(3, 3), 8)
    with torch.no_grad():
        decoy.get_parameter("unembed.W_U")[:3] = LOG_P
    for probes in (PROBES, ["behaviour", "ablation", "attention"]):
        result, shown = screen(decoy, probes=probes)
        assert named_heads(result) == ["direct"]
        assert shown.title == "Learned the bigram: it is in direct"
    _, shown = screen(decoy, probes=["behaviour", "attention"])
    assert shown.title == "Learned the bigram: L0H0 attends to the parent"  # whether it reads was not asked


def test_the_direct_path_is_drawn_as_the_circuit_where_the_title_names_it():
    result, _ = screen(direct_table(LOG_P, 8))
    path = next(line for line in circuit(result).data if line.text and line.text.startswith("embed → logits"))
    assert not path.meta["grey"]


def test_a_small_random_start_at_the_trap_is_not_called_trapped():
    """What is left of the start grows: the same run had 76 % of the bigram 300 steps later."""
    run = mm.example("trap")
    near = dataclasses.replace(run, recipe=run.recipe | {"init": {"scheme": "normal", "std": 1e-4}})
    found, other = (probe_quickly(one, ["symmetry"])["symmetry"] for one in (near, run))
    assert (found.scores["trapped"].value, other.scores["trapped"].value) == (False, True)
    assert "It started at random (sd 0.0001), which breaks the symmetry." in found.verdict


@pytest.mark.parametrize("rare", [0, 8])
def test_a_rare_pair_does_not_hide_a_wrong_law(rare):
    source = Chain([[0.8 - 1e-5, 0.2, 1e-5], [0.2, 0.8 - 1e-5, 1e-5], [0.3, 0.3, 0.4]])
    other = Chain([[0.6, 0.4, 1e-9], [0.4, 0.6, 1e-9], [0.3, 0.3, 0.4]])
    states = other.sample(64, 65, generator=torch.Generator().manual_seed(0)).numpy()
    states[:rare, -2:] = [0, 2]
    said = unlikely_transition(source, states)
    assert "where the source has it" in said
    assert not said.startswith("state 2")  # too rare for a normal law
