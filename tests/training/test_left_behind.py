"""Left files that do not fit a training; words of a written recipe and of a board."""

import copy
import tomllib

import pytest
import torch
from fitting import BASE, start_of, take_step

from mechmarkov.safe import file as safe_file
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sweeps.board import HEAD, Board
from mechmarkov.sweeps.tasks import Done, Item, Task
from mechmarkov.training import resume
from mechmarkov.training.execute import aim_in_words
from mechmarkov.training.new_recipe import new_recipe, toml
from mechmarkov.training.recipe import RecipeError, load_recipe
from mechmarkov.training.workload import Member, members_of

CPU = torch.device("cpu")
OTHER = BASE.with_set(["optimiser.lr=0.5"])


@pytest.fixture(scope="module")
def snapshot():
    training = start_of(members_of(BASE, [0, 1]))
    for _ in range(11):
        take_step(training)
    return training.snapshot()


def refused(snapshot, **parts):
    with pytest.raises(ValueError, match="does not fit this one: delete it to start again"):
        start_of(members_of(BASE, [0, 1])).restore({**copy.copy(snapshot), **parts})


def test_a_snapshot_of_other_kinds_is_refused(snapshot):
    weights = snapshot["parameters"]
    name = next(iter(weights))
    start_of(members_of(BASE, [0, 1])).restore(snapshot)
    refused(snapshot, step=-1)
    refused(snapshot, step=None)
    refused(snapshot, step=9)  # a checkpoint of step 10 is there
    refused(snapshot, metrics=[])
    refused(snapshot, metrics={"loss": torch.zeros(())})
    refused(snapshot, metrics={"loss": torch.zeros(30, 2)})  # of 21 at most
    refused(snapshot, parameters={})
    refused(snapshot, parameters=weights | {name: weights[name][..., :1, :1].repeat_interleave(7, -1)})
    refused(snapshot, optimiser=None)
    refused(snapshot, generators=3)
    refused(snapshot, checkpoints={})
    refused(snapshot, checkpoints={"a": {}})


def test_a_stack_goes_on_only_as_itself(snapshot, tmp_path):
    path, members = tmp_path / "partial.pt", members_of(BASE, [0, 1])
    assert resume.read(path, members, CPU) is None
    resume.write(path, members, CPU, snapshot)
    assert resume.read(path, members, CPU)["step"] == 11
    for words, wrong in {
        "seeds is '[0, 1]' there and '[0, 2]' here": members_of(BASE, [0, 2]),
        "optimiser.lr is '0.01' there and '0.5' here": members_of(OTHER, [0, 1]),
        "recipes": [Member(BASE, 0), Member(OTHER, 1)],
    }.items():
        with pytest.raises(RunFileError, match="belongs to another interrupted training") as error:
            resume.read(path, wrong, CPU)
        assert words in str(error.value)
    with pytest.raises(RunFileError, match="device is 'cpu' there and 'meta' here"):
        resume.read(path, members, torch.device("meta"))
    for key, value in {"format": "other", "version": 1}.items():
        safe_file.write(path, safe_file.own_copy(safe_file.read(path)) | {key: value})
        with pytest.raises(RunFileError, match="is not an interrupted training of this version"):
            resume.read(path, members, CPU)
        resume.write(path, members, CPU, snapshot)


def test_a_stack_of_swapped_recipes_is_another(snapshot, tmp_path):
    """Recipes and seeds are the same lists; which member has which recipe is not."""
    resume.write(tmp_path / "partial.pt", [Member(BASE, 0), Member(OTHER, 0), Member(BASE, 1)], CPU, snapshot)
    with pytest.raises(RunFileError, match=r"recipe_of is '\[0, 1, 0\]' there and '\[0, 1, 1\]' here"):
        resume.read(tmp_path / "partial.pt", [Member(BASE, 0), Member(OTHER, 0), Member(OTHER, 1)], CPU)


def test_only_what_is_ones_own_is_cleared(snapshot, tmp_path):
    resume.write(tmp_path / "partial.pt", [Member(OTHER, 0), Member(BASE, 0)], CPU, snapshot)
    resume.clear(tmp_path, BASE.to_data(), [0])
    assert len(list(tmp_path.iterdir())) == 1
    resume.write(tmp_path / "partial.pt", members_of(BASE, [0, 1]), CPU, snapshot)
    (tmp_path / "partial-2.pt").write_bytes(b"damaged")
    resume.clear(tmp_path, BASE.with_set(["steps=3"]).to_data(), [0, 1])
    resume.clear(tmp_path, BASE.to_data(), [0])
    assert len(list(tmp_path.iterdir())) == 2
    resume.clear(tmp_path, BASE.to_data(), [1, 0, 5])
    assert [path.name for path in tmp_path.iterdir()] == ["partial-2.pt"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (1, 1, 32, 32, 64, 1000)),
        ({"layers": 3, "heads": 4, "width": 16, "context": 2, "steps": 1}, (3, 4, 16, 4, 2, 1)),
    ],
)
def test_a_new_recipe_has_the_sizes_that_are_said(settings, expected):
    recipe = load_recipe(tomllib.loads(new_recipe("circle", **settings)))
    c = recipe.decoder_config
    assert (c.n_layers, c.n_heads, c.d_model, c.d_head, c.n_ctx, recipe.steps) == expected
    assert (recipe.data.batch, recipe.checkpoints.log, recipe.optimiser.lr) == (32, 20, 2e-3)
    assert (recipe.name, recipe.objective.read) == ("my-circle", "all")


@pytest.mark.parametrize("heads", [0, -1, 3, 33])
def test_heads_divide_the_width(heads):
    with pytest.raises(RecipeError, match=f"^heads is {heads}, expected a divisor of the width, 32$"):
        new_recipe("circle", heads=heads)


def test_comments_are_a_hundred_characters_wide():
    widths = [len(line) for line in new_recipe("circle").splitlines() if line.startswith("# ")]
    assert 90 < max(widths) <= 100


def test_toml_is_written_on_one_line():
    assert toml({"a": [1, 0.5, "é"], "b": {"c": False}}) == '{ a = [1, 0.5, "é"], b = { c = false } }'


def test_an_aim_is_one_number_in_the_losss_unit():
    one, other = load_recipe("binary-p05-q08-tied"), load_recipe("binary-p02-q03-untied")
    assert aim_in_words([one, one]) == ", entropy rate 0.619"
    assert aim_in_words([one, other]) == ""
    assert aim_in_words([one, load_recipe("walk-k6-half")]) == ""


def row(status, stuck, seconds):
    return {"status": status, "stuck": stuck and {"value": stuck[0]}, "seconds": seconds}


def test_a_board_counts_what_has_ended(capsys):
    member = Member(BASE, 0)
    tasks = [Task(number, (Item("a", member), Item("b", member), Item("c", member))) for number in (0, 1)]
    board = Board(tasks, show=True)
    board.progress_of(tasks[0])(5, 20)
    assert board.bar.n == 0.8  # a quarter of three runs
    rows = row("ok", [True], 1.26), row("ok", [None], 1.0), row("diverged", None, 0.0)
    board.done(tasks[0], Done(rows, {}))
    assert board.bar.n == 3
    board.moved(9.0)
    assert board.bar.n == 6
    board.close()
    shown = capsys.readouterr().err
    assert HEAD in shown
    assert "      1/2      3         1      1 of 1      2.3           3/6" in shown
    assert Board(tasks, show=False).progress_of(tasks[0]) is None
