"""Recorded: how much attention is on matches, tokens whose predecessor is the prediction's parent."""

from functools import partial

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording.quantity import Arrays, Hook, PerLayer, Quantity, Recorder, Sums, Totals

MatchMass = Float[np.ndarray, "member layer head"]

# Pairs of query and key that are looked at, to bound memory; of so many sequences at least.
MAX_PAIRS = 1 << 21
MIN_SEQUENCES = 8


def matches(
    batch: Batch, history: Int[Tensor, "batch known_position"]
) -> Float[Tensor, "batch read known_position"]:
    """1 for tokens whose predecessor is the prediction's parent."""
    before = torch.cat([torch.full_like(history[:, :1], -1), history[:, :-1]], dim=1)
    return (before[:, None, :] == history[:, batch.known][..., None]).double()


class _MatchSums(Sums):
    """Of one layer: attention on the matches of the first sequences."""

    def __init__(self, match: Float[Tensor, "batch read key"], read: Int[Tensor, " read"], at: str) -> None:
        self.match, self.read, self.at = match, read, at
        self.totals = Totals()

    def hooks(self, batch: Batch, sequences: slice) -> list[Hook]:
        del batch
        return [(f"{self.at}.hook_pattern", lambda x, hook: self._add(x, self.match[sequences]))]

    def _add(
        self, pattern: Float[Tensor, "model batch head query key"], match: Float[Tensor, "some read key"]
    ) -> None:
        rows = pattern[:, : len(match), :, self.read, : match.shape[-1]]
        mass = einsum(rows, match.to(rows.dtype), "m b h read key, b read key -> m b h")
        self.totals.add("mass", mass.double().sum(1))

    def finish(self) -> Arrays:
        queries = self.match.any(-1).sum()
        return {"mass": (self.totals["mass"] / torch.where(queries > 0, queries, torch.nan)).numpy()}


def _begin(stack: HookedDecoder, batch: Batch, n_states: int) -> Recorder[MatchMass]:
    del n_states
    pairs = len(batch.read) * batch.history.shape[1]
    first = batch.head(max(MIN_SEQUENCES, MAX_PAIRS // pairs))
    key, window = torch.arange(batch.history.shape[1]), stack.config.window
    visible = key <= batch.known[:, None]
    if window is not None:
        visible &= batch.read[:, None] - key <= window
    match = matches(first, first.history) * visible
    return Recorder(lambda model: PerLayer(model, partial(_MatchSums, match, batch.read)), lambda mass: mass)


# The mean over predictions that have a match; NaN where none has.
MATCH_MASS: Quantity[MatchMass] = Quantity("match_mass", _begin, reads_attention=True)
