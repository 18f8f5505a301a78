"""What goes wrong in a recorder, told once, so that no training stops for it."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mechmarkov.utils.exits import is_by_signal
from mechmarkov.utils.text import LINE_CHARACTERS, printable


class Notices:
    """Collects what goes wrong in a training, as warnings for later: of each kind only the first is told.

    Example:
        >>> notices = Notices()
        >>> with notices.instead_of_errors("disk", "step 8 is not on the disk", "make room"):
        ...     raise OSError("no space left")
        >>> notices.has_told()
        True
    """

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._waiting: list[str] = []

    @contextmanager
    def instead_of_errors(self, kind: str, what: str, mend: str) -> Iterator[None]:
        """Turn an error in the block into a warning for later, but not what a handler of signals raises.

        Args:
            kind: A name for this kind of fault, of which only the first is told.
            what: A text, what is not done.
            mend: A text, how to mend it.
        """
        try:
            yield
        except Exception as error:  # whatever it is, a training is worth more
            if is_by_signal(error):
                raise
            why = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
            self.add(kind, f"{what}: {why}", mend)

    def add(self, kind: str, message: str, mend: str) -> None:
        """Keep a warning for `tell`, unless one of its kind was kept before."""
        if kind not in self._told:
            self._told.add(kind)
            line = printable(" ".join(message.split()), LINE_CHARACTERS)
            self._waiting.append(f"{line}; {mend} (told once; the training goes on)")

    def has_told(self) -> bool:
        """Returns whether there was anything to tell."""
        return bool(self._told)

    def tell(self) -> None:
        """Give the warnings that wait to the caller's caller, or print them where warnings are errors."""
        waiting, self._waiting = self._waiting, []
        for line in waiting:
            try:
                warnings.warn(line, stacklevel=3)
            except Exception:  # warnings are errors here: it is told all the same
                with suppress(Exception):
                    print(f"warning: {line}", file=sys.stderr, flush=True)
