"""Processes that work for this one: copies of it, and what makes each end with it."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from threading import Thread
from typing import Any

_work: Callable[[str], Any] | None = None  # what the copies find of it when they start


def can_fork() -> bool:
    """Whether this process may start copies of itself: on Linux, and where it is no daemon of another."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def forked(work: Callable[[str], Any], names: Sequence[str], jobs: int) -> Iterator[tuple[str, Any]]:
    """What `work` returns for each name, with the name, in the order in which they end.

    Args:
        work: Any function, closures too; what it returns is pickled, what it changes stays in its copy.
        names: What it is called with.
        jobs: How many processes.

    Raises:
        RuntimeError: A process was ended from outside, for instance where memory ran out.
    """
    global _work
    _work = work
    try:
        with ProcessPoolExecutor(
            jobs, multiprocessing.get_context("fork"), initializer=follow_parent
        ) as pool:
            futures = {pool.submit(_call, name): name for name in names}
            for future in as_completed(futures):
                yield futures[future], future.result()
    except BrokenProcessPool:
        raise RuntimeError(
            "a process was ended from outside, perhaps for want of memory: use one job"
        ) from None
    finally:
        _work = None


def follow_parent() -> None:
    """Make a process of a pool end with its parent, killed or not, and leave an interruption to it.

    One that waits for tasks does not notice by itself that nobody is left to give any.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _call(name: str) -> Any:
    assert _work is not None
    return _work(name)
