"""What is wrong with plain values, in one line."""

import difflib
import inspect
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError

from mechmarkov.utils.text import printable, shown

Models = Sequence[type[BaseModel]]


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
    """
    first = error.errors(include_url=False)[0]
    loc, kind, context = first["loc"][skip:], first["type"], first.get("ctx", {})
    names, section_models = _walk(models, loc)
    key = printable(".".join([name, *names] if name else names), 100)
    if kind == "extra_forbidden":
        known = _known_keys(models, names, section_models)
        return f"unknown key {key}" + (near_misses(".".join(names), known) if known else "")
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
    value, message = shown(first["input"]), printable(first["msg"])
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{key} is {value}, expected a section"
    if message.startswith("Input should be "):
        expected = message.removeprefix("Input should be ")
        for theirs, ours in IN_WORDS.items():
            expected = expected.replace(theirs, ours)
        return f"{key} is {value}, expected {expected}"
    return f"{key} is {value}: {message[0].lower()}{message[1:]}"


def near_misses(key: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown dotted key: the known ones that look like it.

    Example:
        >>> near_misses("lr", ["optimiser.lr", "steps"])
        ', did you mean optimiser.lr?'
        >>> near_misses("zzz", ["optimiser.lr", "steps"])
        ', expected one of: optimiser.lr, steps'
        >>> near_misses("optimizer", ["optimiser.lr", "steps"])
        ', did you mean optimiser?'
    """
    leaf = key.rsplit(".", 1)[-1]
    sections = [name.rpartition(".")[0] for name in known if "." in name]
    same_leaf = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    leaves = {name: name.rsplit(".", 1)[-1] for name in [*known, *sections]}
    alike = difflib.get_close_matches(leaf, sorted(set(leaves.values())), n=3, cutoff=0.7)
    found = same_leaf + [name for near in alike for name in leaves if leaves[name] == near]
    found = [name for name in dict.fromkeys(found) if not f"{key}.".startswith(f"{name}.")][:4]
    if found:
        return f", did you mean {' or '.join(found)}?"
    section, neighbours = key.rpartition(".")[0], list[str]()
    while section and not neighbours:  # of the nearest section that there is
        neighbours = [name for name in known if name.rpartition(".")[0] == section]
        section = section.rpartition(".")[0]
    return f", expected one of: {', '.join(neighbours or known)}"


def _wanted(holders: Models, name: str) -> str:
    """The end of a sentence about a key that is not there: what it would hold."""
    fields = [f for model in holders for key, f in model.model_fields.items() if name in (key, f.alias)]
    if not fields:
        return ""
    field = fields[0]
    if _models(field.annotation):
        return ", expected a section"
    try:
        schema = TypeAdapter(field.rebuild_annotation()).json_schema()
    except PydanticUserError:  # a type that JSON has no name for, as a plugin's may be
        return ""
    words = TYPES.get(schema.get("type", ""), "")
    least = f" of at least {schema['minimum']}" if "minimum" in schema else ""
    return f", expected {words}{least}" if words else ""


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
    for part in loc:
        tagged = [model for model in current if _kind(model) == part]
        if tagged and not any(part in model.model_fields for model in current):
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


def _keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        name = field.alias or name  # as it is called in data
        key = f"{prefix}.{name}" if prefix else name
        inner = _models(field.annotation)
        if not inner:
            yield key
        for part in inner:
            yield from _keys(part, key)
