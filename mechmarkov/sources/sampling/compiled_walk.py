"""Paths of chains by a loop over steps that numba compiles, on a processor.

A loop checks nothing, so what it is given is checked at the door. Compiling takes a second, once a machine.
"""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mechmarkov.utils.compiled import compiled

TOGETHER = 16  # sequences, so that a core does not wait for one step's result


def walk_compiled(
    cdf: Float64[Tensor, "chain history state_to"],
    u: Float64[Tensor, "batch step"],
    start: Int64[Tensor, " batch"],
    always: Int64[Tensor, "batch history"] | None = None,
    placed: Int64[Tensor, "batch step"] | None = None,
) -> Int64[Tensor, "batch step+1"]:
    """Returns what `paths.walk` returns, by a compiled loop on the CPU; see there for arguments.

    Raises:
        ValueError: States, laws or numbers that a path would leave the chain by.
    """
    (chains, histories, states), (batch, steps) = cdf.shape, u.shape
    always = start.new_empty(0, histories) if always is None else always.contiguous()
    placed = start.new_empty(0, steps) if placed is None else placed.contiguous()
    fits = (
        batch == len(start)
        and batch % chains == 0
        and histories % states == 0
        and always.shape in ((0, histories), (batch, histories))
        and placed.shape in ((0, steps), (batch, steps))
    )
    if not (fits and _are_laws(cdf, u) and _within(start, 0, histories)) or not (
        _within(always, -1, histories) and _within(placed, -1, histories)
    ):
        raise ValueError(
            f"a walk of {len(start)} starts, {list(u.shape)} numbers and laws {list(cdf.shape)} leaves its "
            "chain, expected starts that are histories, numbers in [0, 1) and laws that end at 1"
        )
    path = torch.empty(batch, steps + 1, dtype=torch.int64)
    path[:, 0] = start
    given = (tensor.numpy() for tensor in (cdf.contiguous(), u.contiguous(), always, placed))
    _walk(*given, path.numpy())
    return path


def _within(states: Int64[Tensor, "..."], low: int, n: int) -> bool:
    return not states.numel() or bool((states.min() >= low) & (states.max() < n))


def _are_laws(cdf: Float64[Tensor, "*chain state"], u: Float64[Tensor, "batch step"]) -> bool:
    """Returns whether the last bound is above every number."""
    return not u.numel() or not bool((cdf[..., -1].min() < 1) | (u.max() >= 1))


@no_type_check
@compiled
def _walk(cdf, u, always, placed, path):
    n_chains, n_histories, n_states = cdf.shape
    batch, n_steps = u.shape
    bounds, row = cdf.ravel(), np.empty(TOGETHER, np.int64)
    without_oldest = np.arange(n_histories) * n_states % n_histories
    for first in range(0, batch, TOGETHER):
        last = min(first + TOGETHER, batch)
        for b in range(first, last):
            row[b - first] = b // (batch // n_chains) * n_histories
        for step in range(n_steps):
            for b in range(first, last):
                now, number = path[b, step], u[b, step]
                if len(placed) > 0 and placed[b, step] >= 0:
                    path[b, step + 1] = placed[b, step]
                elif len(always) > 0 and always[b, now] >= 0:
                    path[b, step + 1] = always[b, now]
                else:
                    start = (row[b - first] + now) * n_states
                    reached = 0  # counted: a search would be wrong about its next step half of the time
                    for bound in bounds[start : start + n_states]:
                        reached += bound <= number
                    path[b, step + 1] = without_oldest[now] + reached


def emit_compiled(
    cdf: Float64[Tensor, "source state"], u: Float64[Tensor, "batch step"], path: Int64[Tensor, "batch step"]
) -> Int64[Tensor, "batch step"]:
    """Returns what `paths.draw` returns with the row of `cdf` that the path is in at each step.

    Raises:
        ValueError: A path, laws or numbers by which a state would be none.
    """
    if path.shape != u.shape or not (_within(path, 0, len(cdf)) and _are_laws(cdf, u)):
        raise ValueError(
            f"a path {list(path.shape)} with {list(u.shape)} numbers leaves its {len(cdf)} laws, expected a "
            "number in [0, 1) for each place, and laws that end at 1"
        )
    emitted = torch.empty_like(path)
    _emit(cdf.contiguous().numpy(), u.ravel().numpy(), path.ravel().numpy(), emitted.view(-1).numpy())
    return emitted


@no_type_check
@compiled
def _emit(cdf, u, path, emitted):
    for i in range(len(u)):
        reached = 0
        for bound in cdf[path[i]]:
            reached += bound <= u[i]
        emitted[i] = reached


def fill_by_counts_compiled(
    base: Float64[Tensor, "state_from state_to"],
    u: Float64[Tensor, "batch step"],
    path: Int64[Tensor, "batch position"],
) -> None:
    """Fill a path as `walk_by_counts` does, in place, by a compiled loop on the CPU.

    Args:
        base: The concentrations, added to the counts of each row.
        u: Uniform numbers in [0, 1), one a step.
        path: Its first states are given, the last `step` are filled in.

    Raises:
        ValueError: Shapes or states that do not fit.
    """
    n = len(base)
    fits = tuple(base.shape) == (n, n) and tuple(path.shape) == (len(u), n + u.shape[1])
    if not fits or not _within(path[:, :n], 0, n):
        raise ValueError(
            f"a path of shape {list(path.shape)} is filled by {list(u.shape)} numbers and a table of "
            f"{list(base.shape)}, expected {n} states and a number for each of the others"
        )
    _fill_by_counts(base.contiguous().numpy(), u.contiguous().numpy(), path.numpy())


@no_type_check
@compiled
def _fill_by_counts(base, u, path):
    n_states = len(base)
    counts, total = np.empty((TOGETHER, n_states)), np.empty(n_states)
    for first in range(0, len(u), TOGETHER):
        last = min(first + TOGETHER, len(u))
        counts[:] = 1
        for step in range(u.shape[1]):
            for b in range(first, last):
                row, own, so_far = base[path[b, n_states + step - 1]], counts[b - first], 0.0
                for k in range(n_states):
                    so_far += own[k] * row[k]
                    total[k] = so_far
                now = 0
                for k in range(n_states):
                    now += total[k] / so_far <= u[b, step]
                path[b, n_states + step] = now
                own[now] += 1
