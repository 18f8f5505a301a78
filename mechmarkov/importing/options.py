"""Options of `mechmarkov import` as data."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from mechmarkov.models import DecoderConfig
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.text import printable, shown

Made = TypeVar("Made")
FIELDS = set(DecoderConfig.model_fields) - {"initializer_range", "tied"}


def from_json(option: str, text: str, make: Callable[[dict[str, Any]], Made], skip: int = 0) -> Made:
    """A config from JSON; `skip` is how many parts of pydantic's location say nothing.

    Raises:
        RunFileError: Naming the option, and the field that is wrong.
    """
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats)
    except RunFileError as error:
        raise RunFileError(f"{option}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"{option} is not JSON: {printable(str(error), 100)}") from error
    if type(data) is not dict:
        raise RunFileError(f'{option} is {shown(data)}, expected an object such as {{"kind": …}}')
    try:
        return make(data)
    except ValidationError as error:
        raise RunFileError(one_line(error, name=option, skip=skip)) from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise RunFileError(f"key {shown(repeated)} is given twice, expected once")
    return found


def settings(texts: Sequence[str]) -> dict[str, Any]:
    """Fields of a config from "key=value".

    Raises:
        RunFileError: For a text without "=", and a field that a config does not have.

    Example:
        >>> settings(["n_heads=2", "act_fn=gelu", "normalization_type=none"])
        {'n_heads': 2, 'act_fn': 'gelu', 'normalization_type': None}
    """
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or name not in FIELDS:
            raise RunFileError(f"--set is {shown(text)}, expected KEY=VALUE of {', '.join(sorted(FIELDS))}")
        try:
            given[name] = None if value == "none" and name == "normalization_type" else json.loads(value)
        except (ValueError, RecursionError):  # not JSON: a word, or brackets without end
            given[name] = value
        if type(given[name]) not in (bool, int, float, str, type(None)):
            raise RunFileError(f"--set is {shown(text)}, expected a plain value")
    return given
