"""Packages that only some need: which extra of ours brings each, said in one line where one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    "numba": "fast",
    "pyarrow": "tables",
    "ray": "cluster",
    "huggingface_hub": "hub",
    "mcp": "mcp",
    "devinterp": "devinterp",
}


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
