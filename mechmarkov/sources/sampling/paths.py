"""Paths of Markov chains.

One uniform number per step decides where *every* state would go: a random map of the states, one of the few
between the cumulative probabilities of a chain. On a CPU a path goes through its maps step by step, all
sequences at once; in a training a compiled loop draws the same paths (`compiled_walk`). On a GPU steps would
be launches. There, where sequences are few and long, and where states are two (`two_states`), maps are
composed. That is associative, so all prefixes come in log(length) rounds.
"""

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from mechmarkov.sources.sampling.streams import Numbers, Sequences, uniform
from mechmarkov.sources.sampling.two_states import walk_two_states

# Maps are made for this many entries at once, whatever the batch: 32 MB, or on a GPU 1 GB.
MAX_ENTRIES, MAX_ENTRIES_GPU = 1 << 22, 1 << 27
# Of all maps; with more it takes less time to look into one row a step. A chain of several sequences ranks
# their numbers faster than each of many chains the numbers of one.
MAX_ENTRIES_PER_NUMBER, MAX_ENTRIES_PER_STEP = 8, 200
MAX_COMPOSED_STATES, MIN_COMPOSED_STEPS = 64, 256  # few and long sequences take less time composed
MAX_BOUNDS_IN_CELL = 6  # with more, bisection takes less time


class Compiled(NamedTuple):
    """Other ways to draw the same paths on a CPU: see `compiled_walks`."""

    walk: Callable[[Tensor, Tensor, Tensor], Tensor]
    fill_by_counts: Callable[[Tensor, Tensor, Tensor], None]


COMPILED: ContextVar[Compiled | None] = ContextVar("compiled", default=None)


def at_once(device: torch.device, entries: int) -> int:
    """For how many sequences to make maps at once, of that many entries each."""
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
    if always is None and anew is None:
        return walk(cdf, u[:, 1:], first)
    later = []
    for part, own in parts(batch, len(cdf), at_once(P.device, length * n_states)):
        maps, which = random_maps(cdf[own], u[part, 1:])
        each = _rows(maps, which)
        if always is not None:
            each = torch.where(always[part, None] < 0, each, always[part, None])
        if anew is not None:
            each = torch.where(anew[part, 1:, None], draw(starts[part], u[part, 1:])[..., None], each)
        later.append(follow(each.flatten(0, 1), _of_each(which), first[part]))
    return torch.cat(later)


def walk(
    cdf: Float64[Tensor, "chain history state_to"],
    u: Float64[Tensor, "batch step"],
    start: Int64[Tensor, " batch"],
) -> Int64[Tensor, "batch step+1"]:
    """The histories from `start` on, of one chain or of several; of order 1 a history is a state.

    Sequences of a chain follow each other.
    """
    n_chains, n_histories, n_states = cdf.shape
    if u.device.type == "cpu" and n_histories == 2:
        return walk_two_states(cdf, u, start)
    if u.device.type == "cpu" and (faster := COMPILED.get()) is not None:
        return faster.walk(cdf, u, start)
    on_cpu, of_table, n_steps = u.device.type == "cpu", cdf[0].numel() * n_histories, u.shape[1]
    most = MAX_ENTRIES_PER_STEP if n_chains == len(u) else MAX_ENTRIES_PER_NUMBER * len(u)
    if on_cpu and of_table * n_chains > most * n_steps:
        return _searched(cdf, u, start)
    entries = max(n_steps, of_table * n_chains // len(u)) if on_cpu else n_steps * n_histories
    every = torch.arange(n_histories, device=cdf.device) * n_states % n_histories
    later = []
    for part, own in parts(len(u), n_chains, at_once(u.device, entries)):
        maps, which = random_maps(cdf[own], u[part])
        later.append(follow(every + maps, which, start[part]))  # the oldest state is out, the next one in
    return torch.cat(later) if later[1:] else later[0]  # `cat` copies one, too


def _searched(
    cdf: Float64[Tensor, "chain history state_to"],
    u: Float64[Tensor, "batch step"],
    start: Int64[Tensor, " batch"],
) -> Int64[Tensor, "batch step+1"]:
    """The same by looking into the row of the history that each sequence is in, step by step."""
    n_chains, n_histories, n_states = cdf.shape
    rows, now = cdf.flatten(0, 1).numpy(), start.numpy()
    first = np.arange(n_chains).repeat(len(u) // n_chains) * n_histories
    path = np.empty((u.shape[1] + 1, len(u)), dtype=np.int64)
    path[0] = now
    for numbers, after in zip(u.T[..., None].numpy(), path[1:], strict=True):
        reached = (rows.take(first + now, 0) <= numbers).argmin(1)  # the first bound that is above
        now = np.remainder(now * n_states + reached, n_histories, out=after)
    return torch.from_numpy(path.T.copy())


def parts(batch: int, n_chains: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Parts of about that many sequences, and their chains: one for all, or whole chains."""
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
    drawn = []
    for some, numbers in zip(torch.split(path, chunk), torch.split(u, chunk), strict=True):
        maps, which = random_maps(cdf, numbers)
        drawn.append(maps.flatten()[which * len(laws) + some])
    return torch.cat(drawn)


def random_maps(
    cdf: Float64[Tensor, "chain state_from state_to"], u: Float64[Tensor, "batch step"]
) -> tuple[Int64[Tensor, "map state_from"], Int64[Tensor, "batch step"]]:
    """Returns where each step's uniform number takes each state: maps, and which of them each step has."""
    # [chain, numbers]: one chain sees the numbers of all sequences, many chains their own.
    numbers = u.reshape(len(cdf), -1)
    if cdf[0].numel() < numbers.shape[1]:
        maps, which = _table_of_maps(cdf, numbers)
        return maps, which.view(u.shape)
    image = torch.searchsorted(cdf, numbers[:, None].expand(-1, cdf.shape[1], -1).contiguous(), right=True)
    return image.mT.flatten(0, 1), _of_each(u)


def _rows(
    maps: Int64[Tensor, "map state_from"], which: Int64[Tensor, "batch step"]
) -> Int64[Tensor, "batch step state_from"]:
    """`maps[which]`. For rows of 16 bytes CUDA starts a block of threads each, a hundred times as long."""
    if maps.device.type == "cpu":
        return maps[which]
    width = maps.shape[1]
    return maps.flatten()[which[..., None] * width + torch.arange(width, device=maps.device)]


def _of_each(steps: Shaped[Tensor, "batch step"]) -> Int64[Tensor, "batch step"]:
    """A map for each step, in their order."""
    return torch.arange(steps.numel(), device=steps.device).view(steps.shape)


def _table_of_maps(
    cdf: Float64[Tensor, "chain state_from state_to"], u: Float64[Tensor, "chain number"]
) -> tuple[Int64[Tensor, "map state_from"], Int64[Tensor, "chain number"]]:
    """The different maps of each chain, one between any two of its bounds, and which each number is."""
    bounds, order = cdf.flatten(1).sort(-1)
    # A number goes as far in a state's row as it has bounds of that row below it.
    passed = torch.zeros(*bounds.shape, cdf.shape[1], dtype=torch.int64, device=u.device)
    passed[:, 1:].scatter_(2, order[:, :-1, None] // cdf.shape[2], 1)
    return passed.cumsum(1).flatten(0, 1), _rank(bounds, u)


def _rank(
    bounds: Float64[Tensor, "chain bound"], u: Float64[Tensor, "chain number"]
) -> Int64[Tensor, "chain number"]:
    """Returns how many bounds of its chain each number has reached; they are sorted, and the last is 1.

    The bounds of the chains before it are counted too.
    """
    if u.device.type == "cpu":
        found = _rank_by_cells(bounds.numpy(), u.numpy())
        if found is not None:
            return torch.from_numpy(found)
    first = torch.arange(len(bounds), device=u.device)[:, None] * bounds.shape[1]
    return torch.searchsorted(bounds, u.contiguous(), right=True) + first


def _rank_by_cells(
    bounds: Float64[np.ndarray, "chain bound"], u: Float64[np.ndarray, "chain number"]
) -> Int64[np.ndarray, "chain number"] | None:
    """The same, not by bisection; None where too many bounds lie too close together.

    A table says how many bounds are at or below the start of the cell that a number is in. Where there are
    some inside of the cell, it is compared with them.
    """
    n_chains, n_bounds = bounds.shape
    # A number compared takes as long as eight cells. With a power of two products are exact.
    cells = 1 << math.isqrt(8 * n_bounds * u.shape[1]).bit_length()
    chain = np.arange(n_chains)[:, None]
    scaled = bounds * cells
    cell = np.ceil(scaled).astype(np.int64)
    reached = np.bincount((cell + chain * (cells + 1)).ravel(), minlength=n_chains * (cells + 1)).cumsum()
    own = (cell + chain * (cells + 1) - 1)[cell > scaled]
    reached[own] = ~reached[own]
    found = reached.take((u * cells).astype(np.int64) + chain * (cells + 1))
    at = np.flatnonzero(found < 0)
    rank, number = ~found.ravel()[at], u.ravel()[at]
    for _ in range(MAX_BOUNDS_IN_CELL):
        further = bounds.ravel()[rank] <= number
        if not further.any():
            found.ravel()[at] = rank
            return found
        rank += further
    return None


def follow(
    maps: Int64[Tensor, "map state_from"], which: Int64[Tensor, "batch step"], start: Int64[Tensor, " batch"]
) -> Int64[Tensor, "batch step+1"]:
    """The states from `start` on, by each step's map."""
    is_wide = len(start) * maps.shape[1] > MAX_COMPOSED_STATES or which.shape[1] < MIN_COMPOSED_STEPS
    if which.device.type != "cpu" or not is_wide:
        return torch.cat([start[:, None], _composed(_rows(maps, which), start)], dim=1)
    # In numpy, whose calls on a step's few numbers take a third of the time of torch's.
    flat, offsets = maps.numpy().ravel(), np.multiply(which.numpy().T, maps.shape[1], order="C")
    path = np.empty((len(offsets) + 1, len(start)), dtype=np.int64)
    path[0] = now = start.numpy()
    at = np.empty_like(now)
    for offset, after in zip(offsets, path[1:], strict=True):
        np.add(offset, now, at)
        flat.take(at, None, after, "clip")  # with "raise" numpy would take a copy
        now = after
    return torch.from_numpy(path.T.copy())


def _composed(
    maps: Int64[Tensor, "batch step state_from"], start: Int64[Tensor, " batch"]
) -> Int64[Tensor, "batch step"]:
    """The states after each map, from `start`, in log(step) rounds."""
    n_steps = maps.shape[1]
    if n_steps == 0:
        return maps.new_empty(len(start), 0)
    # Two steps are one map; following those gives the state after every second step.
    even, odd = maps[:, 0::2], maps[:, 1::2]
    after_odd = _composed(odd.gather(2, even[:, : n_steps // 2]), start)
    before_even = torch.cat([start[:, None], after_odd], dim=1)[:, : even.shape[1]]
    path = maps.new_empty(len(start), n_steps)
    path[:, 0::2] = even.gather(2, before_even[:, :, None])[:, :, 0]
    path[:, 1::2] = after_odd
    return path
