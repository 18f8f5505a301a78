"""A layer of attention of small heads on a CPU, compiled by numba: all between its ends stays in the cache.

From the residual stream to what the heads add to it, a sequence at a time. Of what is between, the backward
pass gets what heads read; queries, keys, values and weights are computed again.
"""

from typing import Any, no_type_check

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from mechmarkov.models.fast.attention_tiles import LN2, SQUARE, attend, attend_backward, reach, rows_of
from mechmarkov.models.fast.panels import (
    LANES,
    ONE,
    TOKENS,
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
    W_Q, _, _, W_O = weights
    models, _, _, d_model = x.shape
    _, heads, _, d_head = W_Q.shape
    into, own = (models, heads, d_model, d_head), (models, heads, d_head)
    check_floats(
        {"x": (x, tuple(x.shape)), "value_input": (value_input, tuple(x.shape))}
        | {f"W_{name}": (weight, into) for name, weight in zip("QKV", weights[:3], strict=True)}
        | {f"b_{name}": (bias, own) for name, bias in zip("QKV", biases[:3], strict=True)}
        | {"W_O": (W_O, (models, heads, d_head, d_model)), "b_O": (biases[3], (models, d_model))}
    )
    rows, in_bits = rows_of(d_head), scale / float(LN2)
    missing = len(rows) - d_head
    W_in, b_in = (
        pad(torch.stack((of_q * in_bits, of_k, of_v), 1), (0, missing))
        for of_q, of_k, of_v in (weights[:3], biases[:3])
    )
    if value_input is not x:  # rows of both, and zeros where one is not read
        x = torch.cat((x, value_input), -1)
        W_in = torch.cat((pad(W_in[:, :2], (0, 0, 0, d_model)), pad(W_in[:, 2:], (0, 0, d_model, 0))), 1)
    W_in = blocks_of(rearrange(W_in, "m qkv h i r -> m i (qkv h r)"))
    W_out = blocks_of(pad(W_O, (0, 0, 0, missing)).flatten(1, 2))
    apply: Any = _AttentionLayer.apply  # torch's `apply` has no types
    out: Tensor = apply(x, W_in, b_in.flatten(1), W_out, biases[3], rows, reach(window, x.shape[-2]))
    return out


class _AttentionLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        W_in: Tensor,
        b_in: Tensor,
        W_out: Tensor,
        b_out: Tensor,
        rows: tuple[int, ...],
        window: int,
    ) -> Tensor:
        m, b, p, _ = x.shape
        out, z = new_rows(x, b_out.shape[-1]), new_rows(x, b_in.shape[-1] // 3)
        sums, shifts = x.new_empty(2, m, z.shape[-1] // len(rows), b, -(-p // TOKENS) * TOKENS)
        given = as_rows(x), *map(as_array, (W_in, b_in, W_out, in_fours(b_out)))
        _forward(rows, *given, as_rows(out), as_rows(z), as_array(sums), as_array(shifts), window)
        ctx.save_for_backward(x, W_in, b_in, W_out, z, sums, shifts)
        ctx.rows, ctx.window = rows, window
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, W_in, b_in, W_out, z, sums, shifts = ctx.saved_tensors
        d_x, d_b_out = new_rows(x, x.shape[-1]), in_fours(d_out[:, 0, 0])
        gradients = [torch.empty_like(y) for y in (W_in, b_in, W_out, d_b_out)]
        given = as_rows(x), *map(as_array, (W_in, b_in, transposed(W_in), transposed(W_out)))
        saved = as_rows(z), as_array(sums), as_array(shifts), as_rows(d_out)
        _backward(ctx.rows, *given, *saved, as_rows(d_x), *map(as_array, gradients), ctx.window)
        d_W_in, d_b_in, d_W_out, d_b_out = gradients
        return d_x, d_W_in, d_b_in, d_W_out, d_b_out[:, : d_out.shape[-1]], None, None


@no_type_check
@compiled
def _forward(rows, x, W_in, b_in, W_out, b_out, out, z, sums, shifts, window):
    models, _, batch, length = x.shape
    panels, heads = sums.shape[3] // TOKENS, sums.shape[1]
    some = np.zeros((panels, W_in.shape[2] * 4 * TOKENS), f32)
    wrote = np.zeros((panels, b_out.shape[1] * TOKENS), f32)
    made, read = np.zeros((panels, b_in.shape[1] * TOKENS), f32), np.zeros((panels, z.shape[1] * TOKENS), f32)
    by_head, read_by_head = made.reshape(panels, 3 * heads, -1), read.reshape(panels, heads, -1)
    weights = np.zeros(SQUARE, f32)
    for m in range(models):
        for s in range(batch):
            _make(made, some, x, m, s, W_in[m], b_in[m])
            for head in range(heads):
                own_sums, shift = sums[m, head, s], shifts[m, head, s]
                attend(rows, weights, by_head, read_by_head, head, own_sums, shift, length, window)
            for p in range(panels):
                give(z, m, s, p * TOKENS, read[p], ONE)
                multiply(wrote[p], W_out[m], read[p], b_out[m])
                give(out, m, s, p * TOKENS, wrote[p], ONE)


@no_type_check
@called
def _make(made, some, x, m, s, W_in, b_in):
    """Queries, keys and values of a sequence, and what they are made of."""
    for p in range(len(made)):
        take(some[p], x, m, s, p * TOKENS, ONE)
        multiply(made[p], W_in, some[p], b_in)


@no_type_check
@compiled
def _backward(
    rows, x, W_in, b_in, W_in_T, W_out_T, z, sums, shifts, d_out,
    d_x, d_W_in, d_b_in, d_W_out, d_b_out, window,
):  # fmt: skip
    models, _, batch, length = x.shape
    panels, heads = sums.shape[3] // TOKENS, sums.shape[1]
    size = W_in.shape[2] * 4 * TOKENS
    some, d_some = np.zeros((panels, size), f32), np.zeros((panels, size), f32)
    wrote, width = np.zeros((panels, d_b_out.shape[1] * TOKENS), f32), z.shape[1] * TOKENS
    made, d_made = np.zeros((panels, 3 * width), f32), np.zeros((panels, 3 * width), f32)
    read, d_read = np.zeros((panels, width), f32), np.zeros((panels, width), f32)
    by_head, d_by_head = made.reshape(panels, 3 * heads, -1), d_made.reshape(panels, 3 * heads, -1)
    read_by_head, d_read_by_head = read.reshape(panels, heads, -1), d_read.reshape(panels, heads, -1)
    of_W_in, of_W_out = new_sums(d_W_in), new_sums(d_W_out)
    of_b_in, of_b_out = np.zeros(d_b_in.shape[1] * LANES, f32), np.zeros(d_b_out.shape[1] * LANES, f32)
    squares = np.zeros((5, SQUARE), f32)
    no_bias = np.zeros(max(len(some[0]), width), f32)
    for m in range(models):
        for s in range(batch):
            _make(made, some, x, m, s, W_in[m], b_in[m])
            for p in range(panels):
                take(read[p], z, m, s, p * TOKENS, ONE)
                take(wrote[p], d_out, m, s, p * TOKENS, ONE)
                add_rows(of_b_out, wrote[p])
                multiply(d_read[p], W_out_T[m], wrote[p], no_bias)
            add_products(of_W_out, read, wrote, panels)
            for head in range(heads):
                own_sums, shift = sums[m, head, s], shifts[m, head, s]
                attend_backward(
                    rows,
                    squares,
                    by_head,
                    d_by_head,
                    read_by_head,
                    d_read_by_head,
                    head,
                    own_sums,
                    shift,
                    length,
                    window,
                )
            for p in range(panels):
                for i in range(2 * width):  # scores are in bits
                    d_made[p, i] *= LN2
                add_rows(of_b_in, d_made[p])
                multiply(d_some[p], W_in_T[m], d_made[p], no_bias)
                give(d_x, m, s, p * TOKENS, d_some[p], ONE)
            add_products(of_W_in, some, d_made, panels)
        add_lanes(d_W_in[m].ravel(), of_W_in.ravel())
        add_lanes(d_b_in[m], of_b_in)
        add_lanes(d_W_out[m].ravel(), of_W_out.ravel())
        add_lanes(d_b_out[m], of_b_out)
