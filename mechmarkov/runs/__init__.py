"""Runs: a trained model with everything that made it, and its file; the first name imports models."""

from importlib import import_module
from typing import Any

from mechmarkov.utils.shadowed import explaining

__all__ = ["Run", "RunFileError", "example", "load"]
_HOMES = {
    "Run": "mechmarkov.runs.run",
    "RunFileError": "mechmarkov.safe.plain_data",
    "example": "mechmarkov.runs.loading",
    "load": "mechmarkov.runs.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mechmarkov.runs' has no attribute {name!r}")
    with explaining():
        return getattr(import_module(_HOMES[name]), name)
