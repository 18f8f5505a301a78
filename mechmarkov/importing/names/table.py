r"""A table of names: for each weight of a model, by a regular expression, HookedTransformer's name.

A line is `"tok.weight": "embed.W_E"`. Its key is a weight's name or a regular expression that matches the
whole of it, and groups stand in the value as `\1`. The value "" leaves the weight out. Where more is to be
said, the value is a table: see `Line`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import listed, printable, shown
from mechmarkov.utils.toml import read_toml

Names = Mapping[str, Any]  # as people write it
MISSING = "missing"  # the one key that is not a weight's
FILLS = ("zeros", "ones", "identity")
BIASES = re.compile(r".*\.(b|_?b_\w+)")
# The keys of a line besides `to`: their types, and these in words.
TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "transpose": ((bool,), "true or false"),
    "split": ((str,), "'parts' or 'heads' or 'interleaved'"),
    "head": ((str,), r"the head's number, such as '\2'"),
    "rows": ((list, tuple), "[start, stop]"),
    "scale": ((int, float), "a number"),
    "add": ((int, float), "a number"),
    "axes": ((list, tuple), "the axes of heads, of what is read and of what is given, such as [1, 0, 2]"),
    "slopes": ((bool,), "true or false"),
    "buckets": ((int,), "the lag from which all share the last bucket, such as 128"),
}
# What a value must be beyond that.
FURTHER: dict[str, Callable[[Any], bool]] = {
    "transpose": lambda _: True,
    "slopes": lambda _: True,
    "split": lambda x: x in ("parts", "heads", "interleaved"),
    "rows": lambda x: len(x) == 2 and all(type(row) is int and row >= 0 for row in x),
    "axes": lambda x: [*map(repr, x)] in [[*map(repr, one)] for one in permutations(range(3))],
    "add": math.isfinite,
    "scale": math.isfinite,
}


@dataclass(frozen=True)
class Line:
    r"""A line of a table, about the weights that a pattern matches.

    Attributes:
        pattern: Matches the whole of a weight's name.
        to: HookedTransformer's names, with `\1` for a group; none where the weight is left out.
        transpose: Whether its last two axes are exchanged to give HookedTransformer's order, `[d_in, d_out]`.
            None where its shape decides, or else its name: what ends in `weight` is exchanged, because
            `nn.Linear` keeps `[d_out, d_in]`.
        split: How it holds several names: "parts" one after the other, "heads" head by head, "interleaved"
            column by column. None where each name gets the whole, such as a tied embedding and unembedding.
        head: The number of the head, with `\1` for a group, where each head has a weight of its own.
        rows: Which of its rows are taken, `[start, stop]`, such as positions without a padding row.
        scale: What it is multiplied by.
        add: What is added to it, after that.
        axes: The axes of heads, of what is read and of what is given, of a weight that has three.
        slopes: Whether it holds each head's slope in place of `b_rel`: by that a score falls at each lag.
        buckets: The lag from which all share the last of T5's buckets, where it holds a number for each of
            these in place of `b_rel`, `[bucket, head]`.
    """

    pattern: str
    to: tuple[str, ...]
    transpose: bool | None = None
    split: str | None = None
    head: str | None = None
    rows: Sequence[int] | None = None
    scale: float = 1.0
    add: float = 0.0
    axes: Sequence[int] | None = None
    slopes: bool = False
    buckets: int | None = None


@dataclass(frozen=True)
class Table:
    """All lines, and what stands for weights that a model does not have.

    Attributes:
        lines: The lines, in the order in which they were written.
        missing: "zeros", "ones" or "identity", by a pattern of HookedTransformer's names.
    """

    lines: tuple[Line, ...]
    missing: tuple[tuple[re.Pattern[str], str], ...] = ()

    def of(self, name: str) -> list[tuple[Line, re.Match[str]]]:
        """Returns the lines of a weight: those with its very name, or else those whose pattern matches.

        Raises:
            RunFileError: Two patterns match.
        """
        matching = [(line, match) for line in self.lines if (match := re.fullmatch(line.pattern, name))]
        chosen = [(line, match) for line, match in matching if line.pattern == name] or matching
        patterns = list(dict.fromkeys(line.pattern for line, _ in chosen))
        if len(patterns) > 1:
            both = listed([shown(pattern) for pattern in patterns])
            raise RunFileError(f"names: {both} match {shown(name)}, expected one of them")
        return chosen

    def fill(self, name: str) -> str | None:
        """Returns what stands for a weight of HookedTransformer's that the model does not have, or None."""
        return next((fill for pattern, fill in self.missing if pattern.fullmatch(name)), None)


def table_of(names: Names) -> Table:
    r"""Check a table of names as people write it, and make its lines.

    Raises:
        RunFileError: One line that names the entry and what was expected.

    Example:
        >>> table = table_of({"tok.weight": "embed.W_E", r"h\.(\d+)\.q": {"to": r"blocks.\1.attn.W_Q"}})
        >>> [(line.to, match[0]) for line, match in table.of("h.0.q")]
        [(('blocks.\\1.attn.W_Q',), 'h.0.q')]
    """
    if not isinstance(names, Mapping) or not names:
        raise RunFileError(f'names is {shown(names)}, expected a table such as {{"tok.weight": "embed.W_E"}}')
    for key in names:
        if not isinstance(key, str):
            raise RunFileError(f"names has the key {shown(key)}, expected the name of a weight")
    lines = tuple(
        _line(key, one)
        for key, value in names.items()
        if key != MISSING
        for one in (value if isinstance(value, list | tuple) and value else [value])
    )
    return Table(lines, _missing(names.get(MISSING, {})))


def read_names(path: str | Path) -> dict[str, Any]:
    """Read a table of names from a TOML file, in which a dotted key may stand without quotes.

    Raises:
        RunFileError: One line that begins with the path.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "names.toml"
        ...     _ = path.write_text('tok.weight = "embed.W_E"')
        ...     read_names(path)
        {'tok.weight': 'embed.W_E'}
    """
    try:
        return _flat(read_toml(path))
    except ValueError as error:
        advice = "; a pattern stands in single quotes: 'layers\\.(\\d+)\\.q'" if "\\" in str(error) else ""
        raise RunFileError(f"{printable(str(path), 200)}: {error}{advice}") from None


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`tok.weight = "embed.W_E"` is a table in a table to TOML."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        inside = isinstance(value, dict) and "to" not in value and name != MISSING
        flat |= _flat(value, f"{name}.") if inside else {name: value}
    return flat


def _line(key: str, value: Any) -> Line:
    options = value if isinstance(value, Mapping) else {"to": value}
    for name in options:
        if name not in ("to", *TYPES):
            raise RunFileError(
                f"names[{shown(key)}] has {shown(name)}, expected some of to, {', '.join(TYPES)}"
            )
    to = options.get("to")
    targets = [to] if isinstance(to, str) else to
    if not isinstance(targets, list | tuple) or not all(isinstance(name, str) for name in targets):
        raise RunFileError(f"names[{shown(key)}] is {shown(value)}, expected a name such as 'embed.W_E'")
    for name in targets:
        if " " in name.strip():
            table = {"to": name.split()[0], "transpose": True}
            raise RunFileError(f"names[{shown(key)}] is {shown(name)}, expected a name or a table: {table}")
    try:
        re.compile(key)
    except re.error as error:
        raise RunFileError(f"names has {shown(key)}, which is not a regular expression: {error}") from None
    for name, (types, words) in TYPES.items():
        part = options.get(name)
        if part is not None and not (type(part) in types and FURTHER.get(name, bool)(part)):
            raise RunFileError(f"names[{shown(key)}].{name} is {shown(part)}, expected {words}")
    if options.get("split") and (isinstance(to, str) or len(targets) < 2):
        raise RunFileError(f"names[{shown(key)}] has split, expected to be a list of several names")
    rest: dict[str, Any] = {
        name: float(x) if name in ("scale", "add") else x for name, x in options.items() if name != "to"
    }
    return Line(key, tuple(filter(None, targets)), **rest)


def _missing(fills: Any) -> tuple[tuple[re.Pattern[str], str], ...]:
    if fills == "zeros":
        return ((BIASES, "zeros"),)
    if not isinstance(fills, Mapping) or any(fill not in FILLS for fill in fills.values()):
        advice = "{'.*b_[QKV]': 'zeros'} with " + listed(FILLS)
        raise RunFileError(
            f"names['{MISSING}'] is {shown(fills)}, expected 'zeros' for all biases, or {advice}"
        )
    try:
        return tuple((re.compile(pattern), fill) for pattern, fill in fills.items())
    except re.error as error:
        raise RunFileError(f"names['{MISSING}'] has no regular expression: {error}") from None
