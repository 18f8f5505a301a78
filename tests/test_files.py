"""Atomic writes: the order of what reaches the disk, as the system is told it."""

import os

import pytest

from mechmarkov.utils.files import replacing


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
