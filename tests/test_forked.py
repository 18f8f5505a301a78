"""Probes in several processes: the same answers, and one that dies or fails is said."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from inspect import unwrap
from pathlib import Path

import pytest
import torch

import mechmarkov as mm
from mechmarkov import probe_run
from mechmarkov.cli import main
from mechmarkov.utils.forked import can_fork, forked, without_interruptions

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes are copied on Linux alone")


def test_work_is_done_once_for_each_name_in_other_processes():
    found = dict(forked(lambda name: (name * 2, os.getpid()), ["a", "b", "c"], 2, copied=True, advice=""))
    assert {name: said for name, (said, _) in found.items()} == {"a": "aa", "b": "bb", "c": "cc"}
    assert os.getpid() not in {pid for _, pid in found.values()}


def test_a_process_never_sees_an_interruption_and_this_one_sees_it_afterwards():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('went on')"
    said = []

    def begin() -> None:
        with without_interruptions():
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            said.append(done.stderr)
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # pytest's other threads hold none back
            said.append(done.stdout)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins without one
    try:
        with pytest.raises(KeyboardInterrupt):
            begin()
    finally:
        signal.signal(signal.SIGINT, before)
    assert said == ["", "went on\n"]


def test_a_process_that_is_killed_is_said():
    def work(name: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RuntimeError, match="killed, possibly out of memory: eat less"):
        dict(forked(work, ["a", "b"], 2, copied=True, advice="eat less"))


def test_a_copy_ends_though_this_process_handles_termination():
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)  # as clusters and loggers do
    try:
        handlers = dict(forked(lambda _: signal.getsignal(signal.SIGTERM), "ab", 2, copied=True, advice=""))
    finally:
        signal.signal(signal.SIGTERM, before)
    # Else a pool that is broken waits for it, from Python 3.12 on for ever.
    assert {*handlers.values()} == {signal.SIG_DFL}


def test_no_copy_is_made_where_a_gpu_is_in_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not can_fork()


def test_no_copy_is_made_beside_autograds_threads_for_a_gpu():
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text("pt_autograd_0", "utf-8")  # torch's name
        assert not can_fork()
    finally:
        end.set()
        thread.join()


def test_a_failure_is_told_once_drops_what_is_not_begun_and_waits_for_what_is(tmp_path):
    told = []

    def work(name: str) -> None:
        (tmp_path / name).touch()
        if name == "a":
            raise ArithmeticError(name)
        while not told_file.exists():
            time.sleep(0.01)
        (tmp_path / f"{name} ended").touch()

    told_file = tmp_path / "stop"

    def stop() -> None:
        told.append("stop")
        told_file.touch()

    with pytest.raises(ArithmeticError, match="a"):
        dict(forked(work, ["b", "a", *map(str, range(20))], 2, copied=True, advice="", stop=stop))
    assert told == ["stop"]
    assert (tmp_path / "b ended").exists()
    assert len(list(tmp_path.iterdir())) < 20


def test_a_daemon_starts_no_copies_and_the_command_line_measures_alone(tmp_path):
    """A pool's worker may be a daemon, which Python allows no children."""
    arguments = f"probe --probes behaviour,attention --sequences 4 --out {tmp_path / 'out'}".split()
    daemon = multiprocessing.get_context("fork").Process(target=main, args=(arguments,), daemon=True)
    daemon.start()
    daemon.join(120)
    assert daemon.exitcode == 0
    assert (tmp_path / "out" / "report.html").exists()


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is 'cuda', but torch sees no CUDA device"):
        mm.probe(mm.example("walk"), ["attention"], device="cuda")
    with pytest.raises(ValueError, match="device is 'tpu', expected 'auto', 'cpu' or 'cuda'"):
        mm.probe(mm.example("walk"), ["attention"], device="tpu")


def test_a_copied_process_cannot_use_the_device_of_its_parent(monkeypatch):
    monkeypatch.setattr(probe_run, "pick_device", torch.device)
    with pytest.raises(ValueError, match="jobs is 2, expected 1 on cuda"):
        mm.probe(mm.example("walk"), ["attention"], device="cuda", jobs=2)


@pytest.mark.parametrize("jobs", [0, True, 1.5])
def test_jobs_is_a_positive_number(jobs):
    with pytest.raises(ValueError, match=f"jobs is {jobs}, expected how many processes"):
        unwrap(mm.probe)(mm.example("walk"), ["attention"], jobs=jobs)  # as where nothing else checks types


WAITING = """
import os, time
from mechmarkov.utils.forked import forked

def work(name):
    os.write(1, f"{os.getpid()}\\n".encode())  # one write, so that two processes cannot mix their lines
    time.sleep(600)

list(forked(work, ["a", "b"], 2, copied=True, advice=""))
"""


@pytest.mark.system
def test_processes_end_with_one_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            copies = [int(parent.stdout.readline()) for _ in range(2)]
        finally:
            parent.kill()
    waited = time.monotonic()
    while any(Path(f"/proc/{pid}").exists() for pid in copies):
        assert time.monotonic() - waited < 60
        time.sleep(0.05)


def interrupted_twice(code):
    """The exit code of a process that is interrupted again while it waits, and its copies' numbers."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        copies = [int(parent.stdout.readline()) for _ in range(2)]
        parent.send_signal(signal.SIGINT)
        assert parent.stdout.readline() == "stopping\n"
        parent.send_signal(signal.SIGINT)
    return parent.returncode, copies


@pytest.mark.system
def test_processes_end_at_the_second_interruption():
    interrupted = WAITING.replace('advice=""', 'advice="", stop=lambda: os.write(1, b"stopping\\n")')
    code, copies = interrupted_twice(
        f"import signal\nsignal.signal(2, signal.default_int_handler){interrupted}"
    )
    assert code == -signal.SIGINT
    assert not [pid for pid in copies if Path(f"/proc/{pid}").exists()]


@pytest.mark.system
def test_one_interruption_ends_copies_that_work(tmp_path):
    """They would sleep for ten minutes."""
    code = f"import signal\nsignal.signal(2, signal.default_int_handler){WAITING}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        copies = [int(parent.stdout.readline()) for _ in range(2)]
        parent.send_signal(signal.SIGINT)
        assert parent.wait(timeout=180) == -signal.SIGINT
    assert not [pid for pid in copies if Path(f"/proc/{pid}").exists()]


@pytest.mark.system
def test_two_processes_say_what_one_says(tmp_path):
    """Scores, reasons, failures and pages; on the command line, in a process of its own."""
    said = []
    for jobs in ("1", "2"):
        command = [sys.executable, "-c", "from mechmarkov.cli import main; main()"]
        chosen = "behaviour,attention,alignment,induction,dynamics"
        options = f"probe --probes {chosen} --jobs {jobs} --sequences 16 --out {tmp_path / jobs}".split()
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        summary = json.loads((tmp_path / jobs / "summary.json").read_text("utf-8"))
        said.append((done.stdout.replace(str(tmp_path / jobs), ""), summary))
    assert said[0] == said[1]
    assert list(said[0][1]["probes"])[:2] == ["behaviour", "attention"]
    assert said[0][1]["skipped"]
