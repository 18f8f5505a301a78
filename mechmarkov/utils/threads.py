"""How many cores there are, and how many threads torch computes with: set deliberately and put back."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with `count` CPU threads inside the block, with as many as before after it.

    At the size of the models here a second thread gains little, and costs a factor of a hundred where another
    process wants the same core.

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
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
