"""A ReLU MLP of a stack on a CPU, compiled by numba: hidden units never leave a core's cache.

A toy MLP's products take less time than moving its hidden units to memory and back, which the bias, the ReLU,
their gradients and four products each do. Here the hidden units of 256 tokens go through all of it at once.
"""

from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechmarkov.models.fast.registers import WIDTH, load, splat, store, zero_up_to
from mechmarkov.models.fast.token_rows import (
    LOWEST,
    ONE,
    ZERO,
    add_products,
    add_sums,
    as_array,
    as_token_rows,
    check_floats,
    give,
    multiply,
    new_token_rows,
    take,
)
from mechmarkov.utils.compiled import compiled, inlined

f32 = np.float32
LENGTH = 256  # tokens at once: the 160 rows of an MLP of 64 units of width 16 are 160 kB


def relu_mlp_fused(
    x: Float[Tensor, "model token d_model"],
    W_in: Float[Tensor, "model d_model d_mlp"],
    b_in: Float[Tensor, "model d_mlp"],
    W_out: Float[Tensor, "model d_mlp d_model"],
    b_out: Float[Tensor, "model d_model"],
) -> Float[Tensor, "model token d_model"]:
    """`relu(x W_in + b_in) W_out + b_out` in float32, with tokens last in memory. Differentiable once.

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
    out: Tensor = apply(x, W_in, b_in, W_out, b_out)
    return out


class _ReluMlp(torch.autograd.Function):
    """The backward pass computes hidden units once more: it takes less time than to keep them in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W_in: Tensor, b_in: Tensor, W_out: Tensor, b_out: Tensor) -> Tensor:
        ctx.save_for_backward(x, W_in, b_in, W_out)
        out = new_token_rows(x, x.shape[-1])
        _forward(as_token_rows(x), *map(as_array, (W_in, b_in, W_out, b_out)), as_token_rows(out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        x, W_in, b_in, W_out = ctx.saved_tensors
        d_x, shapes = new_token_rows(x, x.shape[-1]), [W_in.shape, b_in.shape, W_out.shape, d_out.shape[::2]]
        gradients = [x.new_zeros(shape) for shape in shapes]
        given = as_token_rows(x), *map(as_array, (W_in, b_in, W_out)), as_token_rows(d_out)
        _backward(*given, as_token_rows(d_x), *map(as_array, gradients))
        return d_x, *gradients


@no_type_check
@compiled
def _forward(x, W_in, b_in, W_out, b_out, out):
    n_models, d_model, n_tokens = x.shape
    d_mlp, length, one = W_in.shape[2], np.int64(LENGTH), np.int64(1)
    some, units = np.zeros(d_model * LENGTH, f32), np.zeros(d_mlp * LENGTH, f32)
    for m in range(n_models):
        w_in, w_out = W_in[m].ravel(), W_out[m].ravel()
        for start in range(0, n_tokens, LENGTH):
            n = min(LENGTH, n_tokens - start)
            take(some, length, x[m, :, start : start + n], ONE)
            multiply(units, w_in, d_mlp, one, some, length, d_model, d_mlp, n, b_in[m], ZERO)
            multiply(some, w_out, d_model, one, units, length, d_mlp, d_model, n, b_out[m], LOWEST)
            give(out[m, :, start : start + n], some, length, ONE)


@no_type_check
@compiled
def _backward(x, W_in, b_in, W_out, d_out, d_x, d_W_in, d_b_in, d_W_out, d_b_out):
    n_models, d_model, n_tokens = x.shape
    d_mlp, length, one = W_in.shape[2], np.int64(LENGTH), np.int64(1)
    some, d_some = np.zeros(d_model * LENGTH, f32), np.zeros(d_model * LENGTH, f32)
    units, d_units = np.zeros(d_mlp * LENGTH, f32), np.zeros(d_mlp * LENGTH, f32)
    none = np.zeros(max(d_model, d_mlp), f32)  # no bias
    for m in range(n_models):
        w_in, w_out = W_in[m].ravel(), W_out[m].ravel()
        d_w_in, d_w_out = d_W_in[m].ravel(), d_W_out[m].ravel()
        for start in range(0, n_tokens, LENGTH):
            n = min(LENGTH, n_tokens - start)
            take(some, length, x[m, :, start : start + n], ONE)
            take(d_some, length, d_out[m, :, start : start + n], ONE)
            multiply(units, w_in, d_mlp, one, some, length, d_model, d_mlp, n, b_in[m], ZERO)
            multiply(d_units, w_out, one, d_model, d_some, length, d_model, d_mlp, n, none, LOWEST)
            _zero_where_off(d_units, units, d_mlp, n)
            add_products(d_w_out, d_model, units, d_some, length, d_mlp, d_model, n)
            add_products(d_w_in, d_mlp, some, d_units, length, d_model, d_mlp, n)
            add_sums(d_b_out[m], d_some, length, d_model, n)
            add_sums(d_b_in[m], d_units, length, d_mlp, n)
            multiply(some, w_in, one, d_mlp, d_units, length, d_mlp, d_model, n, none, LOWEST)
            give(d_x[m, :, start : start + n], some, length, ONE)


@no_type_check
@inlined
def _zero_where_off(d_units, units, d_mlp, n):
    for row in range(0, d_mlp * LENGTH, LENGTH):
        for i in range(row, row + n, WIDTH):
            store(d_units, i, zero_up_to(load(units, i), splat(f32(0)), load(d_units, i)))
