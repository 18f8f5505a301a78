"""Options of `mechmarkov import` as data."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mechmarkov.models import DecoderConfig
from mechmarkov.safe.json_file import parse_json
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources import Observed, Source
from mechmarkov.sources.base.registry import complaint, validated_source
from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.sources.estimation.homogeneity import OneLawWarning
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.text import near_misses, printable, reason, shown

Made = TypeVar("Made")
FIELDS = set(DecoderConfig.model_fields) - {"initializer_range", "tied"}
SUFFIXES = (".txt", ".csv", ".tsv", ".parquet", ".npy", ".bin")  # of files that `--source` takes as they are
READ = (
    "path", "unit", "lines", "dtype", "column", "sequence",
    "order", "each", "relabel", "alphabet", "max_states", "limit", "block", "held_out",
)  # fmt: skip


EXAMPLES = {
    "--source": '{"kind": "circle", "n_states": 6, "p": 0.5}',
    "--objective": '{"kind": "cross_entropy", "read": "last"}',
}


def from_json(option: str, text: str, make: Callable[[dict[str, Any]], Made]) -> Made:
    """Make something of the JSON that an option of the command line holds.

    Args:
        option: Its name, `--source` or `--objective`.
        text: The JSON, an object.
        make: A function of the object.

    Raises:
        RunFileError: Naming the option, and the field that is wrong.

    Example:
        >>> from_json("--source", '{"kind": "binary"}', dict)
        {'kind': 'binary'}
    """
    try:
        data = parse_json(text)
    except RunFileError as error:
        raise RunFileError(f"{option}: {error}") from None
    except (ValueError, RecursionError) as error:
        what = f"{option} is not JSON: {printable(str(error), 100)}"
        raise RunFileError(f"{what}, expected such as {EXAMPLES[option]}") from error
    if type(data) is not dict:
        raise RunFileError(f'{option} is {shown(data)}, expected an object such as {{"kind": …}}')
    try:
        return make(data)
    except ValidationError as error:
        raise RunFileError(one_line(error, name=option)) from error


def source_of(text: str) -> Source:
    """Make the source that `--source` says: JSON, or a file of sequences, whose law is then estimated.

    `{"kind": "observed", "path": "input.txt", "order": 1}` is a file with options of `Observed.read`.

    Raises:
        ValueError: One line, for JSON that is not a source, and as of `Observed.read`.
        OSError: The file cannot be read.

    Example:
        >>> source_of('{"kind": "binary", "p": 0.5, "q": 0.8}')
        Binary(kind='binary', p=0.5, q=0.8)
    """
    if Path(text).suffix.lower() in SUFFIXES:
        return _read(text)
    if not text.lstrip().startswith(("{", "[")):
        raise RunFileError(
            f'--source is {shown(text)}, expected {{"kind": …}} or a file that ends in {", ".join(SUFFIXES)}'
        )
    return from_json("--source", text, _made_or_read)


def _made_or_read(data: dict[str, Any]) -> Source:
    if data.get("kind") != "observed" or "path" not in data:
        try:
            return validated_source(data)
        except ValidationError as error:
            raise RunFileError(complaint(error, data, "--source")) from error
    for name in data:
        if name not in ("kind", *READ):
            raise RunFileError(f"--source has {shown(name)}, expected some of {', '.join(READ)}")
    if not isinstance(data["path"], str):
        path = shown(data["path"])
        raise RunFileError(f"--source has an option of another type: path is {path}, expected a text")
    return _read(**{name: value for name, value in data.items() if name != "kind"})


def _read(path: str, **options: Any) -> Source:
    """`Observed.read`, whose complaints name the file and, where they are of an option, how one is given."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OneLawWarning)  # said by the import
            return Observed.read(path, **options)
    except OptionError as error:
        given = {"kind": "observed", "path": path, **options}
        raise RunFileError(f"--source {printable(path, 200)}: {error.on_command_line(given)}") from None
    except (ValueError, TypeError) as error:
        message = reason(error)
        wrong = next((name for name in READ if message.startswith(f"{name} is")), None)
        how = ""
        if wrong is not None:
            example = {"kind": "observed", "path": path, wrong: "…"}
            how = f"; options are given as --source '{json.dumps(example, ensure_ascii=False)}'"
        raise RunFileError(f"--source {printable(path, 200)}: {message}{how}") from None


def checked_fields(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns fields of a config that a caller gives, checked: known names with plain values.

    Raises:
        RunFileError: Naming the field.

    Example:
        >>> checked_fields({"n_heads": 2})
        {'n_heads': 2}
    """
    if not isinstance(given, Mapping | None):
        raise RunFileError(f'given is {shown(given)}, expected fields of a config such as {{"n_heads": 2}}')
    for field, value in (given or {}).items():
        if field not in FIELDS:
            raise RunFileError(f"given has {shown(field)}{near_misses(str(field), sorted(FIELDS))}")
        if type(value) not in (bool, int, float, str, type(None)):
            raise RunFileError(f"given[{field!r}] is {shown(value)}, expected a plain value")
    return dict(given or {})


def settings(texts: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of a config that texts "key=value" say.

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
