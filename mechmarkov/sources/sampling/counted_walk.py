"""Paths whose next law is a row of a chain, each entry times how often its state has come.

What a path has seen is its state, which has no short form, so that its steps come one by one: on a processor
in a compiled loop, on a GPU as launches.
"""

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mechmarkov.sources.sampling.paths import cumulative, draw, loops_for


def walk_by_counts(
    base: Float64[Tensor, "state_from state_to"],
    u: Float64[Tensor, "batch step"],
    first: Int64[Tensor, "batch state"],
) -> Int64[Tensor, "batch state+step"]:
    """Go on from `first`, in which each state comes once, by a step for each uniform number in [0, 1).

    Example:
        >>> base, u = torch.full((2, 2), 0.5, dtype=torch.float64), torch.tensor([[0.6, 0.4]]).double()
        >>> walk_by_counts(base, u, torch.tensor([[1, 0]])).tolist()  # laws (1/2, 1/2), then (1/3, 2/3)
        [[1, 0, 1, 1]]
    """
    path = torch.cat([first, torch.empty_like(u, dtype=torch.int64)], 1)
    loops = loops_for(u.device, u.numel() * len(base))
    fill = fill_by_counts if loops is None else loops.fill_by_counts_compiled
    fill(base, u, path)
    return path


def fill_by_counts(
    base: Float64[Tensor, "state_from state_to"],
    u: Float64[Tensor, "batch step"],
    path: Int64[Tensor, "batch position"],
) -> None:
    """Fill a path behind its first states, in place, on any device; see `fill_by_counts_compiled`."""
    n = len(base)
    counts, one = torch.ones_like(path[:, :n], dtype=torch.float64), torch.ones_like(u[:, :1])
    for t in range(n, path.shape[1]):
        law = counts * base[path[:, t - 1]]
        path[:, t] = draw(cumulative(law), u[:, t - n, None])[:, 0]
        counts.scatter_add_(1, path[:, t, None], one)
