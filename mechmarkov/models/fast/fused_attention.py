"""Causal attention of small heads on a CPU, compiled by numba: from queries, keys and values."""

from typing import Any, no_type_check

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from mechmarkov.models.fast.attention_rows import LN2, attend, attend_backward, rows_of
from mechmarkov.models.fast.token_rows import ONE, check_floats, copy, give, reach, row_length, take
from mechmarkov.utils.compiled import compiled

f32 = np.float32


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
        z, shifts, sums = torch.empty_like(q), *(torch.empty_like(q[:, 0]) for _ in range(2))
        _forward(tuple(range(q.shape[1])), *_arrays(q, k, v, z, shifts, sums), scale, window)
        ctx.save_for_backward(q, k, v, z, shifts, sums)
        ctx.scale, ctx.window = scale, window
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        q, *saved = ctx.saved_tensors
        gradients = [torch.empty_like(q) for _ in range(3)]
        arrays = _arrays(q, *saved, dz.contiguous(), *gradients)
        _backward(tuple(range(q.shape[1])), *arrays, ctx.scale, ctx.window)
        return *gradients, None, None


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [x.detach().numpy() for x in tensors]


@no_type_check
@compiled
def _forward(rows, q, k, v, z, shifts, all_sums, scale, window):
    heads, d_head, batch, length = q.shape
    n = row_length(length)
    queries, keys, values, read = [np.zeros(d_head * n, f32) for _ in range(4)]
    sums, shift = np.zeros(n, f32), np.zeros(n, f32)
    for head in range(heads):
        for s in range(batch):
            take(queries, n, q[head, :, s], scale / LN2)
            take(keys, n, k[head, :, s], ONE)
            take(values, n, v[head, :, s], ONE)
            attend(rows, (queries, keys, values), read, sums, shift, n, length, window)
            copy(shifts[head, s], shift, length)
            copy(all_sums[head, s], sums, length)
            give(z[head, :, s], read, n, ONE)


@no_type_check
@compiled
def _backward(rows, q, k, v, z, shifts, all_sums, dz, dq, dk, dv, scale, window):
    heads, d_head, batch, length = q.shape
    n = row_length(length)
    queries, keys, values, read, d_read = [np.zeros(d_head * n, f32) for _ in range(5)]
    d_queries, d_keys, d_values = [np.zeros(d_head * n, f32) for _ in range(3)]
    made, d_made = (queries, keys, values), (d_queries, d_keys, d_values)
    sums, shift = np.ones(n, f32), np.zeros(n, f32)
    for head in range(heads):
        for s in range(batch):
            take(queries, n, q[head, :, s], scale / LN2)
            take(keys, n, k[head, :, s], ONE)
            take(values, n, v[head, :, s], ONE)
            take(read, n, z[head, :, s], ONE)
            take(d_read, n, dz[head, :, s], ONE)
            copy(shift, shifts[head, s], length)
            copy(sums, all_sums[head, s], length)
            attend_backward(rows, made, d_made, read, d_read, sums, shift, n, length, window)
            give(dq[head, :, s], d_queries, n, scale)
            give(dk[head, :, s], d_keys, n, LN2)  # scaled queries are in bits
            give(dv[head, :, s], d_values, n, ONE)
