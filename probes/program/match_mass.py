"""Recorded: how much attention is on matches, tokens whose predecessor is the prediction's parent."""

from functools import partial

import numpy as np
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording import HookSums, PerLayer, Quantity, Recorder, Sums
from mechmarkov.probing.recording.quantity import Arrays

MatchMass = Float[np.ndarray, "member layer head"]

# Pairs of query and key that are looked at, to bound memory; of this many sequences at least.
MAX_PAIRS = 1 << 21
MIN_SEQUENCES = 8


def matches(batch: Batch) -> Bool[Tensor, "batch read known_position"]:
    """Returns which tokens have the prediction's parent as their predecessor."""
    before = pad(batch.history[:, :-1], (1, 0), value=-1)
    return before[:, None, :] == batch.parents[..., None]


class _Nothing(Sums):
    """The first layer's: nothing in it can know a predecessor, so its matches are not looked at."""

    def __init__(self, model: HookedDecoder) -> None:
        self.shape = (len(model), model.config.n_heads)

    def finish(self) -> Arrays:
        """NaN for every head."""
        return {"mass": np.full(self.shape, np.nan)}


def _begin(stack: HookedDecoder, batch: Batch, n_states: int) -> Recorder[MatchMass]:
    del n_states
    real = batch.history.shape[1]
    first = batch.head(max(MIN_SEQUENCES, MAX_PAIRS // (len(batch.read) * real)))
    match = matches(first) & batch.visible(stack.config.window)
    queries = int(match.any(-1).sum())

    def mass_of(pattern: Tensor, part: Batch, sequences: slice) -> Float[Tensor, "model head"]:
        del part
        some = match[sequences]
        rows = pattern[:, : len(some), :, batch.read, batch.keys]
        return einsum(rows, some.to(rows.dtype), "m b h read key, b read key -> m b h").double().sum(1)

    def of_layer(at: str, model: HookedDecoder) -> Sums:
        first = at == "blocks.0.attn"
        return _Nothing(model) if first else HookSums({"mass": (f"{at}.hook_pattern", mass_of)})

    return Recorder(
        lambda model: PerLayer(model, partial(of_layer, model=model)), lambda mass: mass / (queries or np.nan)
    )


# The mean over predictions that have a match; NaN where none has, and in the first layer.
MATCH_MASS: Quantity[MatchMass] = Quantity("match_mass", _begin, reads_attention=True)
