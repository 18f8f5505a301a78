"""Paths of Markov chains, vectorised over time.

One uniform number per step decides where *every* state would go: a random map of the states. A path is a
composition of such maps, and composition is associative, so all prefixes come in log(length) rounds with
work linear in the length, where a loop over time would launch one small kernel per step.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from mechmarkov.sources.sampling.streams import Numbers, Sequences, uniform

# Maps are made for so many entries at once, whatever the batch: 32 MB, or on a GPU 1 GB.
MAX_ENTRIES, MAX_ENTRIES_GPU = 1 << 22, 1 << 27


def at_once(device: torch.device, entries: int) -> int:
    """For how many sequences to make maps at once, of so many entries each."""
    return max(1, (MAX_ENTRIES if device.type == "cpu" else MAX_ENTRIES_GPU) // max(1, entries))


def cumulative(law: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch state"]:
    """Cumulative probabilities, ending in exactly 1, so that a state of probability zero is never drawn."""
    total = law.cumsum(-1)
    return total / total[..., -1:]


def draw(cdf: Float64[Tensor, "batch state"], u: Float64[Tensor, "batch n"]) -> Int64[Tensor, "batch n"]:
    """The states at which the cumulative probabilities first exceed uniform numbers in [0, 1)."""
    return torch.searchsorted(cdf, u.contiguous(), right=True)


def sample_paths(
    P: Float64[Tensor, "chain state_from state_to"],
    start: Float64[Tensor, "starts state"],
    batch: int,
    length: int,
    generator: Numbers,
    always: Int64[Tensor, "batch state_from"] | None = None,
    anew: Bool[Tensor, "batch position"] | None = None,
) -> Sequences:
    """Draw one path per sequence: from one chain for all, or from each chain as many as from the others.

    Sequences of a chain follow each other. So with the laws of the first state, `start`. Where `always` is
    not negative, it is what follows that state in that sequence, always; where `anew` is true, a path starts
    again from the law of the first state. The same generator state gives the same paths, on one kind of
    device.
    """
    u = uniform(generator, P.device, batch, length)
    cdf = cumulative(P)
    starts = cumulative(start).repeat_interleave(batch // len(start), 0)
    first = draw(starts, u[:, :1])[:, 0]
    n_states = P.shape[-1]
    later = []
    for part, own in parts(batch, len(cdf), at_once(P.device, length * n_states)):
        maps = random_maps(cdf[own], u[part, 1:])
        if always is not None:
            maps = torch.where(always[part, None] < 0, maps, always[part, None])
        if anew is not None:
            maps = torch.where(anew[part, 1:, None], draw(starts[part], u[part, 1:])[..., None], maps)
        later.append(follow(maps, first[part]))
    return torch.cat([first[:, None], torch.cat(later)], dim=1)


def parts(batch: int, n_chains: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Parts of about so many sequences, and their chains: one for all, or whole chains."""
    each = batch // n_chains
    if n_chains > 1:
        size = max(each, size - size % each)
    for i in range(0, batch, size):
        yield slice(i, i + size), slice(i // each, -(-(i + size) // each))


def emit(laws: Float64[Tensor, "source state"], path: Sequences, generator: Numbers) -> Sequences:
    """Draw a state at every position of a path, from the law that belongs to where the path is."""
    u = uniform(generator, path.device, *path.shape)
    cdf = cumulative(laws)[None]
    chunk = at_once(path.device, path.shape[1] * len(laws))
    drawn = [
        random_maps(cdf, u[i : i + chunk]).gather(2, path[i : i + chunk, :, None])[..., 0]
        for i in range(0, len(path), chunk)
    ]
    return torch.cat(drawn)


def random_maps(
    cdf: Float64[Tensor, "chain state_from state_to"], u: Float64[Tensor, "batch step"]
) -> Int64[Tensor, "batch step state_from"]:
    """Where each step's uniform number would take each state."""
    batch, n_steps = u.shape
    n_chains, n_states, _ = cdf.shape
    # [chain, numbers]: one chain sees the numbers of all sequences, many chains their own.
    numbers = u.reshape(n_chains, -1)
    if cdf[0].numel() < numbers.shape[1]:
        maps, which = table_of_maps(cdf, numbers)
        return maps[which].view(batch, n_steps, n_states)
    image = torch.searchsorted(cdf, numbers[:, None].expand(-1, n_states, -1).contiguous(), right=True)
    return image.mT.reshape(batch, n_steps, n_states)


def table_of_maps(
    cdf: Float64[Tensor, "chain state_from state_to"], u: Float64[Tensor, "chain number"]
) -> tuple[Int64[Tensor, "map state_from"], Int64[Tensor, "chain number"]]:
    """The few different maps there are, one between any two bounds of a chain, and which each number is."""
    bounds = cdf.flatten(1).sort(-1).values
    lowest = torch.cat([torch.zeros_like(bounds[:, :1]), bounds[:, :-1]], -1)  # u is below the last bound, 1
    maps = torch.searchsorted(cdf, lowest[:, None].expand(-1, cdf.shape[1], -1).contiguous(), right=True)
    which = torch.searchsorted(bounds, u.contiguous(), right=True)
    first = torch.arange(len(cdf), device=u.device)[:, None] * bounds.shape[1]
    return maps.mT.flatten(0, 1), which + first


def follow(
    maps: Int64[Tensor, "batch step state_from"], start: Int64[Tensor, " batch"]
) -> Int64[Tensor, "batch step"]:
    """The states after each map, from `start`."""
    n_steps = maps.shape[1]
    if n_steps == 0:
        return maps.new_empty(len(start), 0)
    # Two steps are one map; following those gives the state after every second step.
    even, odd = maps[:, 0::2], maps[:, 1::2]
    after_odd = follow(odd.gather(2, even[:, : n_steps // 2]), start)
    before_even = torch.cat([start[:, None], after_odd], dim=1)[:, : even.shape[1]]
    path = maps.new_empty(len(start), n_steps)
    path[:, 0::2] = even.gather(2, before_even[:, :, None])[:, :, 0]
    path[:, 1::2] = after_odd
    return path
