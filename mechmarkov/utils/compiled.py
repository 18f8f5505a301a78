"""Functions that numba compiles."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path

from numba import njit


@cache
def _stamp(folder: Path) -> str:
    """A digest of the code in a folder."""
    files = sorted(folder.glob("*.py"))
    return blake2b(b"".join(file.read_bytes() for file in files), digest_size=4).hexdigest()


called = partial(njit, error_model="numpy", fastmath={"contract"})  # for functions that compiled ones call
inlined = partial(called, forceinline=True)  # for short ones


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compiled on its first call, in seconds; kept on disk where there is a folder that can be written to."""
    # Numba's name for it, under which it is kept: a change of what it calls makes another.
    function.__qualname__ += f".{_stamp(Path(function.__code__.co_filename).parent)}"
    with suppress(RuntimeError):  # numba's, that it finds none
        return called(function, cache=True)
    return called(function)
