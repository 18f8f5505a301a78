"""A quiz in a folder: a run file for each hidden model, and a sheet that says what is asked."""

import hashlib
import json
from pathlib import Path
from typing import Any

from mechmarkov.quiz.models import Hidden
from mechmarkov.utils.files import made_folder, replacing
from mechmarkov.utils.text import shown

SHEET = "quiz.json"
EXAMPLE = {"subject": ["L0H0"], "relation": "is_needed", "status": "open", "value": 0.0}
MAX_BYTES = 1 << 20
ASKED = (
    "Of every part of every model: is it needed, and by how many nats does the loss rise with its output at "
    "its mean? A part is needed above 0.01 nats. Right is a point, wrong or overclaimed costs one."
)


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
    if not file.is_file() or file.stat().st_size > MAX_BYTES:
        raise ValueError(f"{folder} has no {SHEET}: mechmarkov quiz {folder} makes one")
    try:
        data = json.loads(file.read_text("utf-8"))
        return {
            "key": str(data["key"]),
            "models": {name: one["parts"] for name, one in data["models"].items()},
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is not the sheet of a quiz: {shown(str(error))}") from None


def commitment(key: str, count: int) -> str:
    """A hash by which a key is known again, and that tells nothing of it."""
    return hashlib.sha256(f"mechmarkov quiz\0{count}\0{key}".encode()).hexdigest()
