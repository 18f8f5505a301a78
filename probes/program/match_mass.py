"""Recorded: how much attention is on matches, tokens whose predecessor is the prediction's parent."""

from functools import lru_cache

import numpy as np
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording import HookSums, PerLayer, Quantity, Recording, Scope
from mechmarkov.probing.recording.quantity import Arrays

MatchMass = Float[np.ndarray, "member layer head"]

# Pairs of query and key that are looked at, to bound memory; of this many sequences at least.
MAX_PAIRS = 1 << 21
MIN_SEQUENCES = 8


def matches(batch: Batch) -> Bool[Tensor, "batch read known_position"]:
    """Returns which tokens have the prediction's parent as their predecessor.

    Args:
        batch: The sequences.
    """
    before = pad(batch.history[:, :-1], (1, 0), value=-1)
    return before[:, None, :] == batch.parents[..., None]


class _Nothing(Recording[Arrays]):
    """The first layer's: nothing in it can know a predecessor, so its matches are not looked at."""

    def __init__(self, scope: Scope) -> None:
        self.shape = (len(scope.model), scope.model.config.n_heads)

    def compute(self) -> Arrays:
        """NaN for every head."""
        return {"mass": np.full(self.shape, np.nan)}


@lru_cache(maxsize=1)  # every group of models asks for those of the same sequences
def _seen_matches(batch: Batch, window: int | None) -> Bool[Tensor, "batch read known_position"]:
    """The matches that the first sequences' predictions may look at."""
    first = batch.head(max(MIN_SEQUENCES, MAX_PAIRS // (len(batch.read) * batch.history.shape[1])))
    return matches(first) & batch.visible(window)


def _start(scope: Scope) -> PerLayer[MatchMass]:
    batch = scope.batch
    match = _seen_matches(batch, scope.model.config.window)
    queries = int(match.any(-1).sum()) or np.nan

    def mass_of(pattern: Tensor, _: Batch, sequences: slice) -> Float[Tensor, "model head"]:
        some = match[sequences]
        rows = pattern[:, : len(some), :, batch.rows, batch.keys]
        return einsum(rows, some.to(rows.dtype), "m b h read key, b read key -> m b h").double().sum(1)

    def of_layer(at: str) -> Recording[Arrays]:
        first = at == "blocks.0.attn"
        return _Nothing(scope) if first else HookSums({"mass": (f"{at}.hook_pattern", mass_of)}, dict)

    return PerLayer(scope.model, of_layer, lambda mass: mass / queries)


# The mean over predictions that have a match; NaN where none has, and in the first layer.
MATCH_MASS: Quantity[MatchMass] = Quantity("match_mass", _start, reads_attention=True)
