"""Atomic writes: the order of what reaches the disk, as the system is told it."""

import os
from pathlib import Path

import pytest

from mechmarkov.utils.files import check_writable, replacing


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
    note.write_text("old")
    with replacing(note) as temporary:
        temporary.write_text("new")
        content = temporary.stat().st_ino
        assert note.read_text() == "old"
    assert calls == [("fsync", content), ("replace", content), ("fsync", tmp_path.stat().st_ino)]
    assert note.read_text() == "new"


def test_a_block_that_fails_syncs_and_renames_nothing(tmp_path, calls):
    note = tmp_path / "note.txt"
    note.write_text("old")

    def fail():
        with replacing(note) as temporary:
            temporary.write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert calls == []
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
    assert note.read_text() == "old"


def test_what_cannot_be_written_is_refused_before_the_work_and_nothing_is_left(tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "report.html").mkdir()
    (tmp_path / "note").write_text("mine")
    for path, words in [
        (tmp_path / "report.html", "Is a directory"),
        (tmp_path / "note" / "new" / "run.pt", "a file, expected a folder: .*note'$"),
        (tmp_path / "dangling" / "run.pt", "a link to .*nowhere, which does not exist"),
        (Path("/proc/new/run.pt"), "No such file|Not a directory|Permission|Read-only"),
    ]:
        with pytest.raises(OSError, match=words):
            check_writable(path)
    check_writable(tmp_path / "new" / "deep" / "run.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "note", "report.html"]
