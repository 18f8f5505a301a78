"""The golden files of models from elsewhere, made by the real libraries (`golden/foreign`)."""

import codecs
import locale
from pathlib import Path

import torch

from mechmarkov.runs import Run

ASCII = codecs.lookup(locale.getpreferredencoding(False)).name == "ascii"  # `make test-machines`
FOREIGN = Path(__file__).parent / "golden" / "foreign"


def assert_its_own_logits(run: Run, name: str) -> dict[str, torch.Tensor]:
    """The `tokens` and `logits` of the library that wrote a file, which the run gives too."""
    original = torch.load(FOREIGN / f"{name.removesuffix('.pt')}.logits.pt", weights_only=True)
    # float32 arithmetic in another order: 1e-5 of the largest logit is the house's bound.
    torch.testing.assert_close(run.model()(original["tokens"]), original["logits"], rtol=1e-5, atol=1e-5)
    return original


def golden(name: str) -> dict:
    """A file's content, to be spoiled; ours, so that the config objects in it may be made."""
    return torch.load(FOREIGN / name, weights_only=False)
