"""Paths of chains of higher order.

Where the next state depends on the last k, their tuple is the state of a first-order chain.
"""

from jaxtyping import Float64, Int64

from mechmarkov.sources.sampling.paths import cumulative, draw, walk
from mechmarkov.sources.sampling.streams import Numbers, Sequences, uniform
from mechmarkov.utils.lazy_torch import Tensor, torch

# With more histories a GPU follows no maps of them: chains are drawn one after the other.
MAX_MAPPED_HISTORIES = 256


def sample_histories(
    kernels: Float64[Tensor, "*chain history state_to"],
    start: Float64[Tensor, "*chain history"],
    order: int,
    batch: int,
    length: int,
    generator: Numbers,
) -> Sequences:
    """Draw paths of a chain of higher order: of the first-order chain whose states are histories.

    A history of `order` states is a number with that many digits, the oldest first, to the base of the number
    of states. For order 1 the paths are those of `sample_paths`. Of several chains each has as many paths as
    the others, side by side.

    Args:
        kernels: The law of the next state behind each history.
        start: The law of the first history.
        order: The number of states of a history.
        batch: The number of paths.
        length: The number of states of each.
        generator: The only source of randomness.

    Example:
        >>> copy = torch.eye(2, dtype=torch.float64).repeat_interleave(2, dim=0)  # the state before the last
        >>> start = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)  # the history 0, 1
        >>> sample_histories(copy, start, 2, 1, 6, torch.Generator().manual_seed(0)).tolist()
        [[0, 1, 0, 1, 0, 1]]
    """
    n_histories, n_states = kernels.shape[-2:]
    u = uniform(generator, kernels.device, batch, max(1, length - order + 1))
    cdf = cumulative(kernels).view(-1, n_histories, n_states)
    starts = cumulative(start).view(-1, n_histories).repeat_interleave(batch // len(cdf), 0)
    first = draw(starts, u[:, :1])[:, 0]
    later = walk(cdf, u[:, 1:], first)[:, 1:]
    digits = first[:, None] // _places(order, n_states, u.device) % n_states
    return torch.cat([digits, later % n_states], dim=1)[:, :length]


def sample_fresh_histories(
    kernels: Float64[Tensor, "batch history state_to"], order: int, length: int, generator: Numbers
) -> Sequences:
    """Draw one path per sequence, each of a kernel of its own, from `order` uniform states on.

    Args:
        kernels: The law of the next state behind each history, of each sequence.
        order: The number of states of a history.
        length: The number of states of each sequence.
        generator: The only source of randomness.
    """
    batch, _, n_states = kernels.shape
    u = uniform(generator, kernels.device, batch, length)
    cdf = cumulative(kernels)
    first = (u[:, :order] * n_states).long()
    if length <= order:
        return first
    later = walk(cdf, u[:, order:], (first * _places(order, n_states, u.device)).sum(1))[:, 1:]
    return torch.cat([first, later % n_states], dim=1)


def _places(order: int, n_states: int, device: "torch.device") -> Int64[Tensor, " digit"]:
    """Returns what each digit of a history counts, the oldest state's first."""
    return n_states ** torch.arange(order - 1, -1, -1, device=device)
