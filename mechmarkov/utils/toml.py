"""TOML files that people write: ordinary files, small, not nested without end; and models read from them."""

import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError

from mechmarkov.utils.config import Fields
from mechmarkov.utils.errors import all_faults, generator_in, path_of
from mechmarkov.utils.text import near_misses, printable, shown

MAX_BYTES = 1 << 18  # a chain of 150 states, written out; read in a third of a second
MAX_DEPTH = 32
MESSAGE_CHARACTERS = 2000  # of all faults of a file
LIKE = 'TOML, such as steps = 100 or name = "mine"'
W = TypeVar("W", bound="Written")  # `Self` is not for beartype, which checks types in the tests
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
        text = path.read_text("utf-8-sig")  # some editors mark the order of bytes
        # tomllib's time grows with the square of a key's parts.
        if any(piece.count(".") > MAX_DEPTH for piece in KEY_BOUNDARY.split(text)):
            raise ValueError(f"has a key of more than {MAX_DEPTH} parts")
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        is_json = text.lstrip().startswith("{")
        raise ValueError(f"{'is JSON' if is_json else error}, expected {LIKE}") from None
    except OSError as error:
        raise ValueError(error.strerror) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"is not a text in UTF-8: byte {error.start}; expected TOML") from None
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


class Written(Fields):
    """Fields that are a TOML file of their own; `shipped` is the folder of those that come with the library.

    Whatever is wrong with one is an `error` of one line. A file with the key of the `other` kind is of that
    kind, which another command takes.
    """

    error: ClassVar[type[ValueError]]
    shipped: ClassVar[Path]
    other: ClassVar[tuple[str, str, str]] = ("", "", "")

    @classmethod
    def from_data(cls: type[W], data: Mapping[str, Any]) -> W:
        """Make one from plain values.

        Raises:
            ValueError: The class's `error`, one line that names each fault: key, value and what was expected.
        """
        if not isinstance(data, Mapping):
            raise cls.error(f"data is {shown(data)}, expected a dict of fields")
        if (where := generator_in(data)) is not None:
            raise cls.error(f"{where.lstrip('.')} is a generator, expected a list")
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise cls.error(all_faults(error, cls)) from None

    @classmethod
    def from_toml(cls: type[W], path: str | Path) -> W:
        """Read one from a TOML file.

        Raises:
            ValueError: The class's `error`, one line that begins with the path.
        """
        key, kind, command = cls.other
        path = path_of("path", path)
        try:
            data = read_toml(path)
            if key in data and key not in cls.model_fields:
                raise ValueError(f"is a {kind}, as it has {key!r}: mechmarkov {command} FILE")
            return cls.from_data(data)
        except ValueError as error:  # the file or what it says
            raise cls.error(printable(f"{path}: {error}", MESSAGE_CHARACTERS)) from None

    @classmethod
    def names(cls) -> list[str]:
        """The names of the shipped ones."""
        return sorted(path.stem for path in cls.shipped.glob("*.toml"))

    @classmethod
    def load(cls: type[W], given: W | Mapping[str, Any] | str | Path) -> W:
        """Take one that is made already, plain values, a TOML file, or the name of a shipped one.

        Raises:
            ValueError: Anything else, and an unknown name, as this class's `error`.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            return cls.from_data(given)
        kind = cls.__name__.lower()
        if not isinstance(given, str | Path):
            raise cls.error(f"{kind} is {shown(given)}, expected a {kind}, its data, a file or a name")
        name = str(given)
        if isinstance(given, Path) or is_file(name):
            return cls.from_toml(name)
        known = cls.names()
        if name not in known:
            raise cls.error(f"no shipped {kind} is called {shown(name)}{near_misses(name, known)}")
        return cls.from_toml(cls.shipped / f"{name}.toml")


def is_file(name: str) -> bool:
    """Returns whether a name is that of a file, not of what is shipped.

    >>> is_file("mine.toml"), is_file("runs/mine"), is_file("walk-k6-half")
    (True, True, False)
    """
    return name.endswith((".toml", ".json")) or "/" in name
