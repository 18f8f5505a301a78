"""Stretches of observed sequences: which blocks are held out, and how long a stretch of them may be."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from mechmarkov.sources.estimation.estimate import Blocks
from mechmarkov.utils.text import shown

MIN_BLOCKS = 5  # so that one is held out
DEFAULT_BLOCKS, MIN_BLOCK = 50, 16
MANY_SEQUENCES = 20  # of which none is cut by default: they make blocks enough


def default_block(lengths: Sequence[int]) -> int:
    """States in a block where the user does not say: a fiftieth of the data, of many sequences a whole one.

    >>> default_block([10_000]), default_block([1024] * 30), default_block([20] * 4)
    (200, 1024, 16)
    """
    block = max(MIN_BLOCK, sum(lengths) // DEFAULT_BLOCKS)
    return max(block, max(lengths)) if len(lengths) >= MANY_SEQUENCES else block


def training(blocks: Blocks, held_out: str) -> Bool[np.ndarray, " block"]:
    """Returns which blocks are not held out.

    Args:
        blocks: The data.
        held_out: The rule: "every_fifth" block or the "last_tenth" of them.

    Raises:
        ValueError: `held_out` is neither of its words.
    """
    if not isinstance(held_out, str) or held_out not in ("every_fifth", "last_tenth"):
        raise ValueError(f"held_out is {shown(held_out)}, expected 'every_fifth' or 'last_tenth'")
    number = np.arange(blocks.n_blocks)
    return number % 5 != 4 if held_out == "every_fifth" else number < min(0.9 * len(number), len(number) - 1)


def room(blocks: Blocks, chosen: Bool[np.ndarray, " block"]) -> Int[np.ndarray, " token"]:
    """Returns how many states of the same piece there are from each token on; 0 in blocks not chosen."""
    begins = np.flatnonzero(blocks.place == 0)
    n = len(blocks.place)
    left = np.repeat(np.append(begins[1:], n), np.diff(np.append(begins, n))) - np.arange(n)
    return np.where(chosen[blocks.block], left, 0)


def reach(blocks: Blocks, train: Bool[np.ndarray, " block"]) -> int:
    """Returns how long stretches may be that the training blocks and those held out both have."""
    return int(min(room(blocks, train).max(), room(blocks, ~train).max()))


def longer_block(blocks: Blocks, lengths: Sequence[int], held_out: str, length: int) -> int | None:
    """The option `block` that makes stretches longer, up to some length; None where none does."""
    if int((blocks.place == 0).sum()) == len(lengths):
        return None  # no sequence is cut
    size = min(length, max(lengths), sum(lengths) // MIN_BLOCKS)
    again = Blocks.of(blocks.states, lengths, size, blocks.n_states)
    if again.n_blocks < MIN_BLOCKS:
        return None
    longest = reach(again, training(again, held_out))
    return size if reach(blocks, training(blocks, held_out)) < longest >= size else None


def other_half(blocks: Blocks, held_out: str, length: int) -> str | None:
    """The other `held_out`, where it holds out stretches of a length and this one does not."""
    other = "last_tenth" if held_out == "every_fifth" else "every_fifth"
    return other if reach(blocks, training(blocks, other)) >= length else None


def most_predictions(blocks: Blocks, held: Bool[np.ndarray, " block"]) -> int:
    """The length of stretches of which those held out, laid end to end, hold the most transitions."""
    pieces = room(blocks, held)[blocks.place == 0]
    lengths = np.unique(pieces[pieces >= 2])
    transitions = ((lengths - 1) * (pieces[:, None] // np.maximum(lengths, 1)).sum(0)) if len(lengths) else []
    return int(lengths[::-1][np.argmax(transitions[::-1])]) if len(lengths) else 1
