"""What a file may not make a process do: run code, write elsewhere, compute without end, fill memory."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from run_files import memory_limit

SECONDS = 5.0  # of this process' own time: a hang, on a busy machine too; what is promised is one second
BYTES = 300 << 20
COMPUTING = "seconds of computing"  # the property under which a test reports them
MEMORY = Path("/dev/shm")  # a folder that costs no disk
RUNS = {
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn"),
    *("socket.connect", "pickle.find_class", "ctypes.dlopen"),
}

_watching: list["Watch"] = []


class Watch:
    """What was noticed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = os.path.realpath(folder), list[str]()

    def notice(self, event: str, arguments: tuple[object, ...]) -> None:
        """An audit event of the interpreter."""
        if event in RUNS:
            self.seen.append(f"{event} {arguments!r}"[:200])
        elif event == "open" and isinstance(arguments[0], str) and _writes(arguments[2]):
            inside = os.path.realpath(arguments[0]).startswith(self.folder)
            self.seen += [] if inside else [f"writes {arguments[0]}"]


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and flags & os.O_ACCMODE != os.O_RDONLY


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _watching:
        _watching[-1].notice(event, arguments)


sys.addaudithook(_hook)  # there is no taking it off: it does nothing while nobody watches


class TooLongError(BaseException):
    """No `Exception`: nobody on the way catches it."""


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Notice what runs and what is written elsewhere; 300 MB must be enough."""
    _watching.append(watch)
    try:
        with memory_limit(BYTES):
            yield
    finally:
        _watching.remove(watch)


@contextmanager
def in_time() -> Iterator[None]:
    """`TooLongError` once this process has computed for so long."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError(f"more than {SECONDS} s of computing")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
