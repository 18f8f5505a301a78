"""`train`: from a recipe to runs and files, resumed where it was interrupted."""

import time
from dataclasses import replace

import pytest
import torch
from fitting import same_run

from mechmarkov.probing.subject import Subject
from mechmarkov.runs import Run, RunFileError, load
from mechmarkov.safe import file as safe_file
from mechmarkov.sources import Binary, source_from_data
from mechmarkov.training import plan
from mechmarkov.training.recipe import load_recipe
from mechmarkov.training.train import TrainingDivergedError, train

RECIPE = load_recipe("walk-k6-half").with_set(["steps=8", "data.n_train=40"])
DIVERGES = load_recipe("binary-p05-q08-tied").with_set(["optimiser={kind='gd', lr=1e6}", "steps=8"])


class PowerCutError(Exception):
    """Something that ends a training in the middle."""


class OneTooMany(Binary):
    """Somebody's source that counts its states from 1."""

    def sample(self, *request, **options):
        return 1 + super().sample(*request, **options)


def stop_at(stop):
    def progress(step, steps):
        assert steps == 8
        if step == stop:
            raise PowerCutError

    return progress


def test_a_run_holds_what_was_trained():
    run = train(RECIPE, seed=3, device="cpu")
    assert run.steps.tolist() == list(range(9))
    assert (run.seed, run.recipe["name"]) == (3, "walk-k6-half")
    assert run.states["embed.W_E"].shape == (1, 7, 103)
    assert run.states["blocks.0.attn.W_O"].shape == (9, 1, 6, 103)
    assert set(run.metrics) == {"loss", "accuracy", "parent_attention", "attention_spread"}
    assert run.metrics["loss"]["step"].tolist() == list(range(9))
    assert run.provenance["wall_seconds"] > 0
    tokens = torch.cat([torch.arange(96)[None] % 6, torch.tensor([[6]])], 1)
    assert run.model()(tokens)[0, -1].argmax() in (0, 4)  # a neighbour of state 5


def test_one_seed_and_several_and_their_files(tmp_path):
    alone = train(RECIPE, seed=1, device="cpu", out=tmp_path / "one")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["run.pt"]
    same_run(alone, load(tmp_path / "one" / "run.pt"))
    several = train(RECIPE, seeds=[1, 2], device="cpu", out=tmp_path / "two")
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["seed-1.pt", "seed-2.pt"]
    assert [run.seed for run in several] == [1, 2]
    same_run(several[1], load(tmp_path / "two" / "seed-2.pt"))
    with pytest.raises(ValueError, match=r"seed is 0 and seeds are \[1\], expected only one of them"):
        train(RECIPE, seed=0, seeds=[1])


@pytest.mark.parametrize(
    "recipe", [RECIPE, load_recipe("binary-p05-q08-tied").with_set(["steps=8"])], ids=["walk", "binary"]
)
def test_an_interrupted_run_resumes_to_the_bit(tmp_path, recipe, monkeypatch):
    monkeypatch.setattr(plan, "cores", lambda: 1)  # two stacks at once have a file each
    whole = train(recipe, seeds=[0, 5], device="cpu")
    with pytest.raises(PowerCutError):
        train(recipe, seeds=[0, 5], device="cpu", out=tmp_path, save_every=0, progress=stop_at(5))
    assert [path.name for path in tmp_path.iterdir()] == ["partial.pt"]
    steps = []
    resumed = train(
        recipe, seeds=[0, 5], device="cpu", out=tmp_path, progress=lambda step, _: steps.append(step)
    )
    assert steps == [6, 7, 8]
    for one, other in zip(whole, resumed, strict=True):
        same_run(one, other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-0.pt", "seed-5.pt"]


@pytest.mark.parametrize(("others", "left"), [({}, False), ({"seed": 1}, True)])
def test_the_next_call_clears_what_is_done(tmp_path, others, left):
    """As after a kill between the last result and the clearing up."""
    with pytest.raises(PowerCutError):
        train(RECIPE, device="cpu", out=tmp_path, save_every=0, progress=stop_at(3), **({"seed": 0} | others))
    partial = (tmp_path / "partial.pt").read_bytes()
    (tmp_path / "partial.pt").unlink()
    train(RECIPE, seed=0, device="cpu", out=tmp_path)
    (tmp_path / "partial.pt").write_bytes(partial)
    train(RECIPE, seed=0, device="cpu", out=tmp_path)
    assert (tmp_path / "partial.pt").exists() == left


def test_what_another_training_left_is_not_taken(tmp_path):
    with pytest.raises(PowerCutError):
        train(RECIPE, seed=0, device="cpu", out=tmp_path, save_every=0, progress=stop_at(3))
    with pytest.raises(RunFileError, match=r"belongs to another interrupted training \(source.p is '0.5'"):
        train(RECIPE.with_set(["source.p=0.6"]), seed=0, device="cpu", out=tmp_path)
    safe_file.write(tmp_path / "partial.pt", {"format": "something else"})
    with pytest.raises(RunFileError, match=r"partial.pt is not an interrupted training"):
        train(RECIPE, seed=0, device="cpu", out=tmp_path)


def test_earlier_results_are_read_and_never_overwritten(tmp_path):
    first = train(RECIPE, seed=0, device="cpu", out=tmp_path)
    steps = []
    again = train(RECIPE, seed=0, device="cpu", out=tmp_path, progress=lambda step, _: steps.append(step))
    assert steps == []
    same_run(first, again)
    with pytest.raises(
        RunFileError, match=r"run.pt is of another recipe \(steps is \d+ there, 9 here\): .*--out"
    ):
        train(RECIPE.with_set(["steps=9"]), seed=0, device="cpu", out=tmp_path)
    with pytest.raises(RunFileError, match=r"run.pt is of another seed \(0\)"):
        train(RECIPE, seed=1, device="cpu", out=tmp_path)
    replace(first, recipe={**first.recipe, "speed": 2}).save(tmp_path / "run.pt")
    with pytest.raises(RunFileError, match=r"run.pt has a recipe that cannot be read \(unknown key speed"):
        train(RECIPE, seed=0, device="cpu", out=tmp_path)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(RunFileError, match=r"file: File exists, expected a folder for results"):
        train(RECIPE, device="cpu", out=tmp_path / "file")


@pytest.mark.parametrize("seeds", [[], [1, 1], [-1], [1 << 63], [True]])
def test_seeds_that_are_none(tmp_path, seeds):
    """Before any file is looked at: an earlier result would answer for them."""
    train(RECIPE, seeds=[1], device="cpu", out=tmp_path)
    for out in (None, tmp_path):
        with pytest.raises(ValueError, match=r"expected (an integer|different integers) from 0 to 2\^63 - 1"):
            train(RECIPE, seeds=seeds, device="cpu", out=out)


def test_a_training_that_fails_leaves_no_folder(tmp_path):
    out = tmp_path / "new" / "folder"
    with pytest.raises(TrainingDivergedError):
        train(DIVERGES, device="cpu", out=out)
    with pytest.raises(PowerCutError):
        train(RECIPE, device="cpu", out=out, progress=stop_at(1))
    with pytest.raises(ValueError, match="device is 'tpu'"):
        train(RECIPE, device="tpu", out=out)
    assert not any(tmp_path.iterdir())


def test_divergence_is_reported_and_nothing_of_it_saved(tmp_path):
    with pytest.raises(TrainingDivergedError, match=r"weights of seed 0, 1 are not finite after 8 steps"):
        train(DIVERGES, seeds=[0, 1], device="cpu", out=tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "partial.pt"] == []


def test_threads_are_as_before():
    before = torch.get_num_threads()
    train(RECIPE, device="cpu")
    assert torch.get_num_threads() == before


TASK_1 = {
    "name": "task-1",
    "source": {"kind": "fruit_questions", "task": 1},
    "model": {"kind": "decoder", "n_layers": 1, "d_model": 4, "d_head": 2, "n_ctx": 16, "attn_only": True},
    "optimiser": {"kind": "gd", "lr": 0.5},
    "data": {"batch": 4},
    "steps": 3,
}


@pytest.fixture(scope="module")
def words():
    return train(TASK_1, seed=0, device="cpu")


def test_a_run_starts_seeds_of_another_objective(words):
    answers = load_recipe(TASK_1).with_set(["objective.read=last", "data.batch=8"])
    started = train(answers, seeds=[4, 5], device="cpu", start=words)
    for run in started:
        for name, tensor in run.model(step=0).state_dict().items():
            assert torch.equal(tensor, words.states[name][-1]), name
        assert run.provenance["started_from"] == words.title()
    first, second = (run.states["embed.W_E"][-1] for run in started)
    assert not torch.equal(first, second)  # one start, and each its own data
    assert not torch.equal(first, words.states["embed.W_E"][-1])
    assert "started_from" not in words.provenance


def test_untrained_parts_stay_where_they_started(words):
    part = load_recipe(TASK_1).replace(**{"trainable": {"unembed.W_U": [[0, 2], [0, 19]]}})
    run = train(part, seed=1, device="cpu", start=words)
    before, after = words.states["unembed.W_U"][-1], run.states["unembed.W_U"][-1]
    assert torch.equal(after[2:], before[2:])
    assert not torch.equal(after[:2], before[:2])
    assert torch.equal(run.states["embed.W_E"][0], words.states["embed.W_E"][-1])


def test_a_misfitting_start_is_refused_by_name(tmp_path, words):
    wider = load_recipe(TASK_1).with_set(["model.d_head=4"])
    with pytest.raises(ValueError, match=r"start has model.d_head 2, expected 4 as in recipe 'task-1'"):
        train(wider, seed=0, device="cpu", start=words)
    with pytest.raises(ValueError, match="start is given and files are asked for"):
        train(TASK_1, seed=0, device="cpu", start=words, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    walk = train(RECIPE, seed=0, device="cpu")
    with pytest.raises(ValueError, match=r"start is given, but model\.kind is 'walk'"):
        train(RECIPE, seed=0, device="cpu", start=walk)


@pytest.mark.parametrize("data", ["{batch=4}", "{n_train=40}"])
def test_a_source_that_draws_nonstates_is_named(data, tmp_path):
    said = "^source 'binary' draws states from 1 to 2, expected 0 to 1$"
    recipe = load_recipe("binary-p05-q08-tied").with_set([f"data={data}", "steps=2"])
    run, other = train(recipe, seed=0), OneTooMany(p=0.5, q=0.8)
    with pytest.raises(ValueError, match=said):
        train(recipe.model_copy(update={"source": other}), seed=0, out=tmp_path / "out")
    assert not any(tmp_path.iterdir())
    with pytest.raises(ValueError, match=said):
        Subject.of(replace(run, source=other))
    with pytest.raises(ValueError, match=said):
        Run.from_model(run.model(step=-1), source=other)


def test_a_wrong_generator_is_named():
    with pytest.raises(TypeError, match=r"^generator is 5, expected torch.Generator\(\).manual_seed\(0\)$"):
        Binary(p=0.5, q=0.8).sample(4, 5, generator=5)


def test_what_is_not_a_sources_data_is_refused():
    for data in ("circle", [1]):
        with pytest.raises(TypeError, match=r"^source is .+, expected a dict such as {'kind': …}$"):
            source_from_data(data)


@pytest.mark.parametrize("recipe", ["binary-p05-q08-tied", "walk-k20-trap"])
def test_a_run_has_the_seconds_that_it_took(recipe):
    began = time.perf_counter()
    run = train(load_recipe(recipe).with_set(["steps=2", "checkpoints=[0,2]"]), device="cpu")
    assert 0 < run.provenance["wall_seconds"] < time.perf_counter() - began
