"""The tidy table of a sweep: one row a member, as parquet; every score's column knows its unit."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mechmarkov.sweeps.spec import Point
from mechmarkov.sweeps.tasks import Row
from mechmarkov.utils.files import replacing

Cells = dict[str, Any]


def table(members: Sequence[tuple[Point, int]], rows: Sequence[Row]) -> pa.Table:
    """One row a member, in the sweep's order.

    Columns: the fields that vary; `seed`; `status` (`ok` or `diverged`), `message` and `step` (the last);
    `stuck` with `.excess`, `.line` (nats; `mechmarkov.sweeps.stuck`) and `.reason`; `final_<metric>` of
    training; `<probe>.<score>` with `.low` and `.high` (95 % over evaluation sequences), `.null` (exact
    chance, or the middle of null models) with `.null_low` and `.null_high` (95 % of null models), `.reason`
    where it has no value; `<probe>.skipped` and `<probe>.failed`, why; `seconds` (this member's share of its
    task's wall time) and `key`. A column's metadata hold its unit.
    """
    units: dict[str, str] = {"stuck.excess": "nats", "stuck.line": "nats", "seconds": "s"}
    cells = []
    for (point, seed), row in zip(members, rows, strict=True):
        cell: Cells = {**point.values, "seed": seed}
        cell |= {name: row[name] for name in ("status", "message", "step")}
        line = row["stuck"] or {"value": None, "reason": row["message"], "excess": None, "line": None}
        cell |= {"stuck": line["value"], "stuck.excess": line["excess"], "stuck.line": line["line"]}
        cell |= {"stuck.reason": line["reason"]} if line["reason"] else {}
        cell |= {f"final_{name}": value for name, value in row["metrics"].items()}
        for probe, scores in row["scores"].items():
            for score, data in scores.items():
                cell |= _score(f"{probe}.{score}", data, units)
        for what in ("skipped", "failed"):
            cell |= {f"{probe}.{what}": why for probe, why in row[what].items()}
        cells.append(cell | {"seconds": row["seconds"], "key": row["key"]})
    names = _in_order(cells)
    columns = {name: column([row.get(name) for row in cells]) for name in names}
    fields = [
        pa.field(name, values.type, metadata={"unit": units[name]} if units.get(name) else None)
        for name, values in columns.items()
    ]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


def write(content: pa.Table, path: Path) -> None:
    """Write a table as parquet, whole or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as file:  # a path may have no name in UTF-8
        pq.write_table(content, file)


def column(values: Sequence[Any]) -> pa.Array:
    """Values as a column of one type: booleans, integers, numbers or texts; anything mixed becomes JSON text.

    Example:
        >>> str(column([1, 2.5, None]).type), str(column([True, None]).type), column([1, "a"]).to_pylist()
        ('double', 'bool', ['1', '"a"'])
    """
    types = {type(value) for value in values if value is not None}
    kinds: dict[pa.DataType, set[type]] = {
        pa.bool_(): {bool},
        pa.int64(): {int},
        pa.float64(): {int, float},
        pa.string(): {str},
    }
    for kind, allowed in kinds.items():
        if types <= allowed:
            return pa.array(values, kind)
    texts = [None if value is None else json.dumps(value, sort_keys=True) for value in values]
    return pa.array(texts, pa.string())


def _score(name: str, data: Cells, units: dict[str, str]) -> Cells:
    """The cells of a score, those of its parts only where it has them; their units are added to `units`."""
    null, (low, high) = data.get("null"), data.get("interval") or (None, None)
    null_low, middle, null_high = null if isinstance(null, list | tuple) else (None, null, None)
    parts = {"low": low, "high": high, "null": middle, "null_low": null_low, "null_high": null_high}
    cells = {name: data["value"]}
    cells |= {f"{name}.{part}": value for part, value in parts.items() if value is not None}
    for column in cells:
        units.setdefault(column, data["unit"])
    return cells | ({f"{name}.reason": data["reason"]} if data.get("reason") is not None else {})


def _in_order(cells: Sequence[Cells]) -> list[str]:
    """All column names, each right after the one it stands behind in the first row that has it."""
    names: list[str] = []
    known: set[str] = set()
    for row in cells:
        if known.issuperset(row):
            continue
        place = 0
        for name in row:
            if name in known:
                place = names.index(name) + 1
            else:
                names.insert(place, name)
                known.add(name)
                place += 1
    return names
