"""Runs: a trained model with everything that made it, and its file."""

from mechmarkov.runs.loading import example, load
from mechmarkov.runs.run import Run
from mechmarkov.safe.plain_data import RunFileError

__all__ = ["Run", "RunFileError", "example", "load"]
