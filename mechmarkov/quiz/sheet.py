"""A quiz in a folder: a run file for each hidden model, and a sheet that says what is asked."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mechmarkov.quiz.models import Hidden
from mechmarkov.quiz.questions import RULES, Question, Relation
from mechmarkov.safe.json_file import read_as
from mechmarkov.utils.config import Fields
from mechmarkov.utils.files import made_folder, replacing

SHEET = "quiz.json"
MAX_BYTES = 1 << 20
ASKED = (
    "Which of these relations hold? Answer with claims: status shown, excluded or open, and the value in the "
    "unit of the relation. Right counts for you, wrong or overclaimed against you; open is neither."
)


class _Question(Fields):
    """A claim without an answer."""

    relation: Relation
    subject: list[str]
    object: list[str]


class _Model(Fields):
    """A hidden model, and what is asked of it."""

    file: str
    source: str
    questions: list[_Question]


class _Sheet(Fields):
    """`quiz.json`."""

    asked: str
    relations: dict[str, dict[str, str]]
    key: str
    models: dict[Annotated[str, Field(pattern="^model-[0-9]{1,3}$")], _Model]
    answers: dict[str, Any]


@dataclass(frozen=True)
class Opened:
    """A sheet that was read: the hash of its key, and the questions about each model."""

    key: str
    questions: dict[str, list[Question]]


def make(folder: Path, key: str, hidden: list[Hidden]) -> Path:
    """Write a quiz: `model-1.pt`, … and `quiz.json`, which names no answer, and return the folder.

    Raises:
        ValueError: The folder holds another quiz.
    """
    sheet = folder / SHEET
    asked = {
        "asked": ASKED,
        "relations": {name: {"holds where": rule.words, "unit": rule.unit} for name, rule in RULES.items()},
        "key": commitment(key, len(hidden)),
        "models": {
            one.name: {
                "file": f"{one.name}.pt",
                "source": one.case.source.title(),
                "questions": [question.to_data() for question in one.questions],
            }
            for one in hidden
        },
        "answers": {hidden[0].name: [hidden[0].questions[0].to_data() | {"status": "open", "value": 0.0}]},
    }
    check_place(folder, key, len(hidden))
    with made_folder(folder, OSError):
        for one in hidden:
            one.case.as_run().save(folder / f"{one.name}.pt")
        with replacing(sheet) as file:
            file.write_text(json.dumps(asked, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return folder


def check_place(folder: Path, key: str, count: int) -> None:
    """Refuse a folder that holds another quiz, before models are made.

    Raises:
        ValueError: It does.
    """
    if (folder / SHEET).exists() and opened(folder).key != commitment(key, count):
        raise ValueError(
            f"{folder} holds the quiz of another key or of more or fewer models: choose another folder"
        )


def opened(folder: Path) -> Opened:
    """The sheet of a quiz.

    Raises:
        ValueError: The folder has no sheet, or its file is not one.
    """
    file = folder / SHEET
    if not file.exists():
        raise ValueError(f"{folder} has no {SHEET}: mechmarkov quiz {folder} makes one")
    sheet = read_as(_Sheet, file, MAX_BYTES)
    return Opened(
        sheet.key,
        {
            name: [Question(each.relation, tuple(each.subject), tuple(each.object)) for each in one.questions]
            for name, one in sheet.models.items()
        },
    )


def commitment(key: str, count: int) -> str:
    """A hash by which a key is known again, and that tells nothing of it."""
    return hashlib.sha256(f"mechmarkov quiz\0{count}\0{key}".encode()).hexdigest()
