"""Models whose circuit is hidden, for people and programs to explain, and the exact truth to score them by.

A key decides the models: whoever has it can make them and the truth again, so that a set whose key is told is
public, and any other is private. What is asked are relations of the claims' vocabulary.
"""

from mechmarkov.quiz.answers import Answer, read_answers
from mechmarkov.quiz.baselines import answers_by
from mechmarkov.quiz.models import KEY, Hidden, hidden_models
from mechmarkov.quiz.questions import RULES, Question
from mechmarkov.quiz.scores import QuizScore, score
from mechmarkov.quiz.sheet import make, opened

__all__ = [
    "KEY", "RULES", "Answer", "Hidden", "Question", "QuizScore", "answers_by", "hidden_models", "make",
    "opened", "read_answers", "score",
]  # fmt: skip
