"""TOML files that people write: ordinary files, small, and not nested without end."""

import re
import stat
import tomllib
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 18  # a chain of 150 states, written out; read in a third of a second
MAX_DEPTH = 32
KEY_BOUNDARY = re.compile(r"[=,{}\[\]\n]")


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        ValueError: One line without the path, for what is not a regular file, not UTF-8 or not TOML, larger
            than 256 kB or nested deeper than 32 levels.
    """
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a device or a pipe may never end
            raise ValueError("is a directory" if stat.S_ISDIR(status.st_mode) else "is not a regular file")
        if status.st_size > MAX_BYTES:
            raise ValueError(f"has {status.st_size} bytes, expected at most {MAX_BYTES}")
        text = path.read_text("utf-8")
        # tomllib's time grows with the square of a key's parts.
        if any(piece.count(".") > MAX_DEPTH for piece in KEY_BOUNDARY.split(text)):
            raise ValueError(f"has a key of more than {MAX_DEPTH} parts")
        data = tomllib.loads(text)
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
