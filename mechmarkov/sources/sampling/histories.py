"""Paths of chains of higher order, vectorised over time.

Where the next state depends on the last k, their tuple is the state of a first-order chain. It has many
states. Composing random maps pair by pair reads all of them at every round; this module reads each once.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float64, Int64
from torch import Tensor

from mechmarkov.sources.sampling.paths import (
    at_once,
    cumulative,
    draw,
    follow,
    parts,
    random_maps,
    table_of_maps,
)
from mechmarkov.sources.sampling.streams import Numbers, Sequences, uniform

# With more histories, a loop over time is faster than following all of them.
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

    A history of `order` states is a number with so many digits, the oldest first, to the base of the number
    of states. For order 1 the paths are those of `sample_paths`. Of several chains each has as many paths as
    the others, side by side.
    """
    n_histories, n_states = kernels.shape[-2:]
    u = uniform(generator, kernels.device, batch, max(1, length - order + 1))
    cdf = cumulative(kernels).view(-1, n_histories, n_states)
    starts = cumulative(start).view(-1, n_histories).repeat_interleave(batch // len(cdf), 0)
    first = draw(starts, u[:, :1])[:, 0]
    if len(cdf) > 1:
        later = _walk_each(cdf, u[:, 1:], first)
    elif n_histories <= MAX_MAPPED_HISTORIES:
        size = at_once(u.device, length * n_histories)
        split = zip(torch.split(u[:, 1:], size), torch.split(first, size), strict=True)
        later = torch.cat([_walk_by_blocks(cdf[0], *part) for part in split])
    else:
        later = _walk_step_by_step(cdf[0], u[:, 1:], first)
    digits = first[:, None] // _places(order, n_states, u.device) % n_states
    return torch.cat([digits, later % n_states], dim=1)[:, :length]


def sample_fresh_histories(
    kernels: Float64[Tensor, "batch history state_to"], order: int, length: int, generator: Numbers
) -> Sequences:
    """Draw one path per sequence, each of a kernel of its own, from `order` uniform states on."""
    batch, _, n_states = kernels.shape
    u = uniform(generator, kernels.device, batch, length)
    cdf = cumulative(kernels)
    first = (u[:, :order] * n_states).long()
    if length <= order:
        return first
    later = _walk_each(cdf, u[:, order:], (first * _places(order, n_states, u.device)).sum(1))
    return torch.cat([first, later % n_states], dim=1)


def _places(order: int, n_states: int, device: torch.device) -> Int64[Tensor, " digit"]:
    """What each digit of a history counts, the oldest state's first."""
    return n_states ** torch.arange(order - 1, -1, -1, device=device)


def _walk_each(
    cdf: Float64[Tensor, "chain history state_to"],
    u: Float64[Tensor, "batch step"],
    start: Int64[Tensor, " batch"],
) -> Int64[Tensor, "batch step"]:
    """The histories after each step, of kernels that differ."""
    batch, n_steps = u.shape
    n_chains, n_histories, n_states = cdf.shape
    every = torch.arange(n_histories, device=cdf.device) * n_states % n_histories
    later = []
    for part, own in parts(batch, n_chains, at_once(cdf.device, n_steps * n_histories)):
        maps = every + random_maps(cdf[own], u[part])  # the oldest state is out, the next one in
        later.append(follow(maps, start[part]))
    return torch.cat(later)


def _walk_by_blocks(
    cdf: Float64[Tensor, "history state_to"], u: Float64[Tensor, "batch step"], start: Int64[Tensor, " batch"]
) -> Int64[Tensor, "batch step"]:
    """The histories after each step: blocks of the sequence from every history at once, then joined.

    Both loops are over the square root of the length.
    """
    batch, n_steps = u.shape
    n_histories, n_states = cdf.shape
    if n_steps == 0:
        return start.new_empty(batch, 0)
    if cdf.numel() < u.numel():
        maps, which = table_of_maps(cdf[None], u.reshape(1, -1))
        which = which.view(u.shape)
    else:  # not worth a table: a map for every number
        maps = random_maps(cdf[None], u).flatten(0, 1)
        which = torch.arange(u.numel(), device=u.device).reshape(u.shape)
    every = torch.arange(n_histories, device=u.device)
    # The oldest state is out, the next one in. Half the bytes of int64 take half the time.
    after = (every * n_states % n_histories + maps).flatten().int()
    size = math.isqrt(n_steps - 1) + 1
    n_blocks = -(-n_steps // size)
    which = torch.nn.functional.pad(which, (0, n_blocks * size - n_steps)) * n_histories
    offsets = rearrange(which, "batch (block step) -> step (batch block) 1", step=size).int()
    trail = after.new_empty(size, batch * n_blocks, n_histories)
    at = every.int()
    for step in range(size):
        at = after.index_select(0, (offsets[step] + at).flatten()).view(-1, n_histories)
        trail[step] = at
    ends = rearrange(at, "(batch block) start -> block batch start", batch=batch)
    entry = [start]
    for end in ends[:-1]:
        entry.append(end.gather(1, entry[-1][:, None])[:, 0].long())
    chosen = rearrange(torch.stack(entry), "block batch -> 1 (batch block) 1").expand(size, -1, -1)
    path = trail.gather(2, chosen).long()
    return rearrange(path, "step (batch block) 1 -> batch (block step)", batch=batch)[:, :n_steps]


def _walk_step_by_step(
    cdf: Float64[Tensor, "history state_to"], u: Float64[Tensor, "batch step"], start: Int64[Tensor, " batch"]
) -> Int64[Tensor, "batch step"]:
    """The same in a loop over time: where there are many histories, following all costs more than waiting."""
    n_histories, n_states = cdf.shape
    path = torch.empty_like(u, dtype=torch.int64)
    at = start
    for step in range(u.shape[1]):
        at = (at * n_states + draw(cdf[at], u[:, step, None])[:, 0]) % n_histories
        path[:, step] = at
    return path
