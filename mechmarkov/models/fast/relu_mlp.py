"""A ReLU MLP of a stack on a CPU, compiled by numba: hidden units never leave a core's cache.

A toy MLP's products take less time than moving its hidden units to memory and back, which the bias, the ReLU,
their gradients and four products each do. Here the hidden units of 64 tokens go through all of it at once.
"""

from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechmarkov.models.fast.panels import (
    LANES,
    ONE,
    TOKENS,
    ZERO,
    add_lanes,
    add_products,
    add_rows,
    as_array,
    as_rows,
    blocks_of,
    called,
    check_floats,
    f32,
    give,
    in_fours,
    multiply,
    new_rows,
    new_sums,
    take,
    transposed,
)
from mechmarkov.utils.compiled import compiled

PANELS = 4  # whose products are summed together: sums of an MLP of 64 units of width 16 are 64 kB


def relu_mlp_fused(
    x: Float[Tensor, "model token d_model"],
    W_in: Float[Tensor, "model d_model d_mlp"],
    b_in: Float[Tensor, "model d_mlp"],
    W_out: Float[Tensor, "model d_mlp d_model"],
    b_out: Float[Tensor, "model d_model"],
) -> Float[Tensor, "model token d_model"]:
    """Compute `relu(x W_in + b_in) W_out + b_out` in float32, tokens last in memory. Differentiable once.

    Raises:
        ValueError: Shapes that do not fit, or another type than float32.
    """
    models, _, d_model = x.shape
    d_mlp = b_in.shape[-1]
    check_floats(
        {"x": (x, tuple(x.shape)), "b_in": (b_in, (models, d_mlp)), "b_out": (b_out, (models, d_model))}
        | {"W_in": (W_in, (models, d_model, d_mlp)), "W_out": (W_out, (models, d_mlp, d_model))}
    )
    apply: Any = _ReluMlp.apply  # torch's `apply` has no types
    out: Tensor = apply(x, blocks_of(W_in), in_fours(b_in), blocks_of(W_out), b_out, d_mlp)
    return out


class _ReluMlp(torch.autograd.Function):
    """The backward pass computes hidden units once more: it takes less time than to keep them in memory."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, W_in: Tensor, b_in: Tensor, W_out: Tensor, b_out: Tensor, hidden: int
    ) -> Tensor:
        ctx.save_for_backward(x, W_in, b_in, W_out)
        ctx.hidden = hidden
        out = new_rows(x, x.shape[-1])
        _forward(as_rows(x), *map(as_array, (W_in, b_in, W_out, in_fours(b_out))), as_rows(out), hidden)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, W_in, b_in, W_out = ctx.saved_tensors
        d_x, d_b_out = new_rows(x, x.shape[-1]), in_fours(d_out[:, 0])
        gradients = [torch.empty_like(y) for y in (W_in, b_in, W_out, d_b_out)]
        given = as_rows(x), *map(as_array, (W_in, b_in, transposed(W_in), transposed(W_out))), as_rows(d_out)
        _backward(*given, as_rows(d_x), *map(as_array, gradients), ctx.hidden)
        return d_x, *gradients[:3], gradients[3][:, : d_out.shape[-1]], None


@no_type_check
@compiled
def _forward(x, W_in, b_in, W_out, b_out, out, hidden):
    some, wrote = np.zeros(b_out.shape[1] * TOKENS, f32), np.zeros(b_out.shape[1] * TOKENS, f32)
    units = np.zeros(b_in.shape[1] * TOKENS, f32)
    for m in range(len(x)):
        for start in range(0, x.shape[3], TOKENS):
            take(some, x, m, 0, start, ONE)
            multiply(units, W_in[m], some, b_in[m])
            _zero_where_off(units, hidden)
            multiply(wrote, W_out[m], units, b_out[m])
            give(out, m, 0, start, wrote, ONE)


@no_type_check
@compiled
def _backward(x, W_in, b_in, W_in_T, W_out_T, d_out, d_x, d_W_in, d_b_in, d_W_out, d_b_out, hidden):
    size, width = d_b_out.shape[1] * TOKENS, b_in.shape[1] * TOKENS
    some, d_some, wrote = np.zeros((PANELS, size), f32), np.zeros((PANELS, size), f32), np.zeros(size, f32)
    units, d_units = np.zeros((PANELS, width), f32), np.zeros((PANELS, width), f32)
    of_W_in, of_W_out = new_sums(d_W_in), new_sums(d_W_out)
    of_b_in, of_b_out = np.zeros(d_b_in.shape[1] * LANES, f32), np.zeros(d_b_out.shape[1] * LANES, f32)
    no_bias, n_tokens = np.zeros(max(size, width), f32), x.shape[3]
    for m in range(len(x)):
        for first in range(0, n_tokens, PANELS * TOKENS):
            n = min(PANELS, -(-(n_tokens - first) // TOKENS))
            for p in range(n):
                take(some[p], x, m, 0, first + p * TOKENS, ONE)
                take(d_some[p], d_out, m, 0, first + p * TOKENS, ONE)
                multiply(units[p], W_in[m], some[p], b_in[m])
                multiply(d_units[p], W_out_T[m], d_some[p], no_bias)
                _zero_where_off(units[p], hidden)
                _zero_slopes_where_off(d_units[p], units[p])
                add_rows(of_b_out, d_some[p])
                add_rows(of_b_in, d_units[p])
            add_products(of_W_out, units, d_some, n)
            add_products(of_W_in, some, d_units, n)
            for p in range(n):
                multiply(wrote, W_in_T[m], d_units[p], no_bias)
                give(d_x, m, 0, first + p * TOKENS, wrote, ONE)
        add_lanes(d_W_in[m].ravel(), of_W_in.ravel())
        add_lanes(d_b_in[m], of_b_in)
        add_lanes(d_W_out[m].ravel(), of_W_out.ravel())
        add_lanes(d_b_out[m], of_b_out)


@no_type_check
@called
def _zero_where_off(units, hidden):
    """Apply the ReLU; units that only fill a block of weights are zero, whatever they were made of."""
    for i in range(hidden * TOKENS):
        unit = units[i]
        units[i] = ZERO if unit <= ZERO else unit
    for i in range(hidden * TOKENS, len(units)):
        units[i] = ZERO


@no_type_check
@called
def _zero_slopes_where_off(d_units, units):
    for i in range(len(units)):
        slope = d_units[i]
        d_units[i] = ZERO if units[i] <= ZERO else slope
