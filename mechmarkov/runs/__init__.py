"""Runs: a trained model with everything that made it, and its file; the first name imports models."""

from mechmarkov.utils.modules import loaded_when_used

__all__ = ["Run", "RunFileError", "example", "load"]
__getattr__ = loaded_when_used(
    __name__,
    {
        "Run": "mechmarkov.runs.run",
        "RunFileError": "mechmarkov.safe.plain_data",
        "example": "mechmarkov.runs.loading",
        "load": "mechmarkov.runs.loading",
    },
)
