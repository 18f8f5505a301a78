"""What is wrong with plain values and with arguments of public functions, in one line."""

import inspect
import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import index
from pathlib import Path
from typing import Any

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from mechmarkov.utils.text import near_misses, printable, shown

Models = Sequence[type[BaseModel]]
MOST = (1 << 63) - 1  # of an integer that torch takes
MOST_ITEMS = 1_000_000
MOST_FAULTS = 6  # of one message
FAULT_CHARACTERS = 200  # of one of several


IN_WORDS = {  # pydantic's
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    "a valid number, unable to parse string as a number": "a number",
    "a valid integer, unable to parse string as an integer": "an integer",
    "a valid integer": "an integer",
    ", got a number with a fractional part": "",
    "a valid tuple": "a list",
    "a valid boolean": "true or false",
    "a valid": "a",
}


TYPES = {"number": "a number", "integer": "an integer", "string": "a string", "array": "a list"}  # of JSON


def one_line(error: ValidationError, *models: type[BaseModel], name: str = "", skip: int = 0) -> str:
    """The first complaint of a validation, naming key, value and what was expected.

    Args:
        error: What pydantic raised.
        models: What was being filled: an unknown key is compared with its keys.
        name: What people call the whole, put before the key.
        skip: How many leading parts of pydantic's location are tags of a union.

    Example:
        >>> from mechmarkov.training.sections import Data
        >>> try:
        ...     Data.model_validate({"batch": 0})
        ... except ValidationError as error:
        ...     print(one_line(error, Data, name="data"))
        data.batch is 0, expected at least 1
    """
    return _complaint(error.errors(include_url=False)[0], models, name, skip)


def all_faults(error: ValidationError, *models: type[BaseModel]) -> str:
    """All complaints of a validation in one line, separated by "; ": six, and how many more there are.

    Args:
        error: What pydantic raised.
        models: What was being filled, as in `one_line`.

    Example:
        >>> from mechmarkov.training.sections import Data
        >>> try:
        ...     Data.model_validate({"batch": 0, "group": 8})
        ... except ValidationError as error:
        ...     print(all_faults(error, Data))
        batch is 0, expected at least 1; unknown key group, did you mean groups?
    """
    details = error.errors(include_url=False)
    faults = list(dict.fromkeys(_complaint(detail, models, "", 0) for detail in details))
    if len(faults) == 1:
        return faults[0]
    more = [f"and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
    return "; ".join([*(printable(fault, FAULT_CHARACTERS) for fault in faults[:MOST_FAULTS]), *more])


def _complaint(detail: Mapping[str, Any], models: Models, name: str, skip: int) -> str:
    """One of pydantic's complaints in our words."""
    loc, kind, context = detail["loc"][skip:], detail["type"], detail.get("ctx", {})
    names, section_models = _walk(models, loc)
    key = printable(".".join([name, *names] if name else names), 100)
    if kind == "extra_forbidden":
        known = _known_keys(models, names, section_models)
        near = near_misses(".".join(names), known) if known else ""
        return f"unknown key {key}{near}" if key else f"unknown key ''{near}"
    if kind == "missing":
        return f"{key} is missing{_wanted(section_models, names[-1])}"
    if kind == "union_tag_not_found":
        held = _models_of(section_models, names[-1]) if names else []
        kinds = sorted({repr(_kind(model)) for model in held})
        return f"{key}.kind is missing" + (f", expected one of {', '.join(kinds)}" if kinds else "")
    if kind == "union_tag_invalid":
        return f"{key}.kind is {shown(context['tag'])}, expected one of {context['expected_tags']}"
    if kind == "value_error":
        message = printable(str(context["error"]))
        if names and message.startswith(f"{names[-1]} "):  # a field that names itself
            return key + message.removeprefix(names[-1])
        return f"{key}: {message}" if key else message
    value, message = shown(detail["input"]), printable(detail["msg"])
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{key} is {value}, expected a section"
    if kind == "iteration_error":
        return f"{key} is {value}, expected a list"
    if kind == "int_parsing_size":
        return f"{key} is {value}, expected an integer of at most 4300 digits"
    wish = re.fullmatch("(.+?) should (be|have|match) (.+)", message)
    if wish is None:
        return f"{key} is {value}: {message[0].lower()}{message[1:]}"
    what, should, expected = wish.groups()
    for theirs, ours in IN_WORDS.items():
        expected = expected.replace(theirs, ours)
    verb = "" if should == "be" else f"{what.lower()} to {should} "
    return f"{key} is {value}, expected {verb}{expected}"


def _wanted(holders: Models, name: str) -> str:
    """The end of a sentence about a key that is not there: what it would hold."""
    fields = [f for model in holders for key, f in model.model_fields.items() if name in (key, f.alias)]
    if not fields:
        return ""
    field = fields[0]
    if _models(field.annotation):
        return ", expected a section"
    schema = schema_of(field)
    words = TYPES.get(schema.get("type", ""), "")
    least = f" of at least {schema['minimum']}" if "minimum" in schema else ""
    return f", expected {words}{least}" if words else ""


def schema_of(field: FieldInfo) -> dict[str, Any]:
    """Returns a field's JSON schema, empty for a type that JSON has no name for, as a plugin's may be."""
    try:
        return TypeAdapter(field.rebuild_annotation()).json_schema()
    except PydanticUserError:
        return {}


def _models_of(holders: Models, name: str) -> list[type[BaseModel]]:
    """The models that a key may hold."""
    fields = [model.model_fields[name] for model in holders if name in model.model_fields]
    return [model for field in fields for model in _models(field.annotation)]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models an annotation may hold; of an abstract one, those that are imported."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not inspect.isabstract(annotation):
            return [annotation]
        return [model for child in annotation.__subclasses__() for model in _models(child)]
    return [model for part in typing.get_args(annotation) for model in _models(part)]


def _kind(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("kind")
    return None if field is None else field.default


def _walk(models: Models, loc: Sequence[int | str]) -> tuple[list[str], Models]:
    """The keys of a pydantic location without the tags of unions, and the models that hold the last key."""
    names: list[str] = []
    current, holders = models, models
    for part, following in zip_longest(loc, loc[1:]):
        tagged = [model for model in current if _kind(model) == part]
        is_field = any(part in model.model_fields for model in current)
        if tagged and (not is_field or following == part):  # a kind may be called as its field is
            current = tagged
            continue
        names.append(str(part))
        current, holders = _models_of(current, str(part)), current
    return names, holders


def _known_keys(models: Models, names: Sequence[str], holders: Models) -> list[str]:
    """All dotted keys, of which the section of `names` has those that are allowed in it."""
    section = ".".join(names[:-1])
    keys = [key for model in models for key in _keys(model, "")]
    outside = [key for key in keys if not section or not key.startswith(section + ".")]
    return list(dict.fromkeys([key for model in holders for key in _keys(model, section)] + outside))


def _keys(model: type[BaseModel], prefix: str, above: Models = ()) -> Iterator[str]:
    for name, field in model.model_fields.items():
        name = field.alias or name  # as it is called in data
        key = f"{prefix}.{name}" if prefix else name
        inner = _models(field.annotation)
        if not inner:
            yield key
        for part in inner:
            if part not in (*above, model):  # a source of another source's tokens may hold itself
                yield from _keys(part, key, (*above, model))


def path_of(name: str, value: Any) -> Path:
    """A text or a path as a path.

    Raises:
        TypeError: Anything else, bytes too.
        ValueError: An empty text, one with a null character, at which the system would end it, or one that
            the locale's encoding has no bytes for.

    Example:
        >>> path_of("out", b"runs")
        Traceback (most recent call last):
        TypeError: out is b'runs', expected a text or a pathlib.Path
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise TypeError(f"{name} is {shown(value)}, expected a text or a pathlib.Path")
    if not text:
        raise ValueError(f"{name} is empty, expected a path: the current folder is '.'")
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
        ValueError: More than that many items.

    Example:
        >>> list_of("seeds", range(3), "a list of seeds")
        [0, 1, 2]
        >>> list_of("seeds", "abc", "a list of seeds")
        Traceback (most recent call last):
        TypeError: seeds is 'abc', expected a list of seeds
    """
    if hasattr(value, "tolist"):  # numpy's and torch's numbers as Python's; of a single one no list
        value = nested_lists(name, value, expected)
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


def nested_lists(name: str, value: Any, expected: str) -> Any:
    """An array or a tensor as nested lists of Python's numbers.

    Raises:
        TypeError: A tensor that is sparse, nested, quantised or without data.

    Example:
        >>> import torch
        >>> nested_lists("P", torch.eye(2).to_sparse(), "rows of numbers")
        Traceback (most recent call last):
        TypeError: P is a tensor without plain numbers (torch.sparse_coo, cpu), expected rows of numbers
    """
    try:
        return value.tolist()
    except (RuntimeError, NotImplementedError):  # torch's, which says it in several lines
        kind = f"{value.layout}, {value.device}"
        raise TypeError(f"{name} is a tensor without plain numbers ({kind}), expected {expected}") from None


def choice_of(name: str, value: Any, known: Iterable[str]) -> str:
    """A text that is one of several.

    Raises:
        ValueError: Anything else, an array too, which equals no text and compares with each.

    Example:
        >>> choice_of("kind", 3, ["zero", "mean"])
        Traceback (most recent call last):
        ValueError: kind is 3, expected one of 'zero', 'mean'
    """
    known = list(known)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} is {shown(value)}, expected one of {', '.join(map(repr, known))}")
    return value


def integer_of(name: str, value: Any, *, least: int | None = None, most: int = MOST) -> int:
    """An integer within bounds, of any size without a least one; not a truth value.

    Args:
        name: What people call it.
        value: An int, or another package's integer.
        least: The smallest that will do.
        most: The largest, where there is a least.

    Raises:
        TypeError: Anything that is not an integer, 2.0 too.
        ValueError: An integer beyond the bounds.

    Example:
        >>> integer_of("jobs", 0, least=1)
        Traceback (most recent call last):
        ValueError: jobs is 0, expected at least 1
    """
    try:
        number = index(value)
    except (TypeError, RuntimeError, NotImplementedError):  # of tensors with several numbers, or with none
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} is {shown(value)}, expected an integer")
    if least is not None and not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        raise ValueError(f"{name} is {shown(number)}, expected {bound}")
    return number


def number_of(name: str, value: Any, expected: str, *, least: float, most: float) -> float:
    """A number within bounds; not a truth value. `expected` is the end of the message, in words.

    Raises:
        TypeError: Anything that is not a number.
        ValueError: A number beyond the bounds, NaN too.

    Example:
        >>> number_of("time_limit", 0, "seconds above 0", least=1e-6, most=1e8)
        Traceback (most recent call last):
        ValueError: time_limit is 0, expected seconds above 0
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {shown(value)}, expected {expected}")
    if not least <= value <= most:
        raise ValueError(f"{name} is {shown(value)}, expected {expected}")
    return value


def generator_in(value: Any, depth: int = 8) -> str | None:
    """Returns where nested plain data hold a generator, as the rest of a name: "", "[2]", ".at"; or None.

    Pydantic makes a list of a generator, and never ends where that does not. Of a list that begins with a
    number or a text the rest is taken to be the same.

    Example:
        >>> generator_in({"at": (i for i in range(3))}), generator_in([[0.5, 0.5], [0.5, 0.5]])
        ('.at', None)
    """
    if isinstance(value, Iterator) or (isinstance(value, range) and value[MOST_ITEMS:]):
        return ""
    if not depth:
        return None
    if isinstance(value, Mapping):
        parts = [(f".{key}", item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and value and not isinstance(value[0], str | int | float):
        parts = [(f"[{number}]", item) for number, item in enumerate(value)]
    else:
        return None
    places = ((part, generator_in(item, depth - 1)) for part, item in parts)
    return next((part + rest for part, rest in places if rest is not None), None)
