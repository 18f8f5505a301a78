"""Answers to a quiz, read from a file: claims in the vocabulary of results, each about one question."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from mechmarkov.claims.claim import Status
from mechmarkov.quiz.questions import Question
from mechmarkov.safe.json_file import read_json
from mechmarkov.utils.text import first_of, shown

MAX_BYTES = 1 << 20
MAX_FLOAT = sys.float_info.max


@dataclass(frozen=True)
class Answer:
    """The answer to one question: a status, and the value of the relation in its unit."""

    status: Status
    value: float | None = None


Answers = Mapping[str, Mapping[Question, Answer]]  # by model


def to_data(answers: Mapping[Question, Answer]) -> list[dict[str, Any]]:
    """Answers about one model in the file's form, without those that are open and have no value."""
    return [
        question.to_data()
        | {"status": answer.status}
        | ({} if answer.value is None else {"value": answer.value})
        for question, answer in answers.items()
        if answer != Answer("open")
    ]


def read_answers(file: Path, asked: Mapping[str, Sequence[Question]]) -> dict[str, dict[Question, Answer]]:
    """Answers out of a JSON file: `{"model-1": [{"subject": ["L0H0"], "relation": "is_needed", …}]}`.

    Args:
        file: The file.
        asked: The questions about each model.

    Raises:
        ValueError: One line that begins with the file and names the model and the field.
    """
    data = read_json(file, MAX_BYTES)
    try:
        if not isinstance(data, dict):
            raise ValueError(f"it is a {type(data).__name__}, expected an object of models")
        for model in data:
            if model not in asked:
                raise ValueError(f"{shown(model)} is not a model, expected {first_of([*asked], 8)}")
        return {model: _of_model(model, claims, asked[model]) for model, claims in data.items()}
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _of_model(model: str, claims: Any, asked: Sequence[Question]) -> dict[Question, Answer]:
    if not isinstance(claims, list):
        raise ValueError(f"{model} is a {type(claims).__name__}, expected a list of claims")
    answers: dict[Question, Answer] = {}
    for number, claim in enumerate(claims):
        where = f"{model}[{number}]"
        if not isinstance(claim, dict):
            raise ValueError(f"{where} is a {type(claim).__name__}, expected a claim")
        question = _question(where, claim, asked)
        if question in answers:
            raise ValueError(f"{where} answers what was answered already")
        answers[question] = Answer(_status(where, claim), _value(where, claim))
    return answers


def _question(where: str, claim: Mapping[str, Any], asked: Sequence[Question]) -> Question:
    """The question that a claim answers; each field narrows what it can be."""
    for field in ("relation", "subject", "object"):
        given = claim.get(field, [] if field == "object" else None)
        there = [question.to_data()[field] for question in asked]
        matching = [question for question, value in zip(asked, there, strict=True) if value == given]
        if not matching:
            known = list(dict.fromkeys(value if isinstance(value, str) else str(value) for value in there))
            raise ValueError(f"{where}.{field} is {shown(given)}, expected {first_of(known, 8)}")
        asked = matching
    return asked[0]


def _status(where: str, claim: Mapping[str, Any]) -> Status:
    status = claim.get("status")
    for known in get_args(Status):
        if status == known:
            return known
    raise ValueError(f"{where}.status is {shown(status)}, expected one of {', '.join(get_args(Status))}")


def _value(where: str, claim: Mapping[str, Any]) -> float | None:
    value = claim.get("value")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_FLOAT:
        raise ValueError(f"{where}.value is {shown(value)}, expected a finite number")
    return float(value)
