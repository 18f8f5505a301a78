"""The folder of a sweep: a row a member, each a small file that is there whole or not at all."""

import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mechmarkov.safe.file import check_regular
from mechmarkov.safe.json_file import read_json
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sweeps.spec import Sweep, SweepError
from mechmarkov.sweeps.tasks import ROW_VERSION, Done, Item, Row, Task
from mechmarkov.training.workload import Member
from mechmarkov.utils.files import replacing
from mechmarkov.utils.text import counted

FORMAT = "mechmarkov.sweep-row"
Three = Annotated[list[float], Field(min_length=3, max_length=3)]
Two = Annotated[list[float], Field(min_length=2, max_length=2)]


class _Data(BaseModel):
    """JSON of a row that was kept; what is not read of it may be anything."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Score(_Data):
    """A score, as a cell of the table."""

    value: float | int | bool | str | None
    unit: str
    null: float | Three | None = None
    interval: Two | None = None
    reason: str | None = None


class _Stuck(_Data):
    """The answer whether a run is stuck."""

    value: bool | None
    reason: str | None
    excess: float | None
    line: float | None


class _Kept(_Data):
    """A row, as far as the table and the page read it."""

    format: Literal["mechmarkov.sweep-row"]
    key: str
    status: str
    probes: list[str]
    steps: str | list[int]
    # What only the table reads (`TABLED`).
    message: str | None = None
    step: int = 0
    metrics: dict[str, float] = {}
    scores: dict[str, dict[str, _Score]] = {}
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    stuck: _Stuck | None = None
    seconds: float = 0.0
    curve: dict[str, list[float | None]] | None = None


TABLED = {"message", "step", "metrics", "scores", "skipped", "failed", "stuck", "seconds"}


@dataclass(frozen=True)
class Store:
    """The place where rows and runs are kept.

    Attributes:
        folder: The folder of the sweep, with `rows/KEY.json` and, where they are kept, `runs/KEY.pt`.
    """

    folder: Path

    def row_file(self, key: str) -> Path:
        """The path of a member's row, `rows/KEY.json`."""
        return self.folder / "rows" / f"{key}.json"

    def run_file(self, key: str) -> Path:
        """The path of a member's run, `runs/KEY.pt`, whether it is kept or not."""
        return self.folder / "runs" / f"{key}.pt"

    def row(self, key: str, *, tabled: bool = False) -> Row | None:
        """A member's row, None if there is none.

        Args:
            key: The member's.
            tabled: Whether it must have all that the table reads.

        Raises:
            SweepError: For a file that is not a row of this member.
        """
        path = self.row_file(key)
        if not os.path.lexists(path):
            return None
        try:
            row: Row = read_json(path)
            is_of_key = _Kept.model_validate(row).key == key and not (tabled and TABLED - row.keys())
        except (RunFileError, ValidationError):
            is_of_key = False
        if not is_of_key:
            raise SweepError(f"{path} is not a row of this sweep: delete it, and its member is trained again")
        return row

    def keep(self, done: Done, task: Task) -> None:
        """Write the results of a task: runs first, so that a row means that its run is there too."""
        for key, data in done.runs.items():
            self.run_file(key).parent.mkdir(exist_ok=True)
            with replacing(self.run_file(key)) as temporary:
                temporary.write_bytes(data)
        members = {item.key: item.member for item in task.items}
        for row in done.rows:
            member = members[row["key"]]
            whole: dict[str, Any] = {"format": FORMAT, "version": ROW_VERSION}
            whole |= {"recipe": member.recipe.to_data(), "seed": member.seed, **row}
            with replacing(self.row_file(row["key"])) as temporary:
                temporary.write_text(json.dumps(whole, allow_nan=False), "utf-8")

    @property
    def scratch(self) -> Path:
        """Returns where interrupted tasks leave the snapshots that they resume from."""
        return self.folder / "partial"

    def tidy(self, task: Task | None = None) -> None:
        """Remove the snapshots of a finished task, or of all tasks."""
        shutil.rmtree(self.scratch if task is None else self.scratch / task.name, ignore_errors=True)

    def check_table(self, keys: Collection[str]) -> None:
        """Refuse a folder whose table has members of another sweep: it would be replaced by one without them.

        Raises:
            SweepError: For such a table, and for a file in its place that is not a table.
        """
        path = self.folder / "table.parquet"
        if not path.exists():
            return
        try:
            check_regular(path)
            with path.open("rb") as file:
                there = pq.read_table(file, columns=["key"])["key"].to_pylist()
        except (ValueError, KeyError, OSError):  # pyarrow's are of these kinds
            raise SweepError(f"{path} is not the table of a sweep: choose another folder (--out)") from None
        if others := len(set(there) - set(keys)):
            lost = f"{others} of its {counted(len(there), 'run')} would be lost from it"
            raise SweepError(
                f"{self.folder} holds the table of another sweep ({lost}): choose another folder (--out)"
            )

    def missing(self, sweep: Sweep, members: Mapping[str, Member]) -> list[Item]:
        """The members that have no complete row, in their order; `members` by their keys."""
        items = []
        for key, member in members.items():
            row = self.row(key)
            if row is not None and self._complete(row, sweep):
                continue
            before = [] if row is None else row["probes"]
            probes = tuple(dict.fromkeys([*before, *sweep.probes]))
            path = self.run_file(key)
            is_kept = row is not None and row["status"] == "ok" and path.exists()
            items.append(Item(key, member, probes, path if is_kept else None))
        return items

    def _complete(self, row: Row, sweep: Sweep) -> bool:
        if row["status"] == "diverged":
            return True
        wanted = {*sweep.probes} - {"behaviour"}
        scored = wanted <= {*row["probes"]} and (not wanted or row["steps"] == sweep.steps)
        return scored and (not sweep.keep_runs or self.run_file(row["key"]).exists())
