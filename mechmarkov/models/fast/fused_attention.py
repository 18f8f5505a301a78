"""Causal attention of small heads on a CPU, compiled by numba: from queries, keys and values."""

from typing import Any, no_type_check

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from mechmarkov.models.fast.attention_tiles import LN2, SQUARE, attend, attend_backward, reach, rows_of
from mechmarkov.models.fast.panels import ONE, TOKENS, as_array, called, check_floats, f32, give, take
from mechmarkov.utils.compiled import compiled


def attend_fused(
    q: Float[Tensor, "*stack batch head position d_head"],
    k: Float[Tensor, "*stack batch head position d_head"],
    v: Float[Tensor, "*stack batch head position d_head"],
    scale: float,
    window: int | None = None,
) -> Float[Tensor, "*stack batch head position d_head"]:
    """Causal attention in float32; a sequence's result does not depend on the others. Differentiable once.

    Args:
        q: Queries, best with positions last in memory, as keys and values.
        k: Keys.
        v: Values.
        scale: What scores are multiplied by.
        window: How many positions back attention reaches; None for all.

    Raises:
        ValueError: Shapes that differ, another type than float32, or a window below 0.
    """
    check_floats({name: (x, tuple(q.shape)) for name, x in (("q", q), ("k", k), ("v", v))})
    apply: Any = _FusedAttention.apply  # torch's `apply` has no types
    z = apply(*(_by_head(x) for x in (q, k, v)), f32(scale), reach(window, q.shape[-2]))
    return rearrange(z[:, : q.shape[-1]], "(m h) d b p -> m b h p d", h=q.shape[-3]).reshape(q.shape)


def _by_head(x: Tensor) -> Float[Tensor, "model_head row batch position"]:
    heads = rearrange(x.reshape(-1, *x.shape[-4:]), "m b h p d -> (m h) d b p")
    missing = len(rows_of(x.shape[-1])) - x.shape[-1]
    return (pad(heads, (0, 0, 0, 0, 0, missing)) if missing else heads).contiguous()


class _FusedAttention(torch.autograd.Function):
    """`z [model_head, row, batch, position]`; the backward pass computes weights again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: np.float32, window: int) -> Tensor:
        z, (heads, n_rows, batch, length) = torch.empty_like(q), q.shape
        sums, shifts = q.new_empty(2, heads, batch, -(-length // TOKENS) * TOKENS)
        _forward(tuple(range(n_rows)), *map(as_array, (q, k, v, z, sums, shifts)), scale, window)
        ctx.save_for_backward(q, k, v, z, sums, shifts)
        ctx.scale, ctx.window = scale, window
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        q, *saved = ctx.saved_tensors
        gradients = [torch.empty_like(q) for _ in range(3)]
        arrays = map(as_array, (q, *saved, dz, *gradients))
        _backward(tuple(range(q.shape[1])), *arrays, ctx.scale, ctx.window)
        return *gradients, None, None


@no_type_check
@compiled
def _forward(rows, q, k, v, z, sums, shifts, scale, window):
    heads, _, batch, length = q.shape
    panels, size = sums.shape[2] // TOKENS, len(rows) * TOKENS
    made, read = np.zeros((panels, 3, size), f32), np.zeros((panels, 1, size), f32)
    weights = np.zeros(SQUARE, f32)
    for head in range(heads):
        for s in range(batch):
            _take_all(made, q, k, v, head, s, scale)
            attend(rows, weights, made, read, 0, sums[head, s], shifts[head, s], length, window)
            for p in range(panels):
                give(z, head, s, p * TOKENS, read[p, 0], ONE)


@no_type_check
@compiled
def _backward(rows, q, k, v, z, sums, shifts, dz, dq, dk, dv, scale, window):
    heads, _, batch, length = q.shape
    panels, size = sums.shape[2] // TOKENS, len(rows) * TOKENS
    made, d_made = np.zeros((panels, 3, size), f32), np.zeros((panels, 3, size), f32)
    read, d_read = np.zeros((panels, 1, size), f32), np.zeros((panels, 1, size), f32)
    squares = np.zeros((5, SQUARE), f32)
    for head in range(heads):
        for s in range(batch):
            _take_all(made, q, k, v, head, s, scale)
            for p in range(panels):
                take(read[p, 0], z, head, s, p * TOKENS, ONE)
                take(d_read[p, 0], dz, head, s, p * TOKENS, ONE)
            attend_backward(
                rows, squares, made, d_made, read, d_read, 0, sums[head, s], shifts[head, s], length, window
            )
            for p in range(panels):
                give(dq, head, s, p * TOKENS, d_made[p, 0], scale)
                give(dk, head, s, p * TOKENS, d_made[p, 1], LN2)  # scaled queries are in bits
                give(dv, head, s, p * TOKENS, d_made[p, 2], ONE)


@no_type_check
@called
def _take_all(made, q, k, v, head, s, scale):
    """Queries in bits, keys and values of a head in a sequence."""
    for p in range(len(made)):
        take(made[p, 0], q, head, s, p * TOKENS, scale / LN2)
        take(made[p, 1], k, head, s, p * TOKENS, ONE)
        take(made[p, 2], v, head, s, p * TOKENS, ONE)
