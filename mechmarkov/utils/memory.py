"""Out of memory: recognised on the CPU and on a GPU, and work tried again with a smaller budget."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mechmarkov.utils.text import shown

Found = TypeVar("Found")
Budget = TypeVar("Budget")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as in malloc.h

# What torch says of an allocation that failed: on the CPU, on a GPU, and where cuBLAS made its workspace.
MESSAGES = ("allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


class ProcessKilledError(RuntimeError):
    """A process that worked for this one was ended from outside, possibly for the memory it took."""


@contextmanager
def freed_memory_kept(largest: int = 1 << 25) -> Iterator[None]:
    """Let this process keep up to a gigabyte that it frees in the block, and give it back afterwards.

    glibc would give it back and ask for it again at every step. Does nothing on other systems.

    Args:
        largest: Bytes of the largest tensor whose memory is kept; glibc allows 32 MB at most.
    """
    if libc := _glibc():
        libc.mallopt(M_MMAP_THRESHOLD, largest)
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
    try:
        yield
    finally:
        if libc:
            libc.mallopt(M_TRIM_THRESHOLD, 1 << 26)  # what glibc itself comes to with such tensors
        give_freed_memory_back()


def bytes_of(name: str, value: Any) -> int:
    """A number of bytes: an integer, or a text such as "2GB" or "512 MiB".

    Raises:
        TypeError: Neither an integer nor a text.
        ValueError: A text that is not a size, or less than one byte.

    Example:
        >>> bytes_of("memory", "2GB"), bytes_of("memory", 1 << 20)
        (2000000000, 1048576)
        >>> bytes_of("memory", "much")
        Traceback (most recent call last):
        ValueError: memory is 'much', expected bytes, or a text such as '2GB'
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError  # takes time, and `--help` loads this file

    expected = "bytes, or a text such as '2GB'"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{name} is {shown(value)}, expected {expected}")
    try:
        size = int(TypeAdapter(ByteSize).validate_python(value))
    except ValidationError:
        raise ValueError(f"{name} is {shown(value)}, expected {expected}") from None
    if size < 1:
        raise ValueError(f"{name} is {shown(value)}, expected at least 1 bytes, such as '2GB'")
    return size


def give_freed_memory_back() -> None:
    """Give the system what this process has freed, after work that needed much for a while (glibc only)."""
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.PyDLL | None:
    """The process's own symbols, where its C library is glibc."""
    return ctypes.pythonapi if hasattr(ctypes.pythonapi, "malloc_trim") else None


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error is a failed allocation: on the CPU torch raises a plain RuntimeError.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
        (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in MESSAGES)


def with_less_memory(
    work: Callable[[Budget], Found],
    budget: Budget,
    *,
    smaller: Callable[[Budget], Budget | None],
    message: Callable[[Budget], str],
) -> Found:
    """Returns `work(budget)`; each time that memory runs out, it is tried again with a smaller budget.

    Args:
        work: The work, which keeps to a budget.
        budget: The first: a number, or any other thing that says how much memory may be taken.
        smaller: The one to try after one that was too much; None where there is none.
        message: What stderr is told of the next budget, after "out of memory".

    Raises:
        MemoryError, RuntimeError: If memory runs out with the smallest budget too.

    Example:
        >>> def work(n):
        ...     if n > 2:
        ...         raise MemoryError
        ...     return n
        >>> with_less_memory(work, 8, smaller=lambda n: n // 2, message=lambda n: f": now {n}")
        2
    """
    import torch  # `mechmarkov --help` loads this file, and no torch

    while True:
        try:
            return work(budget)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or (following := smaller(budget)) is None:
                raise
        # Outside of `except`, so that what the failed work held is no longer held by its traceback.
        budget = following
        gc.collect()
        torch.cuda.empty_cache()  # cuBLAS allocates outside of torch's cache
        print(f"out of memory{message(budget)}", file=sys.stderr)
