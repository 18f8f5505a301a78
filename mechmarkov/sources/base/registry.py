"""Which sources there are: every entry point of the group `mechmarkov.sources`, ours and others'."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import PlainValidator, SerializeAsAny, TypeAdapter, ValidationError
from pydantic_core import PydanticKnownError

from mechmarkov.sources.base.source import Source
from mechmarkov.utils import plugins
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.text import error_line, shown

GROUP = "mechmarkov.sources"


def load_source(kind: str) -> type[Source]:
    """The class that is registered for a kind; no other source is imported.

    Raises:
        ValueError: No source is registered for the kind, two are, or what is registered is not one or
            cannot be imported.

    Example:
        >>> load_source("circle").__name__
        'Circle'
    """
    known = plugins.registered(GROUP)
    if kind not in known:
        raise PydanticKnownError(
            "union_tag_invalid",
            {"discriminator": "'kind'", "tag": kind, "expected_tags": ", ".join(map(repr, known))},
        )
    entry = known[kind]
    try:
        family = entry.load()
    except Exception as error:  # whatever somebody's module does when it is imported
        raise ValueError(f"{plugins.origin(entry)} cannot be imported: {error_line(error)}") from error
    if not (isinstance(family, type) and issubclass(family, Source)):
        raise ValueError(f"{plugins.origin(entry)} is {family!r}, expected a subclass of mechmarkov's Source")
    if family.model_fields["kind"].default != kind:
        raise ValueError(
            f"{plugins.origin(entry)} is registered as {kind!r} but its kind is "
            f"{family.model_fields['kind'].default!r}"
        )
    return family


@cache  # a search through all installed distributions takes milliseconds, and sweeps read many recipes
def _validator(kind: str) -> Callable[[dict[str, Any]], dict[str, Source]]:
    # Of a table with one entry, so that the location of an error begins with the kind, as in a tagged union.
    table: Any = dict[str, load_source(kind)]  # type: ignore[misc]  # a type made at run time
    return TypeAdapter(table).validate_python


def _validate(data: Any) -> Source:
    if isinstance(data, Source):
        return data
    if not isinstance(data, Mapping):
        raise PydanticKnownError("model_type", {"class_name": "Source"})
    if "kind" not in data:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
    kind = str(data["kind"])
    return _validator(kind)({kind: dict(data)})[kind]


# A field that holds a source of any registered kind: an instance, or data that say which by `kind`.
AnySource = Annotated[Source, PlainValidator(_validate), SerializeAsAny()]

_ANY: TypeAdapter[Source] = TypeAdapter(AnySource)


def source_from_data(data: Mapping[str, Any]) -> Source:
    """A source from plain data, `{"kind": …}` plus its constructor's arguments.

    The kind is looked up among the registered sources: ours and those of other installed packages.

    Raises:
        TypeError: It is not a dict.
        ValueError: naming the field, its value and what was expected; for an unknown kind, those that exist.

    Example:
        >>> source_from_data({"kind": "binary", "p": 0.5, "q": 0.8})
        Binary(kind='binary', p=0.5, q=0.8)
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"source is {shown(data)}, expected a dict such as {{'kind': …}}")
    try:
        return validated_source(data)
    except ValidationError as error:
        raise ValueError(complaint(error, data, "source")) from None


def complaint(error: ValidationError, data: Mapping[str, Any], name: str) -> str:
    """Returns what is wrong with a source's data, in one line that calls them by a name."""
    if "kind" not in data:
        return f"{name}.kind is missing, expected one of {', '.join(map(repr, plugins.registered(GROUP)))}"
    of_key = error.errors()[0]["type"] in ("missing", "extra_forbidden")
    known = [load_source(str(data["kind"]))] if of_key else []
    return one_line(error, *known, name=name, skip=1)


def validated_source(data: Mapping[str, Any]) -> Source:
    """A source from plain data, as `source_from_data`, for a caller who words an error on their own.

    Raises:
        ValidationError: pydantic's.
    """
    return _ANY.validate_python(dict(data))
