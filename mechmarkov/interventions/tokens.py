"""Edits of sequences: another parent, a shuffled context, and the donors of resampling.

All choices depend on the seed and on which tokens are equal, never on token ids: relabelling the states
relabels the edited sequences and changes nothing else.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.utils.errors import choice_of, integer_of
from mechmarkov.utils.text import shown

Shuffle = Literal["all", "all but last", "last only"]
SHUFFLES: tuple[Shuffle, ...] = ("all", "all but last", "last only")


def donors(
    labels: Int[Tensor, "*stack batch position"], *, seed: int = 0
) -> Int[Tensor, "*stack batch position"]:
    """For every token, the index of a sequence with the same label at the same position.

    The sequences that share a label at a position form a random cycle, so that none is its own donor unless
    there is no other. With one label this is resampling; with the tokens as labels, resampling with the
    same current token.

    Example:
        >>> donors(torch.tensor([[0, 5], [0, 7], [1, 7]]))
        tensor([[1, 0],
                [0, 2],
                [2, 1]])
    """
    n = labels.shape[-2]
    generator = torch.Generator().manual_seed(seed)
    order_by = torch.rand(labels.shape[-2:], generator=generator, dtype=torch.float64).to(labels.device)
    order = (labels + order_by).argsort(dim=-2)
    ordered = labels.gather(-2, order)
    row = torch.arange(n, device=labels.device)[:, None].expand_as(order)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[..., 1:, :] = ordered[..., 1:, :] != ordered[..., :-1, :]
    first = torch.where(begins, row, 0).cummax(-2).values
    ends = begins.roll(-1, -2)  # where the next one begins; behind the last row is the first, which does
    giver = order.gather(-2, torch.where(ends, first, row + 1))
    return torch.empty_like(order).scatter_(-2, order, giver)


def _checked(name: str, value: Tensor, axes: int) -> Tensor:
    """The tensor itself, where it has data and that number of axes."""
    is_plain = isinstance(value, Tensor) and not value.is_nested and value.layout is torch.strided
    if not is_plain or value.is_meta or value.ndim != axes:
        expected = "[batch, known_position]" if axes == 2 else "[batch]"
        raise TypeError(f"{name} is {shown(value)}, expected a tensor of integers, {expected}")
    return value


def shuffle_context(
    history: Int[Tensor, "batch known_position"], which: Shuffle | str, *, seed: int = 0
) -> Int[Tensor, "batch known_position"]:
    """Each sequence with the order of its tokens changed, and so with the same counts.

    Args:
        history: The states before a prediction; the last is its parent.
        which: `"all"` tokens in random order; `"all but last"`: the parent stays in place; `"last only"`: the
            parent changes places with a random earlier token, the others stay.
        seed: The seed of the random order.

    Raises:
        TypeError: The history or the seed is of another kind.
        ValueError: For an unknown `which`.

    Example:
        >>> shuffle_context(torch.tensor([[0, 1, 2, 3]]), "all but last")[0, -1].item()
        3
    """
    choice_of("which", which, SHUFFLES)
    n, length = _checked("history", history, 2).shape
    generator = torch.Generator().manual_seed(integer_of("seed", seed, least=-(1 << 63)))
    if which == "last only":
        earlier = torch.randint(max(length - 1, 1), (n, 1), generator=generator).to(history.device)
        edited = history.clone()
        edited[:, -1:] = history.gather(1, earlier)
        return edited.scatter_(1, earlier, history[:, -1:])
    free = length if which == "all" else length - 1
    random: Float[Tensor, "batch free"] = torch.rand(n, free, generator=generator, dtype=torch.float64)
    order = random.argsort(dim=1).to(history.device)
    return torch.cat([history[:, :free].gather(1, order), history[:, free:]], dim=1)


def swap_parent(
    history: Int[Tensor, "batch known_position"], at: Int[Tensor, " batch"] | None = None
) -> Int[Tensor, "batch known_position"]:
    """Each sequence with another state at one position: that of the next sequence where it differs there.

    Args:
        history: The states before the predictions.
        at: The position of each sequence; by default the last. A sequence stays as it is where all have the
            same state at its position.

    Raises:
        TypeError: The history or `at` is not a plain tensor.
        ValueError: If all sequences end in the same state, and `at` is not given.

    Example:
        >>> swap_parent(torch.tensor([[7, 0], [8, 0], [9, 2]])).tolist()
        [[7, 2], [8, 2], [9, 0]]
    """
    n, length = _checked("history", history, 2).shape
    every = torch.arange(n, device=history.device)
    if at is None:
        if bool((history[:, -1] == history[0, -1]).all()):
            state = int(history[0, -1])
            raise ValueError(f"all {n} sequences end in state {state}: there is no other to swap it for")
        at = torch.full((n,), length - 1, device=history.device)
    _checked("at", at, 1)
    later = (every[:, None] + every) % n  # of row b: b, b + 1, …
    others = history[later, at[:, None]]  # their states at the position of row b
    differs = others != others[:, :1]
    first = differs.to(torch.uint8).argmax(1)  # the sequence itself, where none differs
    edited = history.clone()
    edited[every, at] = others[every, first]
    return edited
