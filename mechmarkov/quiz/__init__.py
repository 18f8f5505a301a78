"""Models whose circuit is hidden, for people and programs to explain, and the exact truth to score them by.

A key decides the models: whoever has it can make them and the truth again, so that a set whose key is told is
public, and any other is private.
"""

from mechmarkov.quiz.answers import answers_by, read_answers
from mechmarkov.quiz.models import KEY, Hidden, hidden_models
from mechmarkov.quiz.scores import Score, score, truth
from mechmarkov.quiz.sheet import make, opened

__all__ = [
    "KEY",
    "Hidden",
    "Score",
    "answers_by",
    "hidden_models",
    "make",
    "opened",
    "read_answers",
    "score",
    "truth",
]
