"""Arguments of public functions: one of the wrong kind is one error that names it, before any work."""

import os
from collections.abc import Iterator, Mapping
from operator import index
from pathlib import Path
from typing import Any

from mechmarkov.utils.text import shown

MOST = (1 << 63) - 1  # of an integer that torch takes
MOST_ITEMS = 1_000_000


def path_of(name: str, value: Any) -> Path:
    """A text or a path as a path.

    Raises:
        TypeError: Anything else, bytes too.
        ValueError: A text with a null character, at which the system would end it, or one that the locale's
            encoding has no bytes for.

    Example:
        >>> path_of("out", b"runs")
        Traceback (most recent call last):
        TypeError: out is b'runs', expected a text or a pathlib.Path
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise TypeError(f"{name} is {shown(value)}, expected a text or a pathlib.Path")
    if "\0" in text:
        raise ValueError(f"{name} is {shown(text)}, expected a path without a null character")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        advice = "run Python with -X utf8, or under a locale of UTF-8"
        raise ValueError(f"{name} is {text!a}, expected a path in {error.encoding}: {advice}") from None
    return Path(text)


def list_of(name: str, value: Any, expected: str, *, most: int = MOST_ITEMS) -> list[Any]:
    """The items of a list, a tuple, a range or an array: never of a generator, which may have no end.

    Raises:
        TypeError: Anything else, a text and a dict too.
        ValueError: More than so many items.

    Example:
        >>> list_of("seeds", range(3), "a list of seeds")
        [0, 1, 2]
        >>> list_of("seeds", "abc", "a list of seeds")
        Traceback (most recent call last):
        TypeError: seeds is 'abc', expected a list of seeds
    """
    if hasattr(value, "tolist"):  # numpy's and torch's numbers as Python's; of a single one no list
        value = value.tolist()
    has_end = hasattr(value, "__len__") and hasattr(value, "__iter__")
    if not has_end or isinstance(value, str | bytes | bytearray | Mapping):
        raise TypeError(f"{name} is {shown(value)}, expected {expected}")
    try:
        count = str(len(value)) if len(value) > most else ""
    except OverflowError:  # a range longer than Python can count
        count = shown(value)
    if count:
        raise ValueError(f"{name} are {count}, expected at most {most}")
    return list(value)


def integer_of(name: str, value: Any, *, least: int | None = None, most: int = MOST) -> int:
    """An integer within bounds, of any size without a least one; not a truth value.

    Raises:
        TypeError: Anything that is not an integer, 2.0 too.
        ValueError: An integer beyond the bounds.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {shown(value)}, expected an integer")
    number = index(value)
    if least is not None and not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        raise ValueError(f"{name} is {shown(number)}, expected {bound}")
    return number


def number_of(name: str, value: Any, expected: str, *, least: float, most: float) -> float:
    """A number within bounds; not a truth value.

    Raises:
        TypeError: Anything that is not a number.
        ValueError: A number beyond the bounds, NaN too.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {shown(value)}, expected {expected}")
    if not least <= value <= most:
        raise ValueError(f"{name} is {shown(value)}, expected {expected}")
    return value


def generator_in(value: Any, depth: int = 8) -> str | None:
    """Where nested plain data hold a generator, as the rest of a name: "", "[2]", ".at"; None where nowhere.

    Pydantic makes a list of a generator, and never ends where that does not. Of a list that begins with a
    number or a text the rest is taken to be alike.

    Example:
        >>> generator_in({"at": (i for i in range(3))}), generator_in([[0.5, 0.5], [0.5, 0.5]])
        ('.at', None)
    """
    if isinstance(value, Iterator):
        return ""
    if not depth:
        return None
    if isinstance(value, Mapping):
        parts = [(f".{key}", item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and value and not isinstance(value[0], str | int | float):
        parts = [(f"[{number}]", item) for number, item in enumerate(value)]
    else:
        return None
    found = ((part, generator_in(item, depth - 1)) for part, item in parts)
    return next((part + rest for part, rest in found if rest is not None), None)
