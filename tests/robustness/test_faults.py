"""Killed at any moment, out of disk, forbidden to write, two at once: what was there stays; it goes on."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import jobs
import pytest
from jobs import JOBS, KILLED, Harm, check_whole, finish, found
from kills import kill_and_repeat, new_folder, unhurt_job

from mechmarkov.runs import load

on_linux = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are killed as Linux does it")
pytestmark = [pytest.mark.system, on_linux]


@pytest.fixture(scope="module")
def unhurt(tmp_path_factory):
    """How each job ends when nothing befalls it, and what it leaves."""
    return {name: unhurt_job(name, tmp_path_factory.mktemp("unhurt")) for name in KILLED}


@pytest.mark.parametrize("name", KILLED)
def test_killed_five_times_it_still_finishes(tmp_path, unhurt, name):
    kill_and_repeat(name, tmp_path, unhurt[name], 5, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", KILLED)
def test_killed_a_hundred_times(tmp_path, unhurt, name):
    kill_and_repeat(name, tmp_path, unhurt[name], 100, seed=100)


@pytest.mark.parametrize(
    ("name", "room"), [("train", 300), ("import", 9000), ("probe", 9000), ("probe", 20_000)]
)
def test_no_room_for_a_file_leaves_what_was_there(tmp_path, unhurt, name, room):
    """The system refuses to let a file grow beyond `room` bytes, as a full disk or a quota does."""
    fresh = new_folder(tmp_path, "fresh")
    done = finish(name, fresh, Harm(room=room))
    assert (done.code, one_line(done.said)) == (2, True), done.said
    assert not list(fresh.rglob("*.tmp"))
    check_whole(fresh)
    assert finish(name, fresh).code == 0
    assert found(fresh) == unhurt[name][1]
    if name == "train":
        (fresh / "seed-1.pt").unlink()
    before = {path: path.read_bytes() for path in fresh.rglob("*") if path.is_file()}
    assert finish(name, fresh, Harm(room=room)).code == 2
    assert {path: path.read_bytes() for path in before} == before


def one_line(said: str) -> bool:
    return len(said.splitlines()) == 1 and said.startswith("error: ")


@pytest.mark.parametrize("name", JOBS)
def test_a_full_disk(tmp_path, unhurt, name):
    disk = new_folder(tmp_path, "disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("making a small disk needs the right to mount; a limit on files is tested above")
    folder = disk / "out"
    try:
        folder.mkdir()
        fill = disk / "fill"
        fill.write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize - 8192))
        started = jobs.start(name, folder)
        started.process.join(300)
        assert started.process.exitcode == 2
        check_whole(folder)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        assert finish(name, folder).code == 0
        assert found(folder) == unhurt[name][1]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("name", JOBS)
def test_a_folder_that_may_not_be_written(tmp_path, name):
    """The process lays down its rights: permissions bind it even where the tests run as root."""
    folder = new_folder(tmp_path, name)
    folder.chmod(0o555)
    done = finish(name, folder, Harm(bound=True))
    assert (done.code, one_line(done.said)) == (2, True), done.said
    assert "ermission denied" in done.said
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["train", "import", "probe", "sweep"])
def test_two_at_once(tmp_path, unhurt, name):
    folder = new_folder(tmp_path, name)
    both = [jobs.start(name, folder).process for _ in range(2)]
    while any(process.is_alive() for process in both):
        for path in folder.glob("*.pt"):
            if not path.name.startswith("partial") and path.exists():
                load(path)
        time.sleep(0.01)
    for process in both:
        process.join()
    assert finish(name, folder).code == 0
    check_whole(folder)
    assert found(folder) == unhurt[name][1]


def test_a_job_that_is_killed_does_not_finish(tmp_path):
    """The harm itself: at its first change of a file nothing is there."""
    folder = new_folder(tmp_path, "import")
    assert finish("import", folder, Harm(at_event=1)).code == -signal.SIGKILL
    assert not (folder / "run.pt").exists()
    assert json.dumps(found(folder)) == "{}"
