"""Answers to a quiz: claims `is_needed` in the vocabulary of results, out of a file or by a baseline."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from mechmarkov.claims.claim import Status
from mechmarkov.probe_run import probe
from mechmarkov.runs.run import Run
from mechmarkov.safe.json_file import read_json
from mechmarkov.utils.text import first_of, shown

RELATION = "is_needed"
MAX_BYTES = 1 << 20
Baseline = Literal["probe", "random"]


@dataclass(frozen=True)
class Answer:
    """The answer about one part: a status, and how many nats the loss rises with its output at its mean."""

    status: Status
    value: float | None = None


Answers = Mapping[str, Mapping[str, Answer]]  # by model and part


def read_answers(file: Path, parts: Mapping[str, list[str]]) -> dict[str, dict[str, Answer]]:
    """Answers out of a JSON file: `{"model-1": [{"subject": ["L0H0"], "relation": "is_needed", …}]}`.

    Args:
        file: The file.
        parts: The parts of each model.

    Raises:
        ValueError: One line that begins with the file and names the model and the field.
    """
    data = read_json(file, MAX_BYTES)
    try:
        if not isinstance(data, dict):
            raise ValueError(f"it is a {type(data).__name__}, expected an object of models")
        for model in data:
            _known(model, parts, "a model")
        return {model: _of_model(model, claims, parts[model]) for model, claims in data.items()}
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _of_model(model: str, claims: Any, parts: list[str]) -> dict[str, Answer]:
    if not isinstance(claims, list):
        raise ValueError(f"{model} is a {type(claims).__name__}, expected a list of claims")
    found: dict[str, Answer] = {}
    for number, claim in enumerate(claims):
        where = f"{model}[{number}]"
        if not isinstance(claim, dict):
            raise ValueError(f"{where} is a {type(claim).__name__}, expected a claim")
        subject, value = claim.get("subject"), claim.get("value")
        if claim.get("relation") != RELATION:
            raise ValueError(f"{where}.relation is {shown(claim.get('relation'))}, expected {RELATION!r}")
        if not isinstance(subject, list) or len(subject) != 1:
            raise ValueError(f"{where}.subject is {shown(subject)}, expected a list with one part")
        if (status := claim.get("status")) not in get_args(Status):
            expected = ", ".join(get_args(Status))
            raise ValueError(f"{where}.status is {shown(status)}, expected one of {expected}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not is_number:
            raise ValueError(f"{where}.value is {shown(value)}, expected nats")
        part = _known(subject[0], {part: [] for part in parts}, f"a part of {model}")
        if part in found:
            raise ValueError(f"{where}.subject is {part!r}, of which something was said already")
        nats = None if value is None else float(value)
        found[part] = Answer(status, nats)  # type: ignore[arg-type]  # one of those of Status, as was seen
    return found


def _known(name: Any, known: Mapping[str, Any], what: str) -> str:
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{shown(name)} is not {what}, expected {first_of([*known], 8)}")
    return name


def answers_by(baseline: Baseline, run: Run, parts: list[str], seed: int = 0) -> list[dict[str, Any]]:
    """The answers of a baseline about one run, as claims in the file's form.

    Args:
        baseline: `probe`, the claims of the probe `ablation`; or `random`, whose statuses are coins.
        run: The hidden model.
        parts: The parts that are asked for.
        seed: The seed of the coins.
    """
    if baseline == "random":
        draw = np.random.default_rng(seed)
        words = draw.choice(["shown", "excluded"], size=len(parts))
        return [_claim(part, str(word), None) for part, word in zip(parts, words, strict=True)]
    claims = probe(run, ["ablation"], progress=False).claims.where(RELATION)
    alone = [claim for claim in claims if len(claim.subject) == 1 and claim.subject[0] in parts]
    return [_claim(claim.subject[0], claim.status, claim.value) for claim in alone]


def _claim(part: str, status: str, value: float | None) -> dict[str, Any]:
    said = {"subject": [part], "relation": RELATION, "status": status}
    return said if value is None else {**said, "value": value}
