"""Out of memory: recognised on the CPU and on a GPU, and work tried again with a smaller budget."""

import gc
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

Found = TypeVar("Found")

# What torch says of an allocation that failed: on the CPU, on a GPU, and where cuBLAS made its workspace.
MESSAGES = ("allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is out; on the CPU torch says so by a plain RuntimeError.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
        (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in MESSAGES)


def reduced(budget: int, divisor: int, smallest: int) -> list[int]:
    """A budget, and what is left of it when it is divided again and again.

    Args:
        budget: The first.
        divisor: Above 1.
        smallest: No budget is below this one.

    Example:
        >>> reduced(100, 2, 25)
        [100, 50, 25]
    """
    budgets = []
    while budget >= smallest:
        budgets.append(budget)
        budget //= divisor
    return budgets


def with_first_that_fits(
    work: Callable[[int], Found], budgets: Iterable[int], message: Callable[[int], str]
) -> Found:
    """Do `work(budget)` with one budget after the other, until memory does not run out.

    Args:
        work: The work, which keeps to a budget.
        budgets: The budgets to try in turn, at least one.
        message: What stderr is told of the budget that is tried next.

    Raises:
        MemoryError, RuntimeError: If memory runs out with the last budget too.
    """
    import torch  # `mechmarkov --help` loads this file, and no torch

    rest = iter(budgets)
    budget = next(rest)
    while True:
        try:
            return work(budget)
        except (MemoryError, RuntimeError) as error:
            following = next(rest, None) if is_out_of_memory(error) else None
            if following is None:
                raise
        # Outside of `except`, so that what the failed work held is no longer held by its traceback.
        budget = following
        gc.collect()
        torch.cuda.empty_cache()  # cuBLAS allocates outside of torch's cache
        print(f"out of memory{message(budget)}", file=sys.stderr)
