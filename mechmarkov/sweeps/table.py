"""The tidy table of a sweep: one row a member, as parquet; every score's column knows its unit."""

import json
from collections.abc import Iterator, Sequence
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
    `stuck`, `stuck.excess` and `stuck.line` (nats; `mechmarkov.sweeps.stuck`); `final_<metric>` of training;
    `<probe>.<score>` with `.low` and `.high` (95 % over evaluation sequences), `.null` (exact
    chance, or the middle of null models) with `.null_low` and `.null_high` (95 % of null models), `.reason`
    where it has no value; `<probe>.skipped` and `<probe>.failed`, why; `seconds` (this member's share of its
    task's wall time) and `key`. A column's metadata hold its unit.

    Args:
        members: Point and seed of each.
        rows: The row of each.
    """
    units: dict[str, str] = {"stuck.excess": "nats", "stuck.line": "nats", "seconds": "s"}
    cells = []
    for (point, seed), row in zip(members, rows, strict=True):
        scores = {
            name: value
            for probe, found in row["scores"].items()
            for score, data in found.items()
            for name, value in _score(f"{probe}.{score}", data, units)
        }
        reasons = {
            f"{probe}.{what}": why for what in ("skipped", "failed") for probe, why in row[what].items()
        }
        line = dict(row["stuck"] or {"value": None, "reason": row["message"], "excess": None, "line": None})
        cells.append(
            {
                **point.values,
                "seed": seed,
                "status": row["status"],
                "message": row["message"],
                "step": row["step"],
                "stuck": line["value"],
                "stuck.excess": line["excess"],
                "stuck.line": line["line"],
                **({"stuck.reason": line["reason"]} if line["reason"] else {}),
                **{f"final_{name}": value for name, value in row["metrics"].items()},
                **scores,
                **reasons,
                "seconds": row["seconds"],
                "key": row["key"],
            }
        )
    names = _in_order(cells)
    columns = {name: column([row.get(name) for row in cells]) for name in names}
    fields = [
        pa.field(name, values.type, metadata={"unit": units[name]} if units.get(name) else None)
        for name, values in columns.items()
    ]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


def write(found: pa.Table, path: Path) -> None:
    """Write a table, whole or not at all."""
    with replacing(path) as temporary:
        pq.write_table(found, temporary)


def column(values: Sequence[Any]) -> pa.Array:
    """Values as a column of one type: booleans, integers, numbers or texts; anything mixed becomes JSON text.

    Example:
        >>> str(column([1, 2.5, None]).type), str(column([True, None]).type), column([1, "a"]).to_pylist()
        ('double', 'bool', ['1', '"a"'])
    """
    present = [value for value in values if value is not None]
    kinds: list[tuple[tuple[type, ...], pa.DataType]] = [
        ((bool,), pa.bool_()),
        ((int,), pa.int64()),
        ((int, float), pa.float64()),
        ((str,), pa.string()),
    ]
    for types, kind in kinds:
        if all(type(value) in types for value in present):
            return pa.array(values, kind)
    texts = [None if value is None else json.dumps(value, sort_keys=True) for value in values]
    return pa.array(texts, pa.string())


def _score(name: str, data: Cells, units: dict[str, str]) -> Iterator[tuple[str, Any]]:
    null, (low, high) = data.get("null"), data.get("interval") or (None, None)
    null_low, middle, null_high = null if isinstance(null, list | tuple) else (None, null, None)
    columns = {
        "low": low,
        "high": high,
        "null": middle,
        "null_low": null_low,
        "null_high": null_high,
        "reason": data.get("reason"),
    }
    units.setdefault(name, data["unit"])
    yield name, data["value"]
    for part, value in columns.items():
        if value is not None:
            if part != "reason":
                units.setdefault(f"{name}.{part}", data["unit"])
            yield f"{name}.{part}", value


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
