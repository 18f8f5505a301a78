"""The truth about hidden models, and how far answers are from it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from mechmarkov.interventions.ablate import ablate
from mechmarkov.quiz.answers import Answer, Answers
from mechmarkov.quiz.models import Hidden

NEEDED = 0.01  # nats: a part whose loss rises by more is needed


@dataclass(frozen=True)
class Score:
    """The result of a set of answers, or of those about one model.

    Attributes:
        right: Parts that were said to be needed and are, or not to be and are not.
        wrong: Parts that were said not to be needed, and are.
        overclaimed: Parts that were said to be needed, and are not.
        open: Parts of which nothing was said, or that it is open.
        nats: How far the values are from the truth, on average over the parts with one; None without any.
    """

    right: int
    wrong: int
    overclaimed: int
    open: int
    nats: float | None

    @property
    def points(self) -> int:
        """Returns one for each right answer, less one for each that is wrong or overclaimed."""
        return self.right - self.wrong - self.overclaimed

    def to_data(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {**asdict(self), "points": self.points}


@torch.no_grad()
def truth(hidden: Hidden) -> dict[str, float]:
    """By how much the loss rises with each part at its mean (nats), by intervention.

    The loss is its expectation under the exact law of each next state; the mean is over other sequences of
    the source.
    """
    case = hidden.case
    whole = case.loss(case.model(case.clean)).mean()
    rises = {}
    for part in hidden.parts:
        with ablate(case.model, part, kind="mean", reference=case.corrupt):
            rises[part] = float(case.loss(case.model(case.clean)).mean() - whole)
    return rises


def score(answers: Answers, truths: Mapping[str, Mapping[str, float]]) -> dict[str, Score]:
    """The score of the answers about each model, and of all under the name `all`."""
    judged = {
        model: [_judged(answers.get(model, {}).get(part), rise) for part, rise in rises.items()]
        for model, rises in truths.items()
    }
    named = {model: _summed(parts) for model, parts in judged.items()}
    return {**named, "all": _summed([part for parts in judged.values() for part in parts])}


def _judged(answer: Answer | None, rise: float) -> tuple[str, float | None]:
    """A word for an answer, and how far its value is from the truth."""
    if answer is None:
        return "open", None
    far = None if answer.value is None else abs(answer.value - rise)
    if answer.status not in ("shown", "excluded"):
        return "open", far
    if (answer.status == "shown") == (rise > NEEDED):
        return "right", far
    return ("overclaimed" if answer.status == "shown" else "wrong"), far


def _summed(parts: list[tuple[str, float | None]]) -> Score:
    words = [word for word, _ in parts]
    far = [value for _, value in parts if value is not None]
    counts = {word: words.count(word) for word in ("right", "wrong", "overclaimed", "open")}
    return Score(**counts, nats=float(np.mean(far)) if far else None)
