"""Runs: a trained model with everything that made it, and its file."""

from mechmarkov.runs.examples import example, examples
from mechmarkov.runs.plain import RunFileError
from mechmarkov.runs.run import Run, load
from mechmarkov.runs.train import TrainingDivergedError, train

__all__ = ["Run", "RunFileError", "TrainingDivergedError", "example", "examples", "load", "train"]
