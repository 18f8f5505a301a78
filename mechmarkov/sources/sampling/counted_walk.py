"""Paths whose next law is a row of a chain, each entry times how often its state has come.

What a path has seen is its state, which has no short form, so that its steps come one by one. On a CPU they
are a loop of torch calls, and in a training a compiled one (`compiled_walk`). On a GPU they are one Triton
kernel (`gpu_counted_walk`), or a loop of launches where Triton is not there.
"""

from importlib import import_module

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mechmarkov.sources.sampling.paths import COMPILED, cumulative, draw
from mechmarkov.utils.device import can_compile_kernels


def walk_by_counts(
    base: Float64[Tensor, "state_from state_to"],
    u: Float64[Tensor, "batch step"],
    first: Int64[Tensor, "batch state"],
) -> Int64[Tensor, "batch state+step"]:
    """Go on from `first`, in which each state comes once, by a step for each uniform number in [0, 1)."""
    path = torch.cat([first, torch.empty_like(u, dtype=torch.int64)], 1)
    compiled = COMPILED.get()
    if u.device.type == "cuda" and can_compile_kernels():
        fill_in_kernel(base, u, path)
    elif u.device.type == "cpu" and compiled is not None:
        compiled.fill_by_counts(base, u, path)
    else:
        _fill(base, u, path)
    return path


def _fill(
    base: Float64[Tensor, "state_from state_to"],
    u: Float64[Tensor, "batch step"],
    path: Int64[Tensor, "batch position"],
) -> None:
    """Fill a path behind its first states."""
    n = len(base)
    counts, one = torch.ones_like(path[:, :n], dtype=torch.float64), torch.ones_like(u[:, :1])
    for t in range(n, path.shape[1]):
        law = counts * base[path[:, t - 1]]
        path[:, t] = draw(cumulative(law), u[:, t - n, None])[:, 0]
        counts.scatter_add_(1, path[:, t, None], one)


def fill_in_kernel(
    base: Float64[Tensor, "state_from state_to"],
    u: Float64[Tensor, "batch step"],
    path: Int64[Tensor, "batch position"],
) -> None:
    """The same, a warp a sequence."""
    kernel = import_module("mechmarkov.sources.sampling.gpu_counted_walk").fill_by_counts
    block = 1 << (len(base) - 1).bit_length()
    kernel[(len(u),)](base.contiguous(), u.contiguous(), path, u.shape[1], len(base), block, num_warps=1)
