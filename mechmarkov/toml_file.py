"""TOML files that people write: ordinary files, small, and not nested without end."""

import stat
import tomllib
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20  # a chain of 300 states, written out
MAX_DEPTH = 32


def read_toml(path: str | Path) -> dict[str, Any]:
    """What a TOML file says.

    Raises:
        ValueError: One line without the path, for what is no file, no UTF-8, no TOML, larger than 1 MB or
            nested deeper than 32 levels.
    """
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a device or a pipe may never end
            raise ValueError("is a directory" if stat.S_ISDIR(status.st_mode) else "is not a regular file")
        if status.st_size > MAX_BYTES:
            raise ValueError(f"has {status.st_size} bytes, expected at most {MAX_BYTES}")
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(error.strerror) from None
    except RecursionError:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels") from None
    _check_depth(data)
    return data


def _check_depth(data: dict[str, Any]) -> None:
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        inside = [list(item.values()) if isinstance(item, dict) else item for item in level]
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
