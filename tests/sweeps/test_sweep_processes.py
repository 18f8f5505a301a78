"""Fleets in processes of this machine: the same table, nothing lost where one fails, nobody left behind."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from sweep_cases import tiny, two_points

from mechmarkov.sweeps import Cluster, engines, run, sweep
from mechmarkov.sweeps.board import Board
from mechmarkov.sweeps.engines import in_processes
from mechmarkov.sweeps.spec import SweepError
from mechmarkov.sweeps.tasks import Done, Item, Task
from mechmarkov.training import load_recipe
from mechmarkov.training.workload import Member


@pytest.mark.system
def test_the_table_is_that_of_one_process(tmp_path, capsys):
    alone = sweep(two_points(), tmp_path / "alone", fleet=2)
    together = sweep(two_points(), tmp_path / "together", fleet=2, jobs=2, progress=True)
    assert together.trained == 4
    assert together.table.drop_columns("seconds").equals(alone.table.drop_columns("seconds"))
    assert [
        line.split()[:2] for line in capsys.readouterr().err.replace("\r", "\n").splitlines() if "2/2" in line
    ] == [["2/2", "2"]]


def fails_once(task: Task, progress=None) -> Done:
    """A task that cannot be done among others that can."""
    progress(1, 2)
    if task.index == 1:
        raise ValueError("no luck")
    return Done(({"key": str(task.index)},), {})


@pytest.mark.system
def test_a_failing_task_spares_the_others():
    tasks, shares = [Task(index, ()) for index in range(4)], []
    found = dict(in_processes(tasks, fails_once, 2, shares.append))
    assert str(found.pop(tasks[1])) == "no luck"
    assert {task.index: done.rows[0]["key"] for task, done in found.items()} == {0: "0", 2: "2", 3: "3"}
    assert shares[-1] == 0


def dies(task: Task, progress=None, settings=None) -> Done:
    """A process that is killed, as by a machine without memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return Done((), {})


def sleeps(task: Task, progress, file: Path) -> Done:
    """A task that ends at once and one without end; both say in which process they are."""
    with file.open("a", encoding="utf-8") as lines:
        print(os.getpid(), file=lines, flush=True)
    while len(file.read_text("utf-8").split()) < 2:  # or the first process would take the second task too
        time.sleep(0.01)
    while task.index == 1:
        progress(0, 1)
        time.sleep(0.01)
    return Done((), {})


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").split()[2] != "Z"
    except FileNotFoundError:
        return False


def wait_for(what):
    for _ in range(180 * 20):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come")


@pytest.mark.system
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_who_is_stopped_leaves_no_process_behind(tmp_path, how):
    if not Path("/proc/self/stat").exists():
        pytest.skip("processes are looked up in /proc, which is not here")
    file = tmp_path / "pids"
    command = [sys.executable, __file__, file]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_for(lambda: file.exists() and len(file.read_text("utf-8").split()) == 2)
        time.sleep(0.5)  # and the first of them waits for another task
        # A terminal interrupts all processes of a command; a kill takes the one alone.
        (os.killpg if how == signal.SIGINT else os.kill)(process.pid, how)
        said = process.communicate(timeout=180)[1]
    finally:
        process.kill()
    assert said.count("Traceback") == (how == signal.SIGINT)  # that of who was interrupted alone
    wait_for(lambda: not any(alive(int(pid)) for pid in file.read_text("utf-8").split()))


def deaf(task: Task, progress, file: Path) -> Done:
    """Work that asks nobody whether to stop, as probes and imports are."""
    with file.open("a", encoding="utf-8") as lines:
        print(os.getpid(), file=lines, flush=True)
    time.sleep(600)
    return Done((), {})


@pytest.mark.system
def test_an_interruption_does_not_wait_for_deaf_work(tmp_path):
    file = tmp_path / "pids"
    process = subprocess.Popen([sys.executable, __file__, file, "deaf"], start_new_session=True)
    try:
        wait_for(lambda: file.exists() and len(file.read_text("utf-8").split()) == 2)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=180) != 0  # for 600 s, if it waits for its tasks
    finally:
        process.kill()
    wait_for(lambda: not any(alive(int(pid)) for pid in file.read_text("utf-8").split()))


def test_a_process_follows_its_parent_before_importing(monkeypatch):
    """Until then one whose parent was killed goes on importing, for a minute on a busy machine."""
    given = []

    class Pool(engines.ProcessPoolExecutor):
        def __init__(self, count, context, initializer, arguments):
            given.append(initializer)
            super().__init__(count, context, initializer, arguments)

    monkeypatch.setattr(engines, "ProcessPoolExecutor", Pool)
    assert list(in_processes([], fails_once, 2, int)) == []
    (initializer,) = given
    heavy = f"import sys, {initializer.__module__}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", heavy], check=True)


@pytest.mark.system
def test_a_kill_at_the_beginning_leaves_no_process(tmp_path):
    text = (
        'name = "tiny"\nrecipe = "binary-p05-q08-tied"\nseeds = 4\nset.steps = 1000\nset.checkpoints = []\n'
    )
    (tmp_path / "tiny.toml").write_text(text, "utf-8")
    options = ["--out", tmp_path / "out", "--fleet", "1", "--jobs", "2", "--device", "cpu"]
    command = [sys.executable, "-m", "mechmarkov", "sweep", tmp_path / "tiny.toml", *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("processes are looked up in /proc, which is not here")
    try:
        wait_for(lambda: len(children.read_text("utf-8").split()) == 3)
        begun = children.read_text("utf-8").split()
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not any(alive(int(pid)) for pid in begun))
    assert subprocess.run(command, check=True, capture_output=True).stdout.decode().startswith("tiny: 4 runs")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rows", "table.parquet"]
    assert not list((tmp_path / "out").rglob(".*"))


@pytest.mark.system
def test_an_interruption_while_processes_begin_is_told_once(tmp_path):
    command = [sys.executable, __file__, tmp_path / "pids"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("processes are looked up in /proc, which is not here")
    try:
        wait_for(lambda: len(children.read_text("utf-8").split()) == 3)  # multiprocessing has one of its own
        begun = children.read_text("utf-8").split()
        time.sleep(0.5)  # they import for seconds
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=180)[1]
    finally:
        process.kill()
    assert said.count("Traceback") == 1
    wait_for(lambda: not any(alive(int(pid)) for pid in begun))


def test_processes_share_cores_and_memory(monkeypatch, tmp_path):
    """Four processes take a core each, and a quarter of the memory of one call."""
    asked = []

    def stopped(tasks, work, count, moved):
        asked.append((count, work.keywords["settings"]))
        raise RuntimeError

    monkeypatch.setattr(run, "in_processes", stopped)
    with pytest.raises(RuntimeError):
        sweep(two_points(), tmp_path, fleet=1, jobs=4, device="cpu")
    ((count, settings),) = asked
    assert (count, settings.cores, settings.memory) == (4, 1, 500_000_000)


def test_a_task_says_how_far_it_is_until_stopped(monkeypatch):
    """To the process that waits: its share of the steps, from nothing on."""
    shares, seen = [0.5, 0.5, 0.0], []
    monkeypatch.setattr(engines.forked, "shared", shares)

    def work(task: Task, progress) -> Done:
        seen.append(shares[1])
        progress(1, 4)
        seen.append(shares[1])
        shares[engines.STOP] = 1
        progress(2, 4)
        return Done((), {})

    threads = torch.get_num_threads()
    try:
        with pytest.raises(engines._StoppedError):
            engines._carry_out(work, Task(1, ()), 1)
    finally:
        torch.set_num_threads(threads)
    assert seen == [0, 0.25]
    assert shares == [0.5, 0.25, 1]


def test_a_task_that_ends_is_drawn_at_once(capsys):
    task = Task(
        0, tuple(Item(str(number), Member(load_recipe("walk-k6-half"), number)) for number in range(2))
    )
    board = Board([task], show=True)
    board.done(task, Done(tuple({"stuck": None, "status": "ok", "seconds": 1.0} for _ in range(2)), {}))
    assert "2.0/2 " in capsys.readouterr().err.rpartition("\r")[2] + " "
    board.close()


@pytest.mark.parametrize(("jobs", "cluster"), [(0, None), (2, Cluster("auto"))])
def test_numbers_that_make_no_sense_are_refused(tmp_path, jobs, cluster):
    with pytest.raises(ValueError, match=f"jobs is {jobs}, expected at least 1, and 1 with a cluster"):
        sweep(tiny(), tmp_path / "new", jobs=jobs, cluster=cluster)
    assert not (tmp_path / "new").exists()


@pytest.mark.system
def test_what_failed_is_done_by_the_next_call(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("mechmarkov.sweeps.run.carry_out", dies)
        with pytest.raises(
            SweepError, match=r"4 of 4 runs failed \(.*terminated abruptly.*the same call goes on"
        ):
            sweep(two_points(), tmp_path, fleet=2, jobs=2)
    assert sweep(two_points(), tmp_path, fleet=4).trained == 4


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    endless = partial(deaf if sys.argv[2:] else sleeps, file=Path(sys.argv[1]))
    list(in_processes([Task(index, ()) for index in range(2)], endless, 2, lambda _: None))
