"""A file of one's own that hides a package: told by its path, where it makes an import fail.

A `datasets.py` next to a script is what `import datasets` finds, in every library that asks for the package.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from os.path import abspath, basename, dirname

from mechmarkov.utils.extras import missing


@contextmanager
def explaining() -> Iterator[None]:
    """Let imports inside fail with one line where a file of one's own is the cause.

    Raises:
        ImportError: Naming the file and what it hides, or the extra that brings what is missing. Any other
            exception goes on as it is.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # a script that parses arguments ends the process
        line = hiding(error) or missing(error)
        if line is None:
            raise
        raise ImportError(line) from None


def hiding(error: BaseException) -> str | None:
    """The line about the file of one's own that made an import fail, or None if none did."""
    seen: BaseException | None = error
    while seen is not None:
        for name, file in [*_named(seen), *_run(seen)]:
            if _is_own(name, file) and _is_elsewhere(name, file):
                own = dirname(file) if basename(file) == "__init__.py" else file
                return f"{own} hides the module {name} of a dependency: rename it, or run from elsewhere"
        seen = seen.__cause__ or seen.__context__
    return None


def _named(error: BaseException) -> Iterator[tuple[str, str]]:
    """The modules that an error is about, by name and file: those that lack what was asked of them."""
    names: list[object] = []
    if isinstance(error, ImportError):
        names = [error.name]
    if isinstance(error, AttributeError):
        names = [getattr(error.obj, "__name__", None), getattr(error.obj, "__module__", None)]
        if error.obj is None:  # compiled code does not say what lacks the attribute
            names = [name for name in sys.modules if "." not in name]
    for name in names:
        top = name.partition(".")[0] if isinstance(name, str) else ""
        file = getattr(sys.modules.get(top), "__file__", None)
        if file is not None:
            yield top, abspath(file)


def _run(error: BaseException) -> Iterator[tuple[str, str]]:
    """The modules whose code ran into an error; one that fails while it is imported is in no table."""
    step = error.__traceback__
    while step is not None:
        known = step.tb_frame.f_globals
        name, file = known.get("__name__"), known.get("__file__")
        if isinstance(name, str) and isinstance(file, str):
            yield name.partition(".")[0], abspath(file)
        step = step.tb_next


def _is_own(name: str, file: str) -> bool:
    """Returns whether a file was written for a project, and is not installed, nor Python's."""
    others = ("site-packages", "dist-packages", dirname(os.__file__))
    return name not in ("__main__", "mechmarkov") and not any(part in file for part in others)


def _is_elsewhere(name: str, file: str) -> bool:
    """Returns whether another module has that name: one of Python's, or in another folder of the path."""
    if name in sys.stdlib_module_names:
        return True
    for folder in sys.path:
        spec = PathFinder.find_spec(name, [folder])
        if spec is not None and spec.origin is not None and abspath(spec.origin) != file:
            return True
    return False
