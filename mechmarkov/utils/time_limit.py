"""A limit on the wall time of a block."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mechmarkov.utils.errors import number_of

LEAST_SECONDS, MOST_SECONDS = 1e-6, 1e8  # what the system's timer counts in, and three years
REPEAT_SECONDS = 1.0  # again and again, for code that swallows the first


def check_time_limit(seconds: float | None) -> None:
    """Refuse a limit (seconds) that the system's timer cannot keep; None sets none.

    Raises:
        TypeError, ValueError: It is not a number, or is below 1e-6 or above 1e8.
    """
    if seconds is not None:
        expected = f"seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:g}"
        number_of("time_limit", seconds, expected, least=LEAST_SECONDS, most=MOST_SECONDS)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """End a block with a TimeoutError after that many seconds of wall time; None sets no limit.

    A single call into compiled code is not interrupted: the error comes when it returns.

    Raises:
        ValueError: The limit is not positive or above 10⁸ seconds, or this is not the main thread of a POSIX
            system, the only one that can interrupt itself.
        TimeoutError: The block took longer.

    Example:
        >>> with time_limit(0.01):
        ...     while True:
        ...         pass
        Traceback (most recent call last):
        TimeoutError: took longer than the limit of 0.01 s
    """
    if seconds is None:
        yield
        return
    if not 0 < seconds <= MOST_SECONDS:
        expected = f"a positive number, at most {MOST_SECONDS:g}"
        raise ValueError(f"the time limit is {seconds} s, expected {expected}")
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        raise ValueError("a time limit works in the main thread of Linux or macOS only: leave it out")

    def end(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"took longer than the limit of {seconds:g} s")

    def disarm() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)

    old = signal.signal(signal.SIGALRM, end)
    # The alarm may come anywhere, also while the timer is set or disarmed. The next is a second away, and by
    # then it is disarmed again: one that stayed armed would end whatever runs later.
    try:
        try:
            # Less than it counts in is nothing to the timer, and would be no limit.
            signal.setitimer(signal.ITIMER_REAL, max(seconds, LEAST_SECONDS), REPEAT_SECONDS)
            yield
        finally:
            disarm()
    finally:
        disarm()
