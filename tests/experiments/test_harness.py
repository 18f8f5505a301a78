"""The harness of experiments: statistics, verdicts, runs that are kept, the command line."""

import json

import numpy as np
import pytest
import torch

import mechmarkov as mm
from experiments.claims import Finding, holds, wilson
from experiments.exactness import exactly
from experiments.harness import Measured, Study, first_time, keep_runs, kept, trained, when


def test_wilson_interval_against_its_formula():
    n, hits, z = 200, 90, 1.959963984540054
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * (hits * (n - hits) / n + z * z / 4) ** 0.5
    assert wilson(hits, n) == pytest.approx((centre - half, hits / n, centre + half), rel=1e-9)


def test_an_event_is_there_to_stay_for_three_steps():
    step = np.array([0.0, 10.0, 20.0, 30.0, 40.0, 50.0])
    there = np.array([True, False, True, True, True, False])
    assert first_time(there, step, stays=3) == 20
    assert first_time(~there, step, stays=3) == np.inf
    assert first_time(there[:2], step[:2], stays=3) == np.inf
    assert when([20.0, 40.0, np.inf]) == "40 [20, never]"


def test_an_event_that_stays_to_the_end():
    assert first_time(np.array([True, False, True, True]), stays=None) == 2
    assert first_time(np.array([True, True, False]), stays=None) == np.inf
    assert first_time(np.array([True, True]), np.array([5, 7]), stays=None) == 5


@pytest.fixture
def recipe():
    return mm.load_recipe("walk-k6-half").with_set(["steps=2", "checkpoints=[0, 2]", "data.n_train=50"])


def test_kept_runs_are_those_that_were_trained_and_are_not_trained_again(tmp_path, monkeypatch, recipe):
    faster = recipe.with_set(["optimiser.lr=0.5"])
    with keep_runs(tmp_path):
        first = trained([recipe, faster], [0, 1])
        assert [[run.seed for run in runs] for runs in first] == [[0, 1], [0, 1]]
        kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        assert len(kept) == 4
        asked = []
        train_members = mm.training.train_members
        monkeypatch.setattr(
            mm.training,
            "train_members",
            lambda members, **k: asked.extend(members) or train_members(members, **k),
        )
        again = trained([recipe, faster], [0, 1, 2])
        assert [run.seed for run in trained([recipe], [0, 1])[0]] == [0, 1]
    assert [(member.recipe, member.seed) for member in asked] == [(recipe, 2), (faster, 2)]
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}.items()
    for runs, same in zip(first, again, strict=True):
        for run, loaded in zip(runs, same[:2], strict=True):
            for name, value in run.states.items():
                assert torch.equal(value, loaded.states[name])
    (alone,) = trained([recipe], [1])  # out of the folder's reach: trained again, and the same
    torch.testing.assert_close(alone[0].states["blocks.0.attn.W_O"], first[0][1].states["blocks.0.attn.W_O"])
    assert [member.seed for member in asked] == [2, 2, 1]


def test_a_run_of_a_loop_of_its_own_is_kept_too(tmp_path, recipe):
    trainings = []

    def train():
        trainings.append(1)
        return mm.train(recipe, seed=0, progress=False)

    with keep_runs(tmp_path):
        first, again = kept("a loop", train), kept("a loop", train)
        assert len(trainings) == 1
        kept("another loop", train)
    kept("a loop", train)  # out of the folder's reach
    assert len(trainings) == 3
    assert torch.equal(first.states["blocks.0.attn.W_O"], again.states["blocks.0.attn.W_O"])


def test_a_run_that_diverges_is_an_error(recipe):
    with pytest.raises(ValueError, match="seed 0"):
        trained([recipe.with_set(["init.scheme=normal", "init.std=1"])], [0])


@exactly
def quick_or_not(quick: bool) -> Measured:
    """A measurement that says how it was called."""
    return Measured([Finding("quick", str(quick), holds(quick), "by asking", "computed exactly")])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "claims.toml").write_text(
        """
[paper.own]
about = "shi2025"
where = "this file"
words = "own: it is quick"
read = "own"
kind = "derived"

[quick]
paper = "own"
claim = "it is quick"
"""
    )
    return tmp_path


def test_the_command_line_prints_what_it_measures(folder, capsys):
    study = Study(folder, "about", [quick_or_not])
    study.main(["--quick", "--only", "quick_or_not"])
    printed = capsys.readouterr().out
    assert ".quick) | this file |" in printed
    assert "**holds**" in printed
    assert [path.name for path in folder.iterdir()] == ["claims.toml"]


@pytest.mark.browser  # which draws the figures
def test_the_command_line_writes_where_there_is_a_reading(folder, capsys):
    study = Study(folder, "about", [quick_or_not])
    with pytest.raises(SystemExit):
        study.main(["--out", str(folder)])
    assert "reading.md" in capsys.readouterr().err
    (folder / "reading.md").write_text("# Title\n\n{table}\n")
    with pytest.raises(SystemExit):
        study.main(["--quick", "--out", str(folder)])
    study.main(["--out", str(folder)])
    (record,) = json.loads((folder / "results" / "quick_or_not.json").read_text())["findings"]
    assert record["direction"] == "against"
    assert "**does not hold**" in (folder / "README.md").read_text()


@pytest.mark.slow  # each process compiles for half a minute
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # its compiler uses what it deprecates
def test_compiled_trainings_are_those_that_are_not(tmp_path):
    plain = mm.load_recipe("binary-p05-q08-tied").with_set(
        ["steps=2", "checkpoints=[]", "model.n_ctx=16", "data.batch=4"]
    )
    (expected,) = trained([plain], range(3))
    with keep_runs(tmp_path):
        (found,) = trained([plain.with_set(["compile=true"])], range(3))
    for run, same in zip(found, expected, strict=True):
        assert run.seed == same.seed
        for name, value in same.states.items():
            assert torch.allclose(run.states[name], value, atol=1e-5)
