"""An intervention as an object: it acts inside a `with` block, and says so where it is used otherwise."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

Given = TypeVar("Given", covariant=True)
Arguments = ParamSpec("Arguments")


class Intervention(AbstractContextManager[Given], Generic[Given]):
    """Changes a model inside a `with` block; `intervention` makes them.

    Raises:
        TypeError: It is called, as a model is.
    """

    def __init__(self, name: str, manager: AbstractContextManager[Given]) -> None:
        self._name, self._manager = name, manager

    def __enter__(self) -> Given:
        """Begin it."""
        return self._manager.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Undo it."""
        return self._manager.__exit__(kind, error, trace)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse a call: outside of its block nothing is changed."""
        block = f"with {self._name}(…) as changed: changed(tokens)"
        raise TypeError(f"{self._name}(…) is not a model, expected a block: {block}")

    def __repr__(self) -> str:
        """Say what to do with it."""
        return f"{self._name}(…), which changes nothing yet: with {self._name}(…) as changed: changed(tokens)"


def intervention(
    function: Callable[Arguments, Iterator[Given]],
) -> Callable[Arguments, Intervention[Given]]:
    """Make of a function that yields once what `contextlib.contextmanager` does, but not callable.

    That one's can be called, to decorate functions: called with tokens it returns a function without a word.

    Example:
        >>> @intervention
        ... def silence():
        ...     yield "quiet"
        >>> with silence() as heard:
        ...     heard
        'quiet'
        >>> silence()("tokens")
        Traceback (most recent call last):
        TypeError: silence(…) is not a model, expected a block: with silence(…) as changed: changed(tokens)
    """
    begin = contextmanager(function)

    @wraps(function)
    def begun(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Intervention[Given]:
        return Intervention(function.__name__, begin(*args, **kwargs))

    return begun
