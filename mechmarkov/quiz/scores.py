"""Scores of answers: right, wrong, overclaimed or open, and how far off the values are."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mechmarkov.quiz.answers import Answer, Answers
from mechmarkov.quiz.questions import Question, holds


@dataclass(frozen=True)
class QuizScore:
    """The result of some answers.

    Attributes:
        right: Relations that were said to hold and do, or not to hold and do not.
        wrong: Relations that were said not to hold, and do.
        overclaimed: Relations that were said to hold, and do not.
        open: Questions of which nothing was said, or that it is open.
        holding: How many of the relations hold.
        seen: How many of these were said to hold.
        off: How far the values are from the truth, on average over those that were given, in the unit of the
            relation; None without any, and over several relations.
    """

    right: int
    wrong: int
    overclaimed: int
    open: int
    holding: int
    seen: int
    off: float | None = None

    @property
    def balanced(self) -> float:
        """Returns the score: 1 where all is right, 0 for one answer to everything, for none, and for coins.

        It is the mean of two shares, of what holds and of what does not: right less false answers. Where
        there is only one of the two kinds it is that share. Coins have 0 on average.
        """
        failing = self.right + self.wrong + self.overclaimed + self.open - self.holding
        shares = []
        if self.holding:
            shares.append((self.seen - self.wrong) / self.holding)
        if failing:
            shares.append((self.right - self.seen - self.overclaimed) / failing)
        return sum(shares) / len(shares) if shares else 0.0

    def to_data(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {**asdict(self), "score": self.balanced}


Truths = Mapping[str, Mapping[Question, float]]  # the value of each question about each model
ALL = "all"


def score(answers: Answers, truths: Truths) -> dict[str, QuizScore]:
    """The score of the answers about each model, of those about each relation, and of `all`.

    Example:
        >>> asked = Question("is_needed", ("L0H0",))
        >>> score({"model-1": {asked: Answer("shown", 0.3)}}, {"model-1": {asked: 0.2}})["is_needed"].right
        1
    """
    judged = [
        (model, question, answers.get(model, {}).get(question, Answer("open")), value)
        for model, values in truths.items()
        for question, value in values.items()
    ]
    relations: list[str] = [*dict.fromkeys(question.relation for _, question, _, _ in judged)]
    of_models = {model: _summed(each[1:] for each in judged if each[0] == model) for model in truths}
    of_relations = {
        relation: _summed((each[1:] for each in judged if each[1].relation == relation), with_values=True)
        for relation in relations
    }
    return {**of_models, **of_relations, ALL: _summed(each[1:] for each in judged)}


def _summed(judged: Iterable[tuple[Question, Answer, float]], with_values: bool = False) -> QuizScore:
    rows = list(judged)
    true = [(answer, value) for question, answer, value in rows if holds(question, value)]
    outcomes = [_outcome(answer, holds(question, value)) for question, answer, value in rows]
    off = [abs(answer.value - value) for _, answer, value in rows if answer.value is not None]
    return QuizScore(
        right=outcomes.count("right"),
        wrong=outcomes.count("wrong"),
        overclaimed=outcomes.count("overclaimed"),
        open=outcomes.count("open"),
        holding=len(true),
        seen=sum(answer.status == "shown" for answer, _ in true),
        off=float(np.mean(off)) if with_values and off else None,
    )


def _outcome(answer: Answer, is_true: bool) -> str:
    match answer.status:
        case "shown":
            return "right" if is_true else "overclaimed"
        case "excluded":
            return "wrong" if is_true else "right"
    return "open"
