"""Processes that work for this one: copies of it, and what makes each end with it."""

import io
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Any

from mechmarkov.utils.memory import ProcessKilledError

PATIENCE = 0.5  # seconds that copies have to stop in after an interruption

_work: Callable[[Any], Any] | None = None  # of a copy
shared: Any = None  # of a process that was not copied: what its pool shares with it


def can_fork() -> bool:
    """Returns whether this process may start copies of itself that compute, gradients included (`forked`).

    On Linux, where it is not another's daemon, and while no GPU is in use: neither CUDA nor the threads that
    autograd starts for a GPU, at the first gradient on whatever device, work in a copy.
    """
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        return False
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # a thread that has ended meanwhile
            names.append(path.read_text())
    torch = sys.modules.get("torch")
    return not (torch and torch.cuda.is_initialized()) and not any("pt_autograd" in name for name in names)


def forked(
    work: Callable[[Any], Any],
    arguments: Sequence[Any],
    jobs: int,
    *,
    copied: bool,
    advice: str,
    meanwhile: Callable[[], None] = lambda: None,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Any, Any]]:
    """Yields what `work` returns for each argument, with the argument, in the order in which they end.

    It works in copies of this process or in threads of it; here, if there is one job.

    Args:
        work: Any function, closures too; what it returns is pickled, what it changes stays in its copy.
        arguments: What it is called with.
        jobs: How many processes.
        copied: Copies, which must be possible (`can_fork`), or threads.
        advice: What to do where memory runs out.
        meanwhile: Called here ten times a second.
        stop: Called here once anything has failed: work that is not begun is dropped, what is under way is
            waited for. After an interruption copies have half a second, then they are killed.

    Raises:
        ProcessKilledError: A process was ended from outside, for instance where memory ran out.

    Example:
        >>> sorted(forked(lambda n: n**2, [1, 2, 3], jobs=1, copied=False, advice="use fewer"))
        [(1, 1), (2, 4), (3, 9)]
    """
    if min(jobs, len(arguments)) <= 1:
        yield from ((argument, work(argument)) for argument in arguments)
        return
    pool: Executor
    call: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    if copied:  # nothing is pickled for a copy when it begins
        context = multiprocessing.get_context("fork")
        pool, call, unpack = ProcessPoolExecutor(jobs, context, _begin, (work,)), _call, _unpacked
    else:
        import torch

        pool = ThreadPoolExecutor(jobs, "stack", torch.set_num_threads, (1,))  # a thread's own number
        call, unpack = work, lambda answer: answer
    others = {*multiprocessing.active_children()}
    try:
        with without_interruptions():
            waiting = {pool.submit(call, argument): argument for argument in arguments}
        while waiting:
            ready, _ = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            meanwhile()
            for future in ready:
                yield waiting.pop(future), unpack(future.result())
    except BrokenProcessPool:
        shut_down(pool, others)
        raise ProcessKilledError(f"a process was killed, possibly out of memory: {advice}") from None
    except BaseException as error:
        shut_down(pool, others, stop, patience=PATIENCE if isinstance(error, KeyboardInterrupt) else math.inf)
        raise
    shut_down(pool, others)


def shut_down(
    pool: Executor, others: Set[Any], stop: Callable[[], None] = lambda: None, *, patience: float = math.inf
) -> None:
    """Drop work that is not begun and wait for what is under way; an interruption meanwhile ends it.

    Args:
        pool: The pool, of processes or of threads; threads are waited for.
        others: The processes of `multiprocessing.active_children()` that are not the pool's.
        stop: Called first, when an interruption is already kept from leaving processes behind.
        patience: Seconds after which processes that still work are killed.
    """
    with _counted_interruptions() as interruptions:
        stop()
        processes = {*multiprocessing.active_children()} - others
        pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + patience
        while any(process.is_alive() for process in processes):
            if interruptions or time.monotonic() > until:
                for process in processes:
                    process.kill()
                break
            time.sleep(0.02)
        pool.shutdown()
    if interruptions:
        raise KeyboardInterrupt


@contextmanager
def _counted_interruptions() -> Iterator[list[int]]:
    """Count each Ctrl-C instead of raising it; none comes to a thread, which has nothing to count."""
    seen: list[int] = []
    if current_thread() is not main_thread():
        yield seen
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


class _StoppedError(Exception):
    """Other work failed, for which this one ends."""


class Stop:
    """A sign that work shares with its copies: once one has failed, the others end where they ask.

    Example:
        >>> stop = Stop()
        >>> stop.check()
        >>> stop.set()
        >>> stop.check()
        Traceback (most recent call last):
        mechmarkov.utils.forked._StoppedError
    """

    def __init__(self) -> None:
        self._sign: Any = RawValue("b", 0)

    def set(self) -> None:
        """Give the sign."""
        self._sign.value = 1

    def check(self) -> None:
        """End this work, by an exception, where the sign was given."""
        if self._sign.value:
            raise _StoppedError


@contextmanager
def without_interruptions() -> Iterator[None]:
    """Keep Ctrl-C from what is begun in the block, also while it imports; here it comes afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow_parent() -> None:
    """Make a process of a pool end with its parent, killed or not, and leave an interruption to it.

    One that waits for tasks does not notice by itself that nobody is left to give any. A pool that is broken
    ends the others by SIGTERM, which a copy of a process that handles it would outlive.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent,), daemon=True).start()


def begin_spawned(given: Any) -> None:
    """Begin a process of a pool: it ends with its parent, and has what the pool shares as `forked.shared`.

    For `initializer=` of a ProcessPoolExecutor. In a module that imports little: until this runs, a process
    whose parent was killed does not know it.
    """
    global shared
    shared = given
    _follow_parent()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    _follow_parent()


def _call(argument: Any) -> bytes:
    """Returns what `work` returns, as bytes: tensors would go through shared memory, one open file each."""
    import torch

    assert _work is not None
    file = io.BytesIO()
    torch.save(_work(argument), file, pickle_protocol=5)
    return file.getvalue()


def _unpacked(data: bytes) -> Any:
    import torch

    # Any object may come out of it, and does: these bytes are from a copy of this process, never from a file.
    return torch.load(io.BytesIO(data), weights_only=False)
