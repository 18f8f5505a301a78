"""A layer of attention of small heads on a CPU, compiled by numba: all between its ends stays in the cache.

From the residual stream to what the heads add to it, a sequence at a time. Of what is between, the backward
pass gets what heads gather; queries, keys, values and weights are computed again.
"""

from typing import Any, no_type_check

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from mechmarkov.models.fast.attention_rows import LN2, attend, attend_backward, rows_of
from mechmarkov.models.fast.token_rows import (
    LOWEST,
    ONE,
    add_products,
    add_sums,
    as_array,
    as_token_rows,
    check_floats,
    copy,
    give,
    multiply,
    new_token_rows,
    reach,
    row_length,
    take,
)
from mechmarkov.utils.compiled import called, compiled, inlined

f32 = np.float32


def attention_layer_fused(
    x: Float[Tensor, "model batch position d_model"],
    value_input: Float[Tensor, "model batch position d_model"],
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    biases: tuple[Tensor, Tensor, Tensor, Tensor],
    scale: float,
    window: int | None = None,
) -> Float[Tensor, "model batch position d_model"]:
    """Returns what the heads of a layer write, in float32. Differentiable once.

    Args:
        x: What queries and keys are made of, best with positions last in memory.
        value_input: What values are made of; the same tensor where it is the same.
        weights: `W_Q`, `W_K` and `W_V` `[model, head, d_model, d_head]` and `W_O` `[model, head, d_head,
            d_model]`.
        biases: `b_Q`, `b_K` and `b_V` `[model, head, d_head]` and `b_O` `[model, d_model]`.
        scale: What scores are multiplied by.
        window: How many positions back attention reaches; None for all.

    Raises:
        ValueError: Shapes that do not fit, another type than float32, or a window below 0.
    """
    in_bits = scale / float(LN2)
    W_Q, W_K, W_V, W_O = weights
    b_Q, b_K, b_V, b_O = biases
    models, _, _, d_model = x.shape
    _, heads, _, d_head = W_Q.shape
    into, own = (models, heads, d_model, d_head), (models, heads, d_head)
    check_floats(
        {"x": (x, tuple(x.shape)), "value_input": (value_input, tuple(x.shape))}
        | {f"W_{name}": (weight, into) for name, weight in zip("QKV", weights[:3], strict=True)}
        | {f"b_{name}": (bias, own) for name, bias in zip("QKV", biases[:3], strict=True)}
        | {"W_O": (W_O, (models, heads, d_head, d_model)), "b_O": (b_O, (models, d_model))}
    )
    rows = rows_of(W_Q.shape[-1])
    missing = len(rows) - W_Q.shape[-1]
    W_in, b_in = (
        pad(torch.stack(own, 1), (0, missing))
        for own in ((W_Q * in_bits, W_K, W_V), (b_Q * in_bits, b_K, b_V))
    )
    W_in, b_in = rearrange(W_in, "m qkv h i r -> m i (qkv h r)"), b_in.flatten(1)
    W_out = pad(W_O, (0, 0, 0, missing)).flatten(1, 2)
    shape = rows, reach(window, x.shape[-2]), value_input is x
    apply: Any = _AttentionLayer.apply  # torch's `apply` has no types
    out: Tensor = apply(x, value_input, W_in, b_in, W_out, b_O, *shape)
    return out


class _AttentionLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        value_input: Tensor,
        W_in: Tensor,
        b_in: Tensor,
        W_out: Tensor,
        b_out: Tensor,
        rows: tuple[int, ...],
        window: int,
        shared: bool,
    ) -> Tensor:
        m, b, p, d_model = x.shape
        width = W_out.shape[1]  # of all heads' rows
        out, z = new_token_rows(x, d_model), new_token_rows(x, width)
        shifts, sums = x.new_empty(2, m, width // len(rows), b, p)
        ctx.rows, ctx.window, ctx.shared = rows, window, shared
        given = as_token_rows(x), as_token_rows(value_input), *map(as_array, (W_in, b_in, W_out, b_out))
        found = as_token_rows(out), as_token_rows(z), as_array(shifts), as_array(sums)
        _forward(rows, *given, *found, window, shared)
        ctx.save_for_backward(x, value_input, W_in, b_in, W_out, z, shifts, sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, value_input, W_in, b_in, W_out, z, shifts, sums = ctx.saved_tensors
        d_x, d_value_input = (new_token_rows(x, x.shape[-1]) for _ in range(2))
        gradients = [x.new_zeros(shape) for shape in (W_in.shape, b_in.shape, W_out.shape, d_out.shape[::3])]
        given = as_token_rows(x), as_token_rows(value_input), *map(as_array, (W_in, b_in, W_out))
        kept = as_token_rows(z), as_array(shifts), as_array(sums), as_token_rows(d_out)
        found = as_token_rows(d_x), as_token_rows(d_value_input), *map(as_array, gradients)
        _backward(ctx.rows, *given, *kept, *found, ctx.window, ctx.shared)
        return d_x, None if ctx.shared else d_value_input, *gradients, None, None, None


@no_type_check
@compiled
def _forward(rows, x, value_input, W_in, b_in, W_out, b_out, out, z, shifts, all_sums, window, shared):
    n_models, d_model, batch, length = x.shape
    n, width = row_length(length), W_out.shape[1]
    some, read, wrote = np.zeros(d_model * n, f32), np.zeros(width * n, f32), np.zeros(d_model * n, f32)
    made = np.zeros(3 * width * n, f32)  # queries, keys and values
    sums, shift = np.zeros(n, f32), np.zeros(n, f32)
    one, size = np.int64(1), len(rows) * n
    for m in range(n_models):
        w_in, w_out = W_in[m].ravel(), W_out[m].ravel()
        for s in range(batch):
            _make(
                made, some, x[m, :, s], value_input[m, :, s], w_in, b_in[m], n, d_model, width, length, shared
            )
            for head in range(width // len(rows)):
                own = read[head * size : (head + 1) * size]
                attend(rows, _of_head(made, head, size), own, sums, shift, n, length, window)
                copy(shifts[m, head, s], shift, length)
                copy(all_sums[m, head, s], sums, length)
            give(z[m, :, s], read, n, ONE)
            multiply(wrote, w_out, d_model, one, read, n, width, d_model, length, b_out[m], LOWEST)
            give(out[m, :, s], wrote, n, ONE)


@no_type_check
@called
def _make(made, some, x, value_input, w_in, b_in, n, d_model, width, length, shared):
    """Queries, keys and values of a sequence; `some` then holds what queries and keys are made of."""
    one, at = np.int64(1), 2 * width
    if not shared:
        take(some, n, value_input, ONE)
        v, w = made[at * n :], w_in[at:]
        multiply(v, w, 3 * width, one, some, n, d_model, width, length, b_in[at:], LOWEST)
    take(some, n, x, ONE)
    rows = 3 * width if shared else at
    multiply(made, w_in, 3 * width, one, some, n, d_model, rows, length, b_in, LOWEST)


@no_type_check
@inlined
def _of_head(made, head, size):
    """A head's queries, keys and values."""
    q, k, v = head * size, len(made) // 3 + head * size, len(made) // 3 * 2 + head * size
    return made[q : q + size], made[k : k + size], made[v : v + size]


@no_type_check
@compiled
def _backward(
    rows, x, value_input, W_in, b_in, W_out, z, shifts, all_sums, d_out,
    d_x, d_value_input, d_W_in, d_b_in, d_W_out, d_b_out, window, shared,
):  # fmt: skip
    n_models, d_model, batch, length = x.shape
    n, width = row_length(length), W_out.shape[1]
    some, d_some = np.zeros(d_model * n, f32), np.zeros(d_model * n, f32)
    read, d_read = np.zeros(width * n, f32), np.zeros(width * n, f32)
    made, d_made = np.zeros(3 * width * n, f32), np.zeros(3 * width * n, f32)
    sums, shift = np.ones(n, f32), np.zeros(n, f32)
    none = np.zeros(max(d_model, width), f32)  # no bias
    one, size = np.int64(1), len(rows) * n
    for m in range(n_models):
        w_in, w_out = W_in[m].ravel(), W_out[m].ravel()
        d_w_in, d_w_out = d_W_in[m].ravel(), d_W_out[m].ravel()
        for s in range(batch):
            _make(
                made, some, x[m, :, s], value_input[m, :, s], w_in, b_in[m], n, d_model, width, length, shared
            )
            take(read, n, z[m, :, s], ONE)
            take(d_some, n, d_out[m, :, s], ONE)
            add_products(d_w_out, d_model, read, d_some, n, width, d_model, length)
            add_sums(d_b_out[m], d_some, n, d_model, length)
            multiply(d_read, w_out, one, d_model, d_some, n, d_model, width, length, none, LOWEST)
            for head in range(width // len(rows)):
                qkv, d_qkv = _of_head(made, head, size), _of_head(d_made, head, size)
                own, d_own = read[head * size : (head + 1) * size], d_read[head * size : (head + 1) * size]
                copy(shift, shifts[m, head, s], length)
                copy(sums, all_sums[m, head, s], length)
                attend_backward(rows, qkv, d_qkv, own, d_own, sums, shift, n, length, window)
            for i in range(2 * width * n):  # scores are in bits
                d_made[i] *= LN2
            add_sums(d_b_in[m], d_made, n, 3 * width, length)
            some_rows = 3 * width if shared else 2 * width
            add_products(d_w_in, 3 * width, some, d_made, n, d_model, some_rows, length)
            multiply(d_some, w_in, one, 3 * width, d_made, n, some_rows, d_model, length, none, LOWEST)
            give(d_x[m, :, s], d_some, n, ONE)
            if not shared:
                at = 2 * width
                take(some, n, value_input[m, :, s], ONE)
                add_products(d_w_in[at:], 3 * width, some, d_made[at * n :], n, d_model, width, length)
                w, d_v = w_in[at:], d_made[at * n :]
                multiply(d_some, w, one, 3 * width, d_v, n, width, d_model, length, none, LOWEST)
                give(d_value_input[m, :, s], d_some, n, ONE)
