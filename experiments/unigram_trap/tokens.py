"""Byte-pair tokens of a binary process, and the law of the tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

import mechmarkov as mm


@dataclass(frozen=True)
class Tokens:
    """A tokenised sequence.

    Attributes:
        ids: `[token]`; 0 and 1 are the symbols themselves, each merge adds the next id.
        lengths: How many symbols each id stands for.
    """

    ids: Int[np.ndarray, " token"]
    lengths: Int[np.ndarray, " id"]

    @property
    def symbols(self) -> float:
        """The mean number of symbols a token stands for."""
        return float(self.lengths[self.ids].mean())

    def unigram(self) -> float:
        """Cross-entropy of the best unigram over tokens, nats a symbol."""
        law = np.bincount(self.ids) / len(self.ids)
        return float(-(law[law > 0] * np.log(law[law > 0])).sum()) / self.symbols

    def table(self, order: int) -> Float[np.ndarray, "..."]:
        """How often each run of `order + 1` tokens is seen, an axis a token, the oldest first."""
        K = len(self.lengths)
        runs = [self.ids[i : len(self.ids) - order + i] for i in range(order + 1)]
        flat = np.ravel_multi_index(runs, (K,) * (order + 1))
        return np.bincount(flat, minlength=K ** (order + 1)).reshape((K,) * (order + 1)).astype(float)

    def entropy(self, order: int) -> float:
        """Entropy of a token given so many before it, nats a symbol: no less than the symbols' own rate."""
        seen = self.table(order)
        law = seen / np.maximum(seen.sum(-1, keepdims=True), 1)
        return float(-(seen[seen > 0] * np.log(law[seen > 0])).sum() / seen.sum()) / self.symbols

    def source(self, order: int) -> mm.Chain | mm.OrderK:
        """The Markov source of that order with the law seen; after what was never seen, the unigram."""
        seen = self.table(order)
        unigram = np.bincount(self.ids, minlength=len(self.lengths)) / len(self.ids)
        total = seen.sum(-1, keepdims=True)
        law = np.where(total > 0, seen / np.maximum(total, 1), unigram)
        return mm.Chain(law.tolist()) if order == 1 else mm.OrderK(law.tolist())


def byte_pairs(source: mm.Source, merges: int, symbols: int) -> list[Tokens]:
    """A sequence after 0, 1, … merges of its most frequent pair of neighbours (Sennrich et al. 2016)."""
    drawn = source.sample(1, symbols, generator=torch.Generator().manual_seed(0))
    found = [Tokens(drawn[0].numpy(), np.ones(2, dtype=int))]
    for _ in range(merges):
        now = found[-1]
        pairs = now.table(1)
        left, right = np.unravel_index(int(pairs.argmax()), pairs.shape)
        ids = merged(now.ids, int(left), int(right), new=len(now.lengths))
        found.append(Tokens(ids, np.append(now.lengths, now.lengths[left] + now.lengths[right])))
    return found


def merged(ids: Int[np.ndarray, " token"], left: int, right: int, *, new: int) -> Int[np.ndarray, " shorter"]:
    """The sequence with every `left, right` replaced, from the left and without overlaps.

    Example:
        >>> merged(np.array([1, 1, 1, 0, 1, 1]), 1, 1, new=2).tolist()
        [2, 1, 0, 2]
    """
    at = np.flatnonzero((ids[:-1] == left) & (ids[1:] == right))
    if left == right:  # of a run of overlapping pairs every second one
        begins = np.append(True, np.diff(at) > 1)
        first = at[np.maximum.accumulate(np.where(begins, np.arange(len(at)), 0))]
        at = at[(at - first) % 2 == 0]
    out = ids.copy()
    out[at] = new
    return np.delete(out, at + 1)
