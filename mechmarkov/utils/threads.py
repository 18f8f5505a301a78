"""How many cores there are, and how many threads compute: set deliberately and put back."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with `count` CPU threads inside the block, in torch and in numpy's and scipy's BLAS.

    As many as before compute after it. At the size of the models here a second thread gains little. It waits
    in a loop that takes a core, and costs a factor of a hundred where another process wants that core.

    Example:
        >>> before = torch.get_num_threads()
        >>> with threads(1):
        ...     torch.get_num_threads()
        1
        >>> torch.get_num_threads() == before
        True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count, "blas"):
            yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """Returns how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
