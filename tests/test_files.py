"""Atomic writes: the order of what reaches the disk, as the system is told it."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from mechmarkov.utils import files
from mechmarkov.utils.files import check_writable, clear_leftovers, made_folder, replacing, temporary_prefix


@pytest.fixture
def calls(monkeypatch):
    """What is synced and renamed, by inode, in order; the calls are made."""
    made, sync, rename = [], os.fsync, os.replace

    def fsync(descriptor):
        made.append(("fsync", os.fstat(descriptor).st_ino))
        sync(descriptor)

    def replace(source, target):
        made.append(("replace", os.stat(source).st_ino))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return made


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, calls):
    note = tmp_path / "note.txt"
    note.write_text("old", "utf-8")
    with replacing(note) as temporary:
        temporary.write_text("new", "utf-8")
        content = temporary.stat().st_ino
        assert note.read_text("utf-8") == "old"
    assert calls == [("fsync", content), ("replace", content), ("fsync", tmp_path.stat().st_ino)]
    assert note.read_text("utf-8") == "new"


def test_a_block_that_fails_syncs_and_renames_nothing(tmp_path, calls):
    note = tmp_path / "note.txt"
    note.write_text("old", "utf-8")

    def fail():
        with replacing(note) as temporary:
            temporary.write_text("new", "utf-8")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert calls == []
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
    assert note.read_text("utf-8") == "old"


def test_what_cannot_be_written_is_refused_before_the_work_and_nothing_is_left(tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "report.html").mkdir()
    (tmp_path / "note").write_text("mine", "utf-8")
    for path, words in [
        (tmp_path / "report.html", "^.*report.html is a folder, expected the name of a file$"),
        (tmp_path / "note" / "new" / "run.pt", "a file, expected a folder: .*note'$"),
        (tmp_path / "dangling" / "run.pt", "a link to .*nowhere, which does not exist"),
        (Path("/proc/new/run.pt"), "No such file|Not a directory|Permission|Read-only"),
    ]:
        with pytest.raises(OSError, match=words):
            check_writable(path)
    check_writable(tmp_path / "new" / "deep" / "run.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "note", "report.html"]


@pytest.mark.parametrize("link", [False, True])
def test_a_pipe_is_not_replaced_by_files(tmp_path, link):
    """As root a file would take the place of /dev/null, for every process of the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = tmp_path / "link" if link else pipe
    if link:
        path.symlink_to(pipe)
    words = f"^{path} is a device, a pipe or a socket, expected the name of a file$"
    with pytest.raises(FileExistsError, match=words):
        check_writable(path)
    with pytest.raises(FileExistsError, match=words), replacing(path) as temporary:
        temporary.write_text("new", "utf-8")
    assert pipe.is_fifo()
    assert len(list(tmp_path.iterdir())) == 1 + link


def test_a_link_into_no_folder_is_refused_early(tmp_path):
    (tmp_path / "report.html").symlink_to(tmp_path / "nowhere" / "report.html")
    with pytest.raises(
        FileNotFoundError, match=r"a link to .*, whose folder does not exist: .*report.html'$"
    ):
        check_writable(tmp_path / "report.html")
    (tmp_path / "nowhere").mkdir()
    check_writable(tmp_path / "report.html")


def test_what_cannot_be_written_is_named_itself(tmp_path):
    with pytest.raises(OSError, match=r"'/proc/run.pt'$"):
        check_writable("/proc/run.pt")


def ended_process() -> int:
    """The number of a process that has ended."""
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    return process.pid


def leave(folder: Path, process: int, *, name="report.html", machine=None, age=0.0) -> Path:
    """What a process leaves that is killed while it writes."""
    ours = temporary_prefix(name)
    assert f"-{os.getpid()}-" in ours
    left = folder / f"{ours.replace(f'-{os.getpid()}-', f'-{process}-')}0123abcd.tmp"
    if machine is not None:
        left = left.with_name(f".{name}.{machine}-{process}-0123abcd.tmp")
    left.write_text("half", "utf-8")
    os.utime(left, (time.time() - age,) * 2)
    return left


@pytest.mark.skipif(not hasattr(os, "fork"), reason="whether a process lives is not asked on Windows")
def test_what_a_killed_process_was_writing_goes_with_the_next_call(tmp_path):
    gone = ended_process()
    kept = [
        leave(tmp_path, os.getpid()),
        leave(tmp_path, os.getppid()),
        leave(tmp_path, gone, machine="00000000"),  # elsewhere: nobody can tell whether it lives
        leave(tmp_path, gone, machine="00000000", name="other", age=80_000),
    ]
    for name in (".note.tmp", "note.0123abcd.tmp", ".note.0123456789abcdef.tmp", ".lock.tmp", "report.html"):
        kept.append(tmp_path / name)  # not ours
        kept[-1].write_text("mine", "utf-8")
        os.utime(kept[-1], (0, 0))

    def left() -> list[Path]:
        before = [leave(tmp_path, gone), leave(tmp_path, gone, machine="00000000", name="old", age=90_000)]
        before.append(tmp_path / ".results.nc.0123456789ab.tmp")  # of an earlier version
        before[-1].write_text("half", "utf-8")
        os.utime(before[-1], (0, 0))
        before.append(leave(tmp_path, gone, name="a.folder"))
        before[-1].unlink()
        before[-1].mkdir()
        (before[-1] / "run.json").write_text("half", "utf-8")
        return before

    for call in (
        lambda: check_writable(tmp_path / "report.html"),
        lambda: made_folder(tmp_path, OSError).__enter__(),
        lambda: clear_leftovers(tmp_path),
    ):
        assert all(path.exists() for path in left())
        call()
        assert sorted(tmp_path.iterdir()) == sorted(kept)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="whether a process lives is not asked on Windows")
def test_a_folder_is_looked_through_once_by_those_who_write_into_it(tmp_path, monkeypatch):
    looked = []
    clear = files.clear_leftovers
    monkeypatch.setattr(files, "clear_leftovers", lambda folder: looked.append(folder) or clear(folder))
    left = leave(tmp_path, ended_process())
    for name in "ab":
        with replacing(tmp_path / name) as temporary:
            temporary.write_text("whole", "utf-8")
    assert not left.exists()
    assert looked == [tmp_path]
