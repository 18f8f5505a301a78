"""A quiz in a folder: a run file for each hidden model, and a sheet that says what is asked."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mechmarkov.quiz.models import Hidden
from mechmarkov.safe.json_file import read_as
from mechmarkov.utils.config import Fields
from mechmarkov.utils.files import made_folder, replacing

SHEET = "quiz.json"
EXAMPLE = {"subject": ["L0H0"], "relation": "is_needed", "status": "open", "value": 0.0}
MAX_BYTES = 1 << 20
ASKED = (
    "Of every part of every model: is it needed, and by how many nats does the loss rise with its output at "
    "its mean? A part is needed above 0.01 nats. Right is a point, wrong or overclaimed costs one."
)


class _Model(Fields):
    """A hidden model, and the parts that are asked for."""

    file: str
    source: str
    parts: list[str]


class _Sheet(Fields):
    """`quiz.json`."""

    asked: str
    key: str
    models: dict[Annotated[str, Field(pattern="^model-[0-9]{1,3}$")], _Model]
    answers: dict[str, Any]


def make(folder: Path, key: str, hidden: list[Hidden]) -> Path:
    """Write a quiz: `model-1.pt`, … and `quiz.json`, which names no answer, and return the folder.

    Raises:
        ValueError: The folder holds another quiz.
    """
    sheet = folder / SHEET
    asked = {
        "asked": ASKED,
        "key": commitment(key, len(hidden)),
        "models": {
            one.name: {"file": f"{one.name}.pt", "source": one.case.source.title(), "parts": one.parts}
            for one in hidden
        },
        "answers": {hidden[0].name: [EXAMPLE]},
    }
    if sheet.exists() and opened(folder)["key"] != asked["key"]:
        raise ValueError(f"{folder} holds the quiz of another key: choose another folder")
    with made_folder(folder, OSError):
        for one in hidden:
            one.case.as_run().save(folder / f"{one.name}.pt")
        with replacing(sheet) as file:
            file.write_text(json.dumps(asked, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return folder


def opened(folder: Path) -> dict[str, Any]:
    """The sheet of a quiz.

    Raises:
        ValueError: The folder has none, or what it has is none.
    """
    file = folder / SHEET
    if not file.exists():
        raise ValueError(f"{folder} has no {SHEET}: mechmarkov quiz {folder} makes one")
    sheet = read_as(_Sheet, file, MAX_BYTES)
    return {"key": sheet.key, "models": {name: one.parts for name, one in sheet.models.items()}}


def commitment(key: str, count: int) -> str:
    """A hash by which a key is known again, and that tells nothing of it."""
    return hashlib.sha256(f"mechmarkov quiz\0{count}\0{key}".encode()).hexdigest()
