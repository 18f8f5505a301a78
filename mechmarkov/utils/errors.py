"""What is wrong with plain values, in one line."""

import difflib
import inspect
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

LONGEST = 600


def one_line(error: ValidationError, model: type[BaseModel]) -> str:
    """The first complaint of a validation, naming key, value and what was expected.

    Args:
        error: What pydantic raised.
        model: The model that was being filled, whose keys are the near misses of an unknown one.
    """
    first = error.errors(include_url=False)[0]
    key, kind, context = _dotted(model, first["loc"]), first["type"], first.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key {key}{near_misses(key, _keys_beside(model, first['loc']))}"
    if kind == "missing":
        return f"{key} is missing"
    if kind == "union_tag_not_found":
        return f"{key}.kind is missing"
    if kind == "union_tag_invalid":
        return f"{key}.kind is {context['tag']!r}, expected one of {context['expected_tags']}"
    if kind == "value_error":
        message = str(context["error"])
        return f"{key}: {message}" if key else message
    value, message = _shown(first["input"]), first["msg"]
    if message.startswith("Input should be "):
        return f"{key} is {value}, expected {message.removeprefix('Input should be ')}"
    return f"{key} is {value}: {message[0].lower()}{message[1:]}"


def printable(text: str) -> str:
    r"""Text from a file as part of one line: what would steer a terminal is escaped, what is long is cut.

    Example:
        >>> print(printable("\x1b[31mred"))
        \x1b[31mred
    """
    cut = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


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
    found = [name for name in dict.fromkeys(found) if name != key][:4]
    if found:
        return f", did you mean {' or '.join(found)}?"
    section = key.rpartition(".")[0]
    beside = [name for name in known if name.rpartition(".")[0] == section] if section else list(known)
    return f", expected one of: {', '.join(beside or known)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


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


def _walk(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[str], list[type[BaseModel]]]:
    """The keys of a pydantic location without the union tags in it, and the models its last key sits in."""
    names: list[str] = []
    here: list[type[BaseModel]] = [model]
    inside = here
    for part in loc:
        tagged = [m for m in here if _kind(m) == part]
        if tagged and not any(part in m.model_fields for m in here):
            here = tagged
            continue
        names.append(str(part))
        inside = here
        here = [
            n for m in here if part in m.model_fields for n in _models(m.model_fields[str(part)].annotation)
        ]
    return names, inside


def _dotted(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    return ".".join(_walk(model, loc)[0])


def _keys_beside(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """All dotted keys of a model, where the section of `loc` has only the keys that are allowed in it."""
    names, inside = _walk(model, loc)
    section = ".".join(names[:-1])
    keys = [key for key in _keys(model, "") if not section or not key.startswith(section + ".")]
    return list(dict.fromkeys([key for m in inside for key in _keys(m, section)] + keys))


def _keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        name = field.alias or name  # as it is called in data
        key = f"{prefix}.{name}" if prefix else name
        inner = _models(field.annotation)
        if not inner:
            yield key
        for part in inner:
            yield from _keys(part, key)
