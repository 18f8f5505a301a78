"""Paths of chains of two states, with 64 sequences in a word.

A uniform number takes states 0 and 1 somewhere each, so that a step is an affine map `s -> a + x s` of one
bit: it forgets the state, keeps it or turns it. Two such maps are one, and all prefixes of a path come in
log(step) rounds of three operations on words.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor


def walk_two_states(
    cdf: Float64[Tensor, "chain state_from state_to"],
    u: Float64[Tensor, "batch step"],
    start: Int64[Tensor, " batch"],
) -> Int64[Tensor, "batch step+1"]:
    """The states from `start` on, of one chain or of several whose sequences follow each other."""
    chain = torch.arange(len(cdf)).repeat_interleave(len(u) // len(cdf))
    zero, one = (_packed((u >= cdf[chain, state, :1]).numpy()) for state in (0, 1))
    first = _packed(start.numpy().astype(bool)[:, None])
    a, x = np.concatenate([first, zero]), np.concatenate([np.zeros_like(first), zero ^ one])
    reach = 1
    while reach < len(a) and x.any():  # a[t], x[t] are the map of the last `reach` steps
        a[reach:] ^= x[reach:] & a[:-reach]
        x[reach:] &= x[:-reach]
        reach *= 2
    path = np.unpackbits(a.view(np.uint8), axis=1, count=len(u)).T
    return torch.from_numpy(path.astype(np.int64, order="C"))


def _packed(bits: Bool[np.ndarray, "batch step"]) -> np.ndarray:
    """Each step's bits of all sequences, in words: `[step, word]`."""
    octets = np.packbits(bits.T.copy(), axis=1)  # of what is not contiguous numpy packs bit by bit
    words = np.zeros((len(octets), -(-octets.shape[1] // 8)), np.uint64)
    words.view(np.uint8)[:, : octets.shape[1]] = octets
    return words
