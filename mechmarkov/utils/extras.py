"""Packages that only some need: which extra of ours brings each, said in one line where one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

EXTRAS = {
    "numba": "fast",
    "pyarrow": "tables",
    "ray": "cluster",
    "huggingface_hub": "hub",
    "mcp": "mcp",
    "devinterp": "devinterp",
}


def is_there(package: str) -> bool:
    """Returns whether a package can be imported, without importing it.

    >>> is_there("torch"), is_there("no_such_package")
    (True, False)
    """
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


CAN_COMPILE = is_there("numba")


def missing(error: BaseException) -> str | None:
    """The line about a package that an extra brings, if that is what an error is about; otherwise None.

    >>> missing(ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.parquet"))
    'the package pyarrow is missing: pip install "mechmarkov[tables]"'
    >>> missing(ModuleNotFoundError("No module named 'numpy'", name="numpy"))
    """
    if not isinstance(error, ModuleNotFoundError):
        return None
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    return None if extra is None else f'the package {package} is missing: pip install "mechmarkov[{extra}]"'


@contextmanager
def needed() -> Iterator[None]:
    """Let imports inside fail with one line that names the extra.

    Raises:
        ImportError: A package is missing that an extra brings. Any other exception goes on as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        line = missing(error)
        if line is None:
            raise
        raise ImportError(line) from None
