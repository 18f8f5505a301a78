"""Checkpoints as a trajectory: one run with many steps, in numeric order."""

import shutil
from pathlib import Path

import pytest
import torch
from public_codes import SOURCE

from mechmarkov.cli import main
from mechmarkov.runs import load
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError

FOREIGN = Path(__file__).parent / "golden" / "foreign"
GIVEN = {"normalization_type": None, "positional_embedding_type": "standard"}
BARE = FOREIGN / "tl2_bare_attn_only.pt"


def checkpoints(folder: Path, steps: tuple[int, ...]) -> Path:
    """One model at several steps, with its unembedding bias at the step's number."""
    state = torch.load(BARE, weights_only=True)
    folder.mkdir(exist_ok=True)
    for step in steps:
        kept = {**state, "unembed.b_U": torch.full((5,), float(step))}
        torch.save(kept, folder / f"seed3_step{step}.pt")
    return folder


@pytest.mark.parametrize("how", ["folder", "pattern", "files"])
def test_steps_come_in_numeric_order(tmp_path, how):
    folder = checkpoints(tmp_path / "made", (1000, 20, 3))
    (folder / "log.txt").write_text("not a checkpoint", "utf-8")
    paths = {"folder": [folder], "pattern": [folder / "*.pt"], "files": sorted(folder.glob("*.pt"))}[how]
    run = import_run(paths, source=SOURCE, given=GIVEN).run
    assert run.steps.tolist() == [3, 20, 1000]
    assert run.states["unembed.b_U"][:, 0].tolist() == [3.0, 20.0, 1000.0]
    assert run.provenance["files"] == ["seed3_step3.pt", "seed3_step20.pt", "seed3_step1000.pt"]


def test_a_step_that_the_file_says_counts(tmp_path):
    data = torch.load(FOREIGN / "nanogpt_bias.pt", weights_only=True)
    for number, iteration in (("a", 500), ("b", 20)):
        torch.save({**data, "iter_num": iteration}, tmp_path / f"{number}.pt")
    run = import_run([tmp_path], source=SOURCE, given={"act_fn": "gelu"}).run
    assert run.steps.tolist() == [20, 500]
    alone = import_run([tmp_path / "a.pt"], source=SOURCE, given={"act_fn": "gelu"}).run
    assert (alone.steps.tolist(), alone.title()[-8:]) == ([500], "step 500")


def test_a_step_that_no_file_says_is_unknown(tmp_path):
    shutil.copy(BARE, tmp_path / "model.pt")
    found = import_run([tmp_path / "model.pt"], source=SOURCE, given=GIVEN)
    assert found.run.title().endswith("step unknown")
    assert "its training step is unknown: it stands as step 0" in found.notes


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a.pt", "b.pt"), "differ in 0 numbers, expected one, the training step"),
        (("s1_1.pt", "s2_2.pt"), "differ in 2 numbers, expected one, the training step"),
        (("epoch_1.pt", "step_50.pt"), "count epochs and steps: give those of one kind"),
        (("s1_1.pt", "s2.pt"), "do not hold equally many numbers"),
        (("s1.pt", "s01.pt"), "differ in 0 numbers"),
        (("s1.pt", "s01.pt", "s2.pt"), "step 1 is also that of"),
    ],
    ids=str,
)
def test_steps_that_cannot_be_told_are_refused(tmp_path, names, words):
    for name in names:
        shutil.copy(BARE, tmp_path / name)
    with pytest.raises(RunFileError) as error:
        import_run([tmp_path], source=SOURCE, given=GIVEN)
    assert words in str(error.value)


def test_mixtures_are_refused(tmp_path):
    shutil.copy(FOREIGN / "tl2_mlp_ln.pt", tmp_path / "step1.pt")
    shutil.copy(FOREIGN / "tl2_lnpre_relu.pt", tmp_path / "step2.pt")
    with pytest.raises(RunFileError, match=r"step2\.pt: act_fn is relu, but it is gelu in the first"):
        import_run([tmp_path / "step1.pt", tmp_path / "step2.pt"], source=SOURCE)
    shutil.copy(FOREIGN / "bridge_native_mlp.pt", tmp_path / "step2.pt")
    with pytest.raises(RunFileError, match="its layout is TransformerBridge, but the first"):
        import_run([tmp_path / "step1.pt", tmp_path / "step2.pt"], source=SOURCE)


def test_the_command_says_what_it_took(tmp_path, capsys):
    folder = checkpoints(tmp_path / "made", (1, 2))
    options = [f"--set={name}={value or 'none'}" for name, value in GIVEN.items()]
    source = SOURCE.model_dump_json()
    main(["import", str(folder), "--source", source, *options, "--out", str(tmp_path / "run.pt")])
    printed = capsys.readouterr().out.splitlines()
    assert "step 2" in printed[0]
    assert printed[1] == "HookedTransformer, 2 checkpoints"
    assert printed[2] == "training steps by the names: 1, 2"
    assert printed[3].startswith(
        "not said by the file, assumed: use_attn_scale = True, attn_scale = 2, window"
    )
    assert printed[-1] == str(tmp_path / "run.pt")
    assert load(tmp_path / "run.pt").steps.tolist() == [1, 2]
    assert load(tmp_path / "run.pt").provenance["assumed"]["attn_scale"] == 2.0
