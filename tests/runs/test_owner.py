"""One owner of a folder at a time: who is refused is told whose it is, and a killed owner leaves it free."""

import json
import multiprocessing
import os
import platform
import re
import signal
from contextlib import contextmanager

import pytest

from mechmarkov.cli import main
from mechmarkov.runs import RunFileError
from mechmarkov.runs.owner import NAME, clear_lock, owned
from mechmarkov.sweeps import SweepError, sweep
from mechmarkov.training import train
from mechmarkov.training.recipe import load_recipe

RECIPE = load_recipe("binary-p05-q08-tied").with_set(["steps=2", "checkpoints=[]", "data.batch=4"])
SWEEP = {"name": "tiny", "recipe": "binary-p05-q08-tied", "set": {"steps": 2, "checkpoints": []}}

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no locks of this kind on Windows")


def own(folder, told):
    with owned(folder, RunFileError):
        told.send("owned")
        told.recv()


@contextmanager
def another_owner(folder):
    """Another process owns the folder; yields its number. It is killed in the end."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=own, args=(folder, theirs), daemon=True)
    process.start()
    assert ours.recv() == "owned"
    try:
        yield process.pid
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def in_use(pid):
    host = re.escape(platform.node())
    return rf"is in use by process {pid} on {host}: wait until that has ended, or choose another folder$"


def test_another_process_is_refused_by_name_until_the_owner_ends_however_that_comes_about(tmp_path):
    with another_owner(tmp_path) as pid:
        with pytest.raises(RunFileError, match=f"^{tmp_path} {in_use(pid)}"), owned(tmp_path, RunFileError):
            pass
        assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).exists()  # the owner was killed
    with owned(tmp_path, RunFileError):
        assert json.loads((tmp_path / NAME).read_text("utf-8"))["process"] == os.getpid()
    assert not any(tmp_path.iterdir())


def test_within_a_process_there_is_one_owner_too(tmp_path):
    link = tmp_path / "link"
    (tmp_path / "folder").mkdir()
    link.symlink_to(tmp_path / "folder")
    with owned(tmp_path / "folder", RunFileError):
        with pytest.raises(RunFileError, match=in_use(os.getpid())), owned(link, RunFileError):
            pass
        # The refused call did not let go of the owner's lock, as closing a file of it would.
        with another_attempt(tmp_path / "folder") as refused:
            assert refused
    with owned(link, RunFileError):
        pass


@contextmanager
def another_attempt(folder):
    """Whether another process is refused."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=attempt, args=(folder, theirs), daemon=True)
    process.start()
    yield ours.recv()
    process.join()


def attempt(folder, told):
    from mechmarkov.runs import owner

    owner._ours.clear()  # a copy of the process knows what the original owns
    try:
        with owned(folder, RunFileError):
            told.send(False)
    except RunFileError:
        told.send(True)


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 900, '{"process": "\\u001b[31m"}'])
def test_whatever_a_lock_says_is_told_in_one_line(tmp_path, content):
    with another_owner(tmp_path):
        (tmp_path / NAME).write_text(content, "utf-8")
        with pytest.raises(RunFileError) as caught, owned(tmp_path, RunFileError):
            pass
    assert str(caught.value).isprintable()
    assert "is in use by " in str(caught.value)


def test_a_training_into_a_folder_in_use_is_one_line_and_touches_nothing(tmp_path, capsys):
    with another_owner(tmp_path) as pid:
        with pytest.raises(RunFileError, match=in_use(pid)):
            train(RECIPE, out=tmp_path, device="cpu")
        with pytest.raises(SystemExit) as end:
            main(["train", "binary-p05-q08-tied", "--set", "steps=2", "--out", str(tmp_path)])
        (line,) = capsys.readouterr().err.splitlines()
        assert (end.value.code, line.startswith("error: "), str(pid) in line) == (2, True, True)
        assert [path.name for path in tmp_path.iterdir()] == [NAME]
    train(RECIPE, out=tmp_path, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_a_sweep_into_a_folder_in_use_is_one_line_and_touches_nothing(tmp_path):
    with another_owner(tmp_path) as pid:
        with pytest.raises(SweepError, match=in_use(pid)):
            sweep(SWEEP, tmp_path, device="cpu")
        assert [path.name for path in tmp_path.iterdir()] == [NAME]
    sweep(SWEEP, tmp_path, device="cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows", "table.parquet"]


def test_a_lock_that_a_killed_owner_left_goes_with_the_next_call_that_finds_all_done(tmp_path):
    train(RECIPE, out=tmp_path, device="cpu")
    (tmp_path / NAME).write_text("{}", "utf-8")
    train(RECIPE, out=tmp_path, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    with another_owner(tmp_path):
        clear_lock(tmp_path)
        assert (tmp_path / NAME).exists()


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_lock_that_is_no_file_is_named(tmp_path, kind):
    other, folder = tmp_path / "other", tmp_path / "runs"
    folder.mkdir()
    other.write_text("mine", "utf-8")
    lock = folder / NAME
    {"folder": lock.mkdir, "pipe": lambda: os.mkfifo(lock), "link": lambda: lock.symlink_to(other)}[kind]()
    words = f"^{lock}: .*, expected a lock of mechmarkov, a file: delete it$"
    with pytest.raises(RunFileError, match=words), owned(folder, RunFileError):
        pass
    assert other.read_text("utf-8") == "mine"  # a link is not followed
