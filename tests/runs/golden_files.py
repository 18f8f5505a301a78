"""The golden files of models from elsewhere, made by the real libraries (`golden/foreign`)."""

import codecs
import locale
from pathlib import Path

import torch

ASCII = codecs.lookup(locale.getpreferredencoding(False)).name == "ascii"  # `make test-machines`
FOREIGN = Path(__file__).parent / "golden" / "foreign"


def golden(name: str) -> dict:
    """A file's content, to be spoiled; ours, so that the config objects in it may be made."""
    return torch.load(FOREIGN / name, weights_only=False)
