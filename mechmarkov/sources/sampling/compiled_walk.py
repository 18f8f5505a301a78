"""Paths of chains by a loop over steps that numba compiles: for trainings, which draw all the time.

Compiling takes a second, once a machine, and numba 100 MB: more than all that a probe draws is worth.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mechmarkov.sources.sampling.paths import COMPILED, Compiled
from mechmarkov.utils.compiled import compiled

TOGETHER = 16  # sequences, so that a core does not wait for one step's result


@contextmanager
def compiled_walks() -> Iterator[None]:
    """Let sources draw paths by the compiled loop: the same paths, to the last bit."""
    before = COMPILED.set(Compiled(walk_compiled, fill_by_counts_compiled))
    try:
        yield
    finally:
        COMPILED.reset(before)


def walk_compiled(
    cdf: Float64[Tensor, "chain history state_to"],
    u: Float64[Tensor, "batch step"],
    start: Int64[Tensor, " batch"],
) -> Int64[Tensor, "batch step+1"]:
    """Returns what `walk` returns, on a CPU.

    Raises:
        ValueError: States, laws or numbers that a path would leave the chain by: the loop checks nothing.
    """
    chains, histories, states = cdf.shape
    fits = len(u) == len(start) and len(u) % chains == 0 and histories % states == 0
    if not fits or not _within(start, histories) or not _are_laws(cdf, u):
        raise ValueError(
            f"a walk of {len(start)} starts, {list(u.shape)} numbers and laws {list(cdf.shape)} leaves its "
            "chain, expected starts that are histories, numbers in [0, 1) and laws that end at 1"
        )
    path = torch.empty(len(u), u.shape[1] + 1, dtype=torch.int64)
    path[:, 0] = start
    _walk(cdf.contiguous().numpy(), u.contiguous().numpy(), path.numpy())
    return path


def _within(states: Int64[Tensor, "..."], n: int) -> bool:
    return not states.numel() or bool((states.min() >= 0) & (states.max() < n))


def _are_laws(cdf: Float64[Tensor, "*chain state"], u: Float64[Tensor, "batch step"]) -> bool:
    """Returns whether the last bound is above every number."""
    return not u.numel() or not bool((cdf[..., -1].min() < 1) | (u.max() >= 1))


@no_type_check
@compiled
def _walk(cdf, u, path):
    n_chains, n_histories, n_states = cdf.shape
    batch, n_steps = u.shape
    bounds, row = cdf.ravel(), np.empty(TOGETHER, np.int64)
    kept = np.arange(n_histories) * n_states % n_histories  # of a history, without its oldest state
    for first in range(0, batch, TOGETHER):
        last = min(first + TOGETHER, batch)
        for b in range(first, last):
            row[b - first] = b // (batch // n_chains) * n_histories
        for step in range(n_steps):
            for b in range(first, last):
                now, number = path[b, step], u[b, step]
                start = (row[b - first] + now) * n_states
                reached = 0  # counted: a search would be wrong about its next step half of the time
                for bound in bounds[start : start + n_states]:
                    reached += bound <= number
                path[b, step + 1] = kept[now] + reached


def fill_by_counts_compiled(
    base: Float64[Tensor, "state_from state_to"],
    u: Float64[Tensor, "batch step"],
    path: Int64[Tensor, "batch position"],
) -> None:
    """Fill a path as `walk_by_counts` does, on a CPU.

    Raises:
        ValueError: Shapes or states that do not fit: the loop checks nothing.
    """
    n = len(base)
    fits = tuple(base.shape) == (n, n) and tuple(path.shape) == (len(u), n + u.shape[1])
    if not fits or not _within(path[:, :n], n):
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
