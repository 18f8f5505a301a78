"""Columns of states in `.csv`, `.tsv` and `.parquet`; only the columns that are asked for are read."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.sources.estimation.sequences import MAX_TOKENS
from mechmarkov.sources.estimation.texts import FLOAT, are_numbers
from mechmarkov.utils.extras import needed
from mechmarkov.utils.text import printable, shown

SEPARATORS = {".csv": ",;\t", ".tsv": "\t"}  # the first of them that the first line has
SUFFIXES = (*SEPARATORS, ".parquet")
MAX_BYTES = 1 << 29  # of a table, or of a column out of its compression
MAX_FIRST_LINE = 1 << 20
MAX_NAMES = 1000  # of which one is sought that no other column has
NAMED = 8  # columns in a message
COUNTED = 8  # columns that are named by counting, as pandas does where nobody named them
INDEX = re.compile(r"__index_level_\d+__|")  # the rows' names, which pandas writes as a column


class ColumnError(ValueError):
    """A complaint about a column, which names it already."""


def read(path: Path, *, column: Any, sequence: Any, lines: bool | None, limit: int | None) -> Any:
    """The states of a table: one sequence, a list of them, or of texts each of which may be one.

    Raises:
        OptionError: It has several columns, or its first line may be a name or a state.
        ValueError: One line, for a column that is not there, and a row that belongs to no sequence.
    """
    for option, value in (("column", column), ("sequence", sequence)):
        if value is not None and not isinstance(value, str):
            raise ColumnError(f"{option} is {shown(value)}, expected the name of one column")
    is_text, size = path.suffix.lower() in SEPARATORS, path.stat().st_size
    if is_text and size > MAX_BYTES:
        raise ColumnError(f"{_name(path)} has {size} bytes, expected at most {MAX_BYTES}")
    if lines and (not is_text or column is not None or sequence is not None):
        raise ColumnError(
            "lines is True, expected a table in text, and no column with it: a line is a sequence"
        )
    if lines:
        return _lines(path, limit)
    # In text a column without a name holds the rows' names.
    text_names = [one for one in next(_cells(path), []) if one] if is_text else []
    of_file, example = (text_names, None) if is_text else _names_of_parquet(path)
    names = [one for one in of_file if one != sequence]
    only = column is None and len(names) == 1
    if column is None and not only:
        raise _which(names, example, is_text)
    column = names[0] if only else column
    for option, value, known in (("column", column, names), ("sequence", sequence, of_file)):
        if value is not None and known.count(value) != 1:
            expected = f"one of {_listed(known)}" if value not in known else "a name that one column has"
            raise ColumnError(f"{option} is {shown(value)}, expected {expected}")
    wanted = [column] if sequence is None else [column, sequence]
    states, *groups = (_of_text if is_text else _of_parquet)(path, wanted, limit)
    if is_text and only and column in map(str, states):
        raise OptionError(
            f"the first line of {_name(path)} is {column!r}, which is a state below: expected the column's "
            "name, in a line above if this is a state too",
            ({"column": column}, "takes it as the name"),
        )
    return states if sequence is None else _grouped(states, groups[0], sequence)


def _name(path: Path) -> str:
    return printable(path.name, 60)


def _which(names: Sequence[str], example: str | None, is_text: bool) -> ValueError:
    """The question which column holds the states."""
    if not names:
        return ColumnError("column is None, and the table has no column of states")
    times = Counter(names)
    single = [one for one in names if times[one] == 1][-1:] if len(names) <= MAX_NAMES else names[-1:]
    chosen = [example] if example else single
    ways: list[tuple[dict[str, Any], str]] = [({"column": one}, "takes that one") for one in chosen]
    others = [one for one in names if one not in chosen and times[one] == 1]
    if is_text and chosen and others and len(names) <= NAMED:
        options = {"column": chosen[0], "sequence": others[0]}
        ways.append((options, f"takes it with a sequence for each {printable(others[0], 30)}"))
    if is_text and (are_numbers(names) or len(names) > NAMED):
        ways.insert(0, ({"lines": True}, "takes each line as a sequence"))
    if not ways:
        several = _listed(sorted(times))
        return ColumnError(f"the table has several columns called {several}, expected a name for each")
    return OptionError(f"column is None, expected one of {_listed(names)}", *ways)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} others" * (len(names) > NAMED)
    return ", ".join(printable(one, 30) for one in names[:NAMED]) + more


@needed()
def _names_of_parquet(path: Path) -> tuple[list[str], str | None]:
    """The names of the columns, and one that holds lists."""
    import pyarrow.parquet as pq  # half a second that other sources do not need
    import pyarrow.types as types

    schema = [one for one in pq.read_schema(path) if not INDEX.fullmatch(one.name)]
    is_list = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    lists = [one.name for one in schema if any(is_one(one.type) for is_one in is_list)]
    return [one.name for one in schema], lists[0] if lists else None


def _cells(path: Path) -> Iterator[list[str]]:
    """The cells of each line, without white space around them.

    Raises:
        ValueError: The file is empty, its first line is endless, or it is not a text.
    """
    with open(path, "rb") as binary:
        begins = binary.read(MAX_FIRST_LINE)
    first = begins.partition(b"\n")[0]
    if b"\0" in begins:
        raise ColumnError(f"{_name(path)} has a NUL byte, at {begins.index(0)}, as no table has")
    if len(first) == MAX_FIRST_LINE:
        raise ColumnError(f"the first line of {_name(path)} is longer than {MAX_FIRST_LINE} bytes")
    if not begins.strip():
        raise ValueError("it is empty")
    separators = SEPARATORS[path.suffix.lower()]
    separator = next((one for one in separators if one.encode() in first), separators[0])
    with open(path, encoding="utf-8-sig", newline="") as file:
        for cells in csv.reader(file, delimiter=separator):
            yield [cell.strip() for cell in cells]


def _of_text(path: Path, columns: list[str], limit: int | None) -> list[list[Any]]:
    """Columns as lists: the first as numbers where all are integers, otherwise texts; None at a gap."""
    rows = _cells(path)
    names = next(rows)
    places = [names.index(column) for column in columns]
    values_of: list[list[Any]] = [[] for _ in columns]
    for number, cells in enumerate(rows, 2):
        if len(cells) > len(names):
            raise ColumnError(f"line {number} of {_name(path)} has {len(cells)} cells, expected {len(names)}")
        for values, place in zip(values_of, places, strict=True):  # an empty line is a gap
            values.append((cells[place] if place < len(cells) else None) or None)
        if len(values_of[0]) > (limit or MAX_TOKENS):
            break
    present = [value for value in values_of[0] if value is not None]
    if are_numbers(present):
        values_of[0] = [None if value is None else int(value) for value in values_of[0]]
    elif present and all(map(FLOAT.fullmatch, present)) and re.search(r"[.eEnN]", "".join(present)):
        raise ColumnError(
            f"{printable(columns[0], 60)} holds numbers such as {shown(present[0])}, expected integers"
        )
    return values_of


@needed()
def _of_parquet(path: Path, columns: list[str], limit: int | None) -> list[list[Any]]:
    """Columns as lists, once the file's own account of them has been seen to be of a sensible size."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        wanted = tuple(f"{column}." for column in columns)  # of lists: input_ids.list.element
        chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
        chunks = [one for one in chunks if f"{one.path_in_schema}.".startswith(wanted)]
        total = sum(one.num_values for one in chunks) // len(columns)
        if limit is None and total > MAX_TOKENS:
            raise OptionError(
                f"{_name(path)} holds {total} states, expected at most {MAX_TOKENS}",
                ({"limit": MAX_TOKENS}, f"takes the first {MAX_TOKENS}"),
            )
        if sum(one.total_uncompressed_size for one in chunks) > MAX_BYTES:
            raise ColumnError(f"{_name(path)} has more than {MAX_BYTES} bytes in {columns[0]}")
        values_of: list[list[Any]] = [[] for _ in columns]
        for batch in file.iter_batches(columns=columns):
            for number, column in enumerate(columns):
                values_of[number] += batch.column(column).to_pylist()
            if limit is not None and len(values_of[0]) >= limit:
                break
    return values_of


def _grouped(states: Iterable[Any], groups: Sequence[Any], sequence: str) -> list[list[Any]]:
    """The states of each sequence, in the order of the rows."""
    by_group: dict[Any, list[Any]] = {}
    for row, (group, state) in enumerate(zip(groups, states, strict=True)):
        if group is None or group != group:
            raise ColumnError(f"{sequence}[{row}] is missing, expected the sequence of every row")
        by_group.setdefault(group, []).append(state)
    return list(by_group.values())


def _lines(path: Path, limit: int | None) -> list[list[str]]:
    """The cells of every line, but for names of columns and of rows, and for empty cells at a line's end."""
    rows: list[list[str]] = []
    count = 0
    for cells in _cells(path):
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            rows.append(cells)
            count += len(cells)
        if count > (limit or MAX_TOKENS) + MAX_FIRST_LINE:
            break
    if len(rows) > 1 and _are_names(rows):
        rows_are_named = not rows[0][0]
        rows = [cells[rows_are_named:] for cells in rows[1:]]
    return rows


def _are_names(rows: list[list[str]]) -> bool:
    """Returns whether the first row names columns: it has texts where numbers follow, a gap, or it counts."""
    first, second = rows[0], rows[1]
    if not first[0] or (are_numbers(second) and not any(are_numbers([cell]) for cell in first)):
        return True
    counts = len(first) >= COUNTED and first == [str(number) for number in range(len(first))]
    return counts and any(row != first for row in rows[1:])
