"""The steps that a recorder keeps."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Literal

from mechmarkov.runs.given import checked_step
from mechmarkov.utils.errors import list_of
from mechmarkov.utils.text import shown

Schedule = Literal["log2"] | Sequence[int]


def schedule(at: Schedule | None, every: int | None) -> Callable[[int], int | None]:
    """Returns a function of a step that gives the first step to be kept after it, or None.

    Args:
        at: The steps to keep, or "log2" (0, 1, 2, 4, 8, …), the default.
        every: Instead of `at`: the steps between two that are kept, from 0 on.

    Raises:
        ValueError: Both are given, or one is neither of what it may be.

    Example:
        >>> log2, tens = schedule(None, None), schedule(None, 10)
        >>> [log2(after) for after in (-1, 0, 1, 5)], tens(5)
        ([0, 1, 2, 8], 10)
    """
    if at is not None and every is not None:
        raise ValueError(f"at is {shown(at)} and every is {shown(every)}, expected one of the two")
    if every is not None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every is {shown(every)}, expected an integer of at least 1")
        return lambda after: (after // every + 1) * every
    if at is None or (isinstance(at, str) and at == "log2"):
        return lambda after: after + 1 if after < 1 else 1 << after.bit_length()
    if isinstance(at, set | frozenset):
        at = sorted(at)
    try:
        given = list_of("at", at, "'log2' or a list of steps")
    except TypeError as error:
        raise ValueError(str(error)) from None
    steps = sorted({checked_step(step) for step in given})
    if not steps:
        raise ValueError("at is empty, expected 'log2' or a list of steps")
    then_none: list[int | None] = [*steps, None]
    return lambda after: then_none[bisect_right(steps, after)]
