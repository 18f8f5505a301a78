"""Where memory is out: the same work again in smaller chunks, and it is said."""

import gc
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

import torch

from mechmarkov.utils.memory import is_out_of_memory

Found = TypeVar("Found")
LEAST = 1 << 12  # elements of a chunk's largest activation: smaller ones free nothing more

_share: ContextVar[int] = ContextVar("share", default=1)


def chunk_elements(elements: int) -> int:
    """How many elements a chunk may have: as many as asked, or the share of them that memory allowed."""
    return max(1, elements // _share.get())


def in_smaller_chunks(work: Callable[[], Found], what: str, elements: int) -> Found:
    """Do something; each time that memory runs out, again in chunks of a quarter.

    What follows in the same thread keeps to the smaller chunks.

    Args:
        work: What asks `chunk_elements` for its size.
        what: For people.
        elements: Of the chunks that it starts with.

    Raises:
        MemoryError, RuntimeError: If memory is out with the smallest chunks too.
    """
    while True:
        try:
            return work()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or chunk_elements(elements) <= LEAST:
                raise
        # Outside of `except`, so that what the failed work held is no longer held by its traceback.
        _share.set(4 * _share.get())
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(f"out of memory, {what}: again in chunks of 1/{_share.get()} of the size", file=sys.stderr)
