"""Cells that are kept as they come, so that a killed run goes on where it stopped.

A file a draw, a line a method. A line is named by a hash of all that decides it: the draw, the method, the
library's code and that of the method's own package. A change of any of them is another line, so that none is
out of date. What cannot be read, as the last line of a killed run, is measured again.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from mechmarkov.bench.draws import Cell, Draw
from mechmarkov.bench.method import Method
from mechmarkov.safe.file import check_regular, naming
from mechmarkov.utils.kept_data import code

Plain = float | int | bool | str | None


class _Line(BaseModel):
    """A line as it is written."""

    model_config = ConfigDict(strict=True, frozen=True)

    name: str
    scores: list[dict[str, Plain]]
    effects: list[list[Plain]]
    reasons: list[list[Plain]]


@dataclass(frozen=True)
class KeptCells:
    """A folder of cells.

    Attributes:
        folder: Where the files are; it is made with the first.
    """

    folder: Path

    def file(self, draw: Draw) -> Path:
        """The path of the cells of a draw."""
        return self.folder / f"{draw.case}-{draw.seed}-{draw.pairs}.jsonl"

    def read(self, draw: Draw) -> dict[str, Cell]:
        """The cells of a draw, by the names of their lines.

        Raises:
            RunFileError: What has the name of their file is not a file of cells.
        """
        if not os.path.lexists(file := self.file(draw)):
            return {}
        with naming(file):
            check_regular(file)
        cells = {}
        for line in file.read_text("utf-8", errors="replace").splitlines():
            with suppress(ValueError, RecursionError):  # pydantic's complaints too
                kept = _Line.model_validate(json.loads(line))
                cells[kept.name] = Cell(kept.scores, kept.effects, kept.reasons)
        return cells

    def add(self, draw: Draw, name: str, cell: Cell) -> None:
        """Add a line; after a line that was cut off it stands on one of its own."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.file(draw).open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps({'name': name, **vars(cell)})}\n")


def name_of(draw: Draw, method: Method) -> str | None:
    """The name of a cell's line; None if what decides the claims is not in files: it is then not kept.

    That is so for a function that was made inside of another one or typed at a prompt, and for arguments that
    are not plain data.
    """
    try:
        claims = _code_of(method.claims)
        decides = [code(), vars(draw), method.name, method.of, method.metrics, method.reference, claims]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    except (AttributeError, KeyError, TypeError):
        return None


def _code_of(call: Callable[..., Any]) -> list[Any]:
    """A function as data: its name, what it is given, and its package's code."""
    if isinstance(call, partial):
        return [_code_of(call.func), call.args, call.keywords]
    if "<locals>" in call.__qualname__:
        raise TypeError("what it closes over is in no file")
    return [call.__module__, call.__qualname__, _package(call.__module__.partition(".")[0])]


@cache
def _package(name: str) -> str:
    """A hash of the files of a package, or of a module that is in none."""
    path = Path(str(sys.modules[name].__file__)).resolve()
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
