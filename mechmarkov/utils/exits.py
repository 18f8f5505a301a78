"""An exit of somebody's code is an error, unless a handler of signals asks for it: then the process ends."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType

from mechmarkov.utils import time_limit


def is_by_signal(error: BaseException) -> bool:
    """Returns whether a handler of signals raised an error: a cluster or a user wants the process to end.

    A handler is known by its arguments: only it is given the frame that was interrupted.

    Example:
        >>> is_by_signal(SystemExit(1))
        False
    """
    return any(_is_handler(frame) for frame, _ in walk_tb(error.__traceback__))


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Turn an exit of a model's code into an error, unless a handler of signals asked for it.

    Raises:
        RuntimeError: One line with the exit's code.

    Example:
        >>> with exits_as_errors():
        ...     raise SystemExit(3)
        Traceback (most recent call last):
        RuntimeError: its code exits with SystemExit(3), expected code that returns or raises an error
    """
    try:
        yield
    except SystemExit as error:
        if is_by_signal(error):
            raise
        expected = "expected code that returns or raises an error"
        raise RuntimeError(f"its code exits with SystemExit({error.code!r}), {expected}") from error


@contextmanager
def without_faults() -> Iterator[None]:
    """Leave the block at what goes wrong in it, an exit included, but for what a handler of signals raises.

    Example:
        >>> with without_faults():
        ...     raise SystemExit(3)
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if is_by_signal(error):
            raise


def _is_handler(frame: FrameType) -> bool:
    if frame.f_globals.get("__name__") == time_limit.__name__:  # ours, which ends a block and not the process
        return False
    names, rest, keywords, values = inspect.getargvalues(frame)
    given = [values.get(name) for name in names]
    given += values.get(rest, ()) if rest else ()
    given += values.get(keywords, {}).values() if keywords else ()
    return any(isinstance(value, FrameType) for value in given)
