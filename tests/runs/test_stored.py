"""A run that is read without its model says of itself what the run says."""

import subprocess
import sys
from importlib.resources import files

import pytest
from click.testing import CliRunner

import mechmarkov as mm
from mechmarkov.cli import cli
from mechmarkov.runs import stored
from mechmarkov.runs.description import describe
from mechmarkov.safe.plain_data import RunFileError


@pytest.mark.parametrize("name", list(mm.examples()))
def test_a_stored_run_says_what_the_run_says(name):
    run, read = mm.example(name), stored.read(files("mechmarkov.runs") / "examples" / f"{name}.pt")
    assert type(read) is stored.Stored
    assert (read.title(), read.contents(), describe(read)) == (run.title(), run.contents(), describe(run))
    assert read.n_steps == run.n_steps


def test_folders_are_read_as_files_are(tmp_path):
    run = mm.example("walk")
    run.save_folder(tmp_path / "shared")
    (tmp_path / "one").mkdir()
    run.save(tmp_path / "one" / "any.pt")
    for place in ("shared", "one"):
        assert stored.read(tmp_path / place).contents() == run.contents()
    with pytest.raises(RunFileError, match="is a directory with no run file"):
        stored.read(tmp_path)


def test_a_growing_run_is_told_to_be_loaded(tmp_path):
    run, path = mm.example("walk"), tmp_path / "run.pt"
    recorder = mm.Recorder(path, source=run.source, objective=run.objective)
    for step in (0, 1):
        recorder(step, run.model(step=step))
    with pytest.raises(RunFileError, match=r"checkpoints wait next to it, expected one file: mm\.load"):
        stored.read(path)
    result = CliRunner().invoke(cli, ["show", str(path)])
    assert "0, 1 (2)" in result.output


def test_show_imports_no_transformer_lens(tmp_path):
    mm.example("walk").save(tmp_path / "run.pt")
    code = "import sys\nfrom mechmarkov.cli import main\nmain(['show', 'run.pt'])\n"
    code += "print([name for name in ('transformer_lens', 'transformers', 'xarray') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "parameters" in done.stdout
