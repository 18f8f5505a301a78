"""Columns of states in `.csv`, `.tsv` and `.parquet`; only the columns that are asked for are read."""

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.sources.estimation.sequences import MAX_TOKENS
from mechmarkov.sources.estimation.texts import FLOAT, are_numbers
from mechmarkov.utils.text import printable, shown

SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*SEPARATORS, ".parquet")
MAX_BYTES = 1 << 29  # of a table, or of a column out of its compression
MAX_FIRST_LINE = 1 << 20
NAMED = 8  # columns in a message
INDEX = re.compile(r"__index_level_\d+__")  # the rows' names, which pandas writes as a column


class ColumnError(ValueError):
    """A complaint about a column, which names it already."""


def read(
    path: Path, name: str, *, column: Any, sequence: Any, lines: bool | None, limit: int | None
) -> tuple[Any, None]:
    """The states of a table: one sequence, a list of them, or of texts each of which may be one.

    Raises:
        OptionError: It has several columns, or its first line may be a name or a state.
        ValueError: One line, for a column that is not there, and a row that belongs to no sequence.
    """
    for option, value in (("column", column), ("sequence", sequence)):
        if value is not None and not isinstance(value, str):
            raise ColumnError(f"{option} is {shown(value)}, expected the name of one column")
    suffix = path.suffix.lower()
    if path.stat().st_size > MAX_BYTES and suffix in SEPARATORS:
        raise ColumnError(f"{name} has {path.stat().st_size} bytes, expected at most {MAX_BYTES}")
    if lines and suffix in SEPARATORS:
        if column is not None or sequence is not None:
            raise ColumnError("lines is True, expected no column with it: each line is a sequence")
        return _rows(path, SEPARATORS[suffix], limit), None
    names = _names(path, name)
    if column is None:
        column = _only([one for one in names if one != sequence], name, suffix)
        asked = suffix in SEPARATORS  # only in these the first line could be a name or a state
    else:
        asked = False
    for option, value in (("column", column), ("sequence", sequence)):
        if value is not None and value not in names:
            raise ColumnError(f"{option} is {shown(value)}, expected one of {_listed(names)}")
    wanted = [column] if sequence is None else [column, sequence]
    read_columns = _of_text if suffix in SEPARATORS else _of_parquet
    states, *groups = read_columns(path, wanted, limit)
    if asked and column in map(str, states):
        raise OptionError(
            f"the first line of {name} is {column!r}, which is a state below: if it is a state too, "
            "give the file a first line with a name",
            ({"column": column}, "takes it as the name"),
        )
    return (states if sequence is None else _grouped(states, groups[0], sequence)), None


def _only(names: Sequence[str], name: str, suffix: str) -> str:
    """The only column, or a question."""
    if len(names) == 1:
        return names[0]
    if not names:
        raise ColumnError(f"{name} has no column of states")
    ways: list[tuple[dict[str, Any], str]] = [({"column": names[-1]}, "takes the last")]
    # A second column "0" is called "0.1" when it is read.
    if suffix in SEPARATORS and all(re.fullmatch(r"-?\d+(\.\d+)?", one) for one in names):
        ways.insert(0, ({"lines": True}, "takes each line as a sequence"))
    raise OptionError(f"column is None, expected one of {_listed(names)}", *ways)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} others" * (len(names) > NAMED)
    return ", ".join(printable(one, 30) for one in names[:NAMED]) + more


def _names(path: Path, name: str) -> list[str]:
    """The names of a table's columns; no row is read."""
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq  # half a second that other sources do not need

        return [one for one in pq.read_schema(path).names if not INDEX.fullmatch(one)]
    import pandas as pd

    with open(path, "rb") as file:
        begins = file.read(MAX_FIRST_LINE)
    if b"\0" in begins:
        raise ColumnError(f"{name} has a NUL byte, at {begins.index(0)}, as no table has")
    if b"\n" not in begins and len(begins) == MAX_FIRST_LINE:
        raise ColumnError(f"the first line of {name} is longer than {MAX_FIRST_LINE} bytes")
    separator = SEPARATORS[path.suffix.lower()]
    return list(map(str, pd.read_csv(path, sep=separator, nrows=0, encoding="utf-8-sig").columns))


def _of_text(path: Path, columns: list[str], limit: int | None) -> list[list[Any]]:
    """Columns as lists: numbers where all are integers, else texts; None at a gap."""
    import pandas as pd

    table = pd.read_csv(
        path,
        sep=SEPARATORS[path.suffix.lower()],
        usecols=columns,
        dtype=str,  # 0110 is no number, and a gap makes none a fraction
        nrows=limit or MAX_TOKENS + 1,
        skip_blank_lines=False,  # an empty line is a gap
        keep_default_na=False,  # a state may be called NA
        na_values=[""],
        encoding="utf-8-sig",
    )
    found = []
    for column in columns:
        values: list[Any] = [value if isinstance(value, str) else None for value in table[column].tolist()]
        present = [value for value in values if value is not None]
        if column == columns[0] and present and all(map(FLOAT.fullmatch, present[:1000])):
            if are_numbers(present):
                values = [None if value is None else int(value) for value in values]
            elif re.search(r"[.eEnN]", "".join(present[:1000])):
                raise ColumnError(
                    f"{printable(column, 60)} holds numbers such as {shown(present[0])}, expected integers"
                )
        found.append(values)
    return found


def _of_parquet(path: Path, columns: list[str], limit: int | None) -> list[list[Any]]:
    """Columns as lists, once the file's own account of them has been seen to be of a sensible size."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        about = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        chunks = [group.column(i) for group in about for i in range(group.num_columns)]
        chunks = [
            one for one in chunks if f"{one.path_in_schema}.".startswith(tuple(f"{c}." for c in columns))
        ]
        total = sum(one.num_values for one in chunks) // len(columns)
        if limit is None and total > MAX_TOKENS:
            raise OptionError(
                f"{printable(path.name, 60)} holds {total} states, expected at most {MAX_TOKENS}",
                ({"limit": MAX_TOKENS}, f"takes the first {MAX_TOKENS}"),
            )
        if sum(one.total_uncompressed_size for one in chunks) > MAX_BYTES:
            raise ColumnError(f"{printable(path.name, 60)} has more than {MAX_BYTES} bytes in {columns[0]}")
        found: list[list[Any]] = [[] for _ in columns]
        for batch in file.iter_batches(columns=columns):
            for number, column in enumerate(columns):
                found[number] += batch.column(column).to_pylist()
            if limit is not None and len(found[0]) >= limit:
                break
    return found


def _grouped(states: Iterable[Any], groups: Sequence[Any], sequence: str) -> list[list[Any]]:
    """The states of each sequence, in the order of the rows."""
    found: dict[Any, list[Any]] = {}
    for row, (group, state) in enumerate(zip(groups, states, strict=True)):
        if group is None or group != group:
            raise ColumnError(f"{sequence}[{row}] is missing, expected the sequence of every row")
        found.setdefault(group, []).append(state)
    return list(found.values())


def _rows(path: Path, separator: str, limit: int | None) -> list[list[str]]:
    """The cells of every line; a first line of names is left out, and so are empty cells at the end."""
    found: list[list[str]] = []
    count = 0
    with open(path, encoding="utf-8-sig", newline="") as file:
        for cells in csv.reader(file, delimiter=separator):
            while cells and not cells[-1].strip():
                cells.pop()
            if cells:
                found.append([cell.strip() for cell in cells])
                count += len(cells)
            if count > (limit or MAX_TOKENS):
                break
    if len(found) > 1 and are_numbers(found[1]) and not any(are_numbers([cell]) for cell in found[0]):
        del found[0]
    return found
