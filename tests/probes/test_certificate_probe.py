"""The probe `certificate`: circuits that it must name and must not, its scores, sentences and pictures."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.certificate import probe
from probing_cases import CHAIN, P3, RAW_LOG, ask, parent_logits, run_of, subject_of, walk_run

import mechmarkov as mm
from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.sources import Circle

TABLE = torch.tensor(np.log(P3))


def test_a_walk_that_reads_its_parent_is_a_table_on_every_path():
    walk = Circle(n_states=6, p=0.3)
    data, scores, verdict = ask(probe, walk_run(walk, walk.P.T, parent_logits(12)))
    assert (scores["tier"].value, scores["certified_program"].value) == ("1", "parent")
    assert scores["worst_kl"].value < 1e-8
    assert scores["worst_kl_seen"].value <= scores["worst_kl"].value
    assert scores["mean_kl_bound"].value < 1e-8
    assert scores["worst_log_ratio"].value < 1e-3
    np.testing.assert_allclose(data["table"], walk.P, atol=1e-4)
    (claim,) = verdict.where("is_bounded", status="shown")
    assert claim.object == ("parent",)
    assert claim.condition("sequences").words == ("6,144",)


def test_a_head_that_reads_two_back_is_no_table_and_the_worst_sequence_shows_it():
    run = run_of(value_table(TABLE, 9, lag=2), source=CHAIN)
    data, scores, verdict = ask(probe, run)
    assert scores["worst_kl_seen"].value > 0.1
    assert scores["worst_kl"].interval == (scores["worst_kl_seen"].value, scores["worst_kl"].value)
    last = data.isel(step=-1)
    law, model = last["witness_program"].values, last["witness_model"].values
    assert float((law * np.log(law / model)).sum()) == pytest.approx(scores["worst_kl_seen"].value, rel=1e-4)
    history = last["witness"].values
    np.testing.assert_allclose(model, P3[history[-2]] if len(history) > 1 else P3[history[0]], atol=1e-4)
    assert verdict.first("is_bounded").condition("largest seen").value == scores["worst_kl_seen"].value


def test_a_model_without_a_bound_says_why_and_shows_the_worst_sequence():
    data, scores, verdict = ask(probe, mm.example("graph"), sequences=8)
    assert scores["tier"].value == "0"
    for name in ("worst_kl", "worst_log_ratio", "worst_logit_error"):
        assert scores[name].value is None
        assert "2 layers" in scores[name].reason
    assert scores["worst_kl_seen"].value > 0.1
    assert scores["mean_kl"].value < scores["mean_kl_bound"].value
    assert verdict.first("is_bounded").status == "open"
    assert "2 layers" in verdict.first("is_bounded").condition("no bound").words[0]
    assert len(probe.figures(data)) == 3


def test_every_step_is_measured_and_drawn():
    walk = Circle(n_states=5, p=0.5)
    V = 0.2 + 0.8 * walk.P.T
    run, sharp = walk_run(walk, V, np.zeros(6)), walk_run(walk, V, parent_logits(6))
    both = run_of(run.model(), sharp.model(), source=run.source, objective=RAW_LOG)
    data = probe.measure(subject_of(both, "all", sequences=8))
    bound, seen = data["worst_kl"].values, data["worst_kl_seen"].values
    assert (seen <= bound).all()
    assert bound[0] > 1e3 * bound[1]
    titles = [figure.title for figure in probe.figures(data)]
    assert titles == [
        "The worst KL, certified and seen",
        "The worst KL over training",
        "Both predictions after the worst sequence",
        "Attention on the end of the worst sequence",
    ]


def test_the_probe_runs_only_where_it_is_named():
    assert probe.on_request
    result = mm.probe(mm.example("walk"), ["certificate"], sequences=8)
    assert result["certificate"].scores["tier"].value == "1"
    assert result.failed == {}
