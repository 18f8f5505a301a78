"""Functions that numba compiles, and what it keeps of them on disk.

Numba comes with the extra `fast`. Without it nothing is compiled: who calls these functions looks at
`extras.CAN_COMPILE` first, and computes in torch. Importing this module loads numba (0.1 to 0.25 s).
"""

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from mechmarkov.utils.extras import CAN_COMPILE

if CAN_COMPILE:
    from numba import config, njit
    from numba.core.caching import FunctionCache, IndexDataCacheFile
else:
    config = njit = None
    FunctionCache = IndexDataCacheFile = object


@cache
def _stamp(folder: Path) -> str:
    """A digest of the code in a folder."""
    files = sorted(folder.glob("*.py"))
    return blake2b(b"".join(file.read_bytes() for file in files), digest_size=4).hexdigest()


def _as_it_is(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    del options
    return function


# For functions that compiled ones call.
called = partial(njit, error_model="numpy", fastmath={"contract"}) if CAN_COMPILE else _as_it_is
inlined = partial(called, forceinline=True)  # for short ones


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """A function that numba compiles on its first call, in seconds, and keeps on disk where it can write.

    The function fills arrays in place and returns nothing. What is kept is of one processor: another compiles
    again.

    Example:
        >>> import numpy as np
        >>> @compiled
        ... def double(x):
        ...     for i in range(len(x)):
        ...         x[i] *= 2
        >>> numbers = np.arange(3.0)
        >>> double(numbers)
        >>> numbers.tolist()
        [0.0, 2.0, 4.0]
    """
    dispatcher: Any = called(function)
    if not CAN_COMPILE:
        return function
    # Of a user without a home numba would make a folder called "~" in the current one.
    if config.CACHE_DIR or os.path.isabs(os.path.expanduser("~")):
        with suppress(RuntimeError):  # numba's, that it finds no folder
            dispatcher._cache = _Kept(function)
    return dispatcher


class _Kept(FunctionCache):  # type: ignore[misc]
    """Numba's files of a function; nothing that is wrong with them stops who computes."""

    def __init__(self, function: Callable[..., None]) -> None:
        super().__init__(function)
        # Numba looks at the function's own file; a change of what it calls, next to it, counts too.
        stamp = self._impl.locator.get_source_stamp(), _stamp(Path(function.__code__.co_filename).parent)
        self._cache_file = _Checked(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Returns what was compiled for a signature; None, to compile it, if that is missing or damaged."""
        try:
            return super().load_overload(signature, target)
        except Exception:  # whatever a damaged pickle breaks
            with suppress(Exception):
                self.flush()  # or nothing could be kept any more
            return None

    def save_overload(self, signature: Any, overload: Any) -> None:
        """Keep what was compiled, if the disk lets us."""
        with suppress(Exception):
            super().save_overload(signature, overload)


class _Checked(IndexDataCacheFile):  # type: ignore[misc]
    """Files that say what they are of, and of which code.

    Two processes that keep something at once may give two functions' files one name. What is read then is
    code for arguments of other types.
    """

    def save(self, key: Any, data: Any) -> None:
        """Keep data under a key, with the key and a checksum."""
        content = self._dump(data)
        super().save(key, (self._whose(key), blake2b(content).digest(), content))

    def load(self, key: Any) -> Any:
        """The data of a key, if they are whole and its own."""
        if (entry := super().load(key)) is None:
            return None
        whose, digest, content = entry
        is_whole = (whose, digest) == (self._whose(key), blake2b(content).digest())
        return pickle.loads(content) if is_whole else None

    def _whose(self, key: Any) -> str:
        return repr((self._source_stamp, key))
