"""JSON that nobody vouches for: ordinary files of a bounded size, finite numbers, no key twice."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mechmarkov.safe.file import check_regular, naming, refusing
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.text import shown

MAX_BYTES = 8 << 20
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # as JSON writes one, often of a pair
Form = TypeVar("Form", bound=BaseModel)


def read_json(path: str | os.PathLike[str], most: int = MAX_BYTES, name: str | None = None) -> Any:
    """The content of a JSON file.

    Args:
        path: The file; a pipe or a device is refused, since it may have no end.
        most: The largest size, in bytes.
        name: What messages call it.  [the path]

    Raises:
        RunFileError: One line that begins with the name.
    """
    path = Path(path)
    with naming(Path(name or path)):
        if (size := check_regular(path)) > most:
            raise RunFileError(f"has {size} bytes, expected at most {most}")
        with refusing("is not JSON", (OSError, ValueError, RecursionError)):
            text = path.read_text("utf-8-sig")  # some editors mark the order of bytes
            return parse_json(text)


def parse_json(text: str) -> Any:
    """The content of a JSON text.

    Raises:
        RunFileError: Numbers that are not finite, a key that is given twice, half of a pair of surrogates.
        ValueError: It is not JSON, as Python's reader says it.
        RecursionError: Brackets without end.

    Example:
        >>> parse_json("[1.5, NaN]")
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: holds 'NaN', expected finite numbers
    """
    data = json.loads(text, object_pairs_hook=without_repeats, parse_constant=_finite, parse_float=_finite)
    if SURROGATE.search(text):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = shown(error.object[error.start])
            raise RunFileError(f"holds {half}, half of a pair of surrogates, expected text") from None
    return data


def read_as(
    form: type[Form], path: str | os.PathLike[str], most: int = MAX_BYTES, name: str | None = None
) -> Form:
    """The content of a JSON file, of a form.

    Raises:
        RunFileError: One line that begins with the name, and has field, value and what was expected.
    """
    data = read_json(path, most, name)
    with naming(Path(name or path)):
        if not isinstance(data, dict):
            raise RunFileError(f"is {shown(data)}, expected an object")
        try:
            return form.model_validate(data)
        except ValidationError as error:
            raise RunFileError(one_line(error, form)) from None


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise RunFileError(f"holds {shown(text)}, expected finite numbers")
    return value


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a dict of pairs whose keys differ, for `json.loads(object_pairs_hook=without_repeats)`.

    Raises:
        RunFileError: Naming a key that is given twice.

    Example:
        >>> json.loads('{"a": 1, "a": 2}', object_pairs_hook=without_repeats)
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: key 'a' is given twice, expected once
    """
    items: dict[str, Any] = {}
    for key, value in pairs:
        if key in items:
            raise RunFileError(f"key {shown(key)} is given twice, expected once")
        items[key] = value
    return items
