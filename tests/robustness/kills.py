"""Jobs killed at random moments: an existing file is never damaged, and a last call finishes.

    python tests/robustness/kills.py --times 100 [train] [import] [probe] [sweep] [record] …
    python tests/robustness/kills.py --interrupt --times 10 record   # Ctrl-C, as a terminal sends it

Stops with an error at the first file that is damaged, at the first process that is left 90 seconds after, and
at the first result that is another than that of a job nobody killed.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "runs"))

from jobs import KILLED, MARK, TOGETHER, Finished, Harm, Started, check_whole, finish, found, start
from watch import MEMORY

Unhurt = tuple[Finished, dict]
ONE_KILLED = "a process was killed"
END_SECONDS = 90.0  # in which all that a killed job has started must have ended: Ray's agents take a minute


def new_folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def interrupt(started: Started) -> None:
    """Ctrl-C, as a terminal sends it: to a job and all that it has started, once they have a session."""
    while started.process.is_alive() and os.getsid(started.process.pid) != started.process.pid:
        time.sleep(0.01)
    if started.process.is_alive():
        os.killpg(started.process.pid, signal.SIGINT)


def kill_and_repeat(
    name: str, parent: Path, unhurt: Unhurt, times: int, seed: int, *, by_hand: bool = False
) -> tuple[int, int]:
    """Kill a job so often, at random moments, each time on top of what the last left.

    Every other moment is drawn among its changes of files, where there is most to damage, the rest in time.
    A job that finished before its moment must have finished right; a new folder is begun. With `by_hand`
    it is interrupted and not killed, at moments in time only, and must end as a shell expects.

    Returns:
        How often it was killed, and in how many folders a last call finished right.
    """
    done, right = unhurt
    draw, killed, folders = random.Random(seed), 0, 1
    folder = new_folder(parent, f"{name}-0")
    for index in range(10 * times):
        if index % 2 == 0 and not by_hand:
            code = finish(name, folder, Harm(at_event=draw.randint(1, done.events))).code
        else:
            started = start(name, folder)
            time.sleep(draw.uniform(0.0, 1.2 * done.seconds))
            interrupt(started) if by_hand else started.process.kill()
            started.process.join(END_SECONDS)
            assert not started.process.is_alive(), "it goes on"
            code = started.process.exitcode
            check_nobody_is_left(started, folder)
        output = Path(f"{folder}.said")  # of a job that was killed before it began there is none
        told = output.read_text("utf-8") if output.exists() else ""
        # A process of several may be the one that is killed: the job says so in one line.
        one_of_several = code == 2 and name in TOGETHER and ONE_KILLED in told
        # A loop of somebody's own has no command line around it.
        of_its_own = code == 1 and name == "record" and told.rstrip().endswith("KeyboardInterrupt")
        ends = (0, 130) if by_hand else (0, -signal.SIGKILL)
        assert code in ends or one_of_several or (by_hand and of_its_own), (code, told)
        killed += code != 0
        check_whole(folder)
        if killed == times:
            break
        if code == 0:
            assert found(folder) == right
            folder, folders = new_folder(parent, f"{name}-{folders}"), folders + 1
    last = finish(name, folder)
    assert last.code == 0, last.said
    check_whole(folder)
    assert found(folder) == right
    assert killed == times
    return killed, folders


def left_behind(started: Started, folder: Path) -> list[str]:
    """The processes of a job that has ended, of its session or with its mark: their numbers and commands."""
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (process / "stat").read_text("utf-8").rpartition(")")[2].split()[:4]
            marked = f"{MARK}={folder}\0".encode() in (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended meanwhile
            continue
        if state != "Z" and (marked or int(session) == started.process.pid):
            left.append(f"{process.name} {command[:80]}")
    return left


def check_nobody_is_left(started: Started, folder: Path) -> None:
    """Wait until every process of a job has ended, or raise."""
    until = time.monotonic() + END_SECONDS
    while (left := left_behind(started, folder)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left, f"{len(left)} processes are left: {', '.join(left)}"


def unhurt_job(name: str, parent: Path) -> Unhurt:
    """How a job ends when nothing befalls it, and what it leaves."""
    folder = new_folder(parent, name)
    done = finish(name, folder)
    assert done.code == 0, done.said
    check_whole(folder)
    assert done.events > 5
    return done, found(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="*", default=[*KILLED, *TOGETHER], metavar="JOB")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--interrupt", action="store_true", help="Ctrl-C in place of SIGKILL.")
    options = parser.parse_args()
    print("| job | killed | files damaged | folders in which a last call finished right |")
    print("|---|---|---|---|")
    for name in options.jobs:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            unhurt = unhurt_job(name, new_folder(Path(folder), "unhurt"))
            asked = (name, Path(folder), unhurt, options.times, options.seed)
            killed, folders = kill_and_repeat(*asked, by_hand=options.interrupt)
        print(f"| {name} | {killed} | 0 | {folders} of {folders} |", flush=True)


if __name__ == "__main__":
    main()
