"""Recorded: the models' outputs."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording.quantity import Arrays, Quantity, Recorder, Sums

Scores = Float[np.ndarray, "member batch read d_vocab_out"]


class _ScoreSums(Sums):
    def __init__(self) -> None:
        self.chunks: list[Tensor] = []

    def add(self, batch: Batch, scores: Float[Tensor, "model batch read d_vocab_out"]) -> None:
        del batch
        self.chunks.append(scores)

    def finish(self) -> Arrays:
        return {"scores": torch.cat(self.chunks, dim=1).numpy()}


def _begin(stack: HookedDecoder, batch: Batch, n_states: int) -> Recorder[Scores]:
    del stack, batch, n_states
    return Recorder(lambda model: _ScoreSums(), lambda scores: scores)


# The outputs at the positions that are read.
SCORES: Quantity[Scores] = Quantity("scores", _begin)
