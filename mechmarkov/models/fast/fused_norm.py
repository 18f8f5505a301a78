"""LayerNorm and RMSNorm of a stack: compiled by numba on a CPU, LayerNorm by torch elsewhere."""

from typing import Any, no_type_check

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechmarkov.models.fast.registers import (
    WIDTH,
    load,
    load_splat,
    splat,
    square_root,
    store,
)
from mechmarkov.models.fast.token_rows import (
    ONE,
    add_products_by_row,
    add_sums,
    as_array,
    as_token_rows,
    check_floats,
    copy,
    give,
    new_token_rows,
    take,
)
from mechmarkov.utils.compiled import compiled, inlined

f32 = np.float32
LENGTH = 256  # tokens at once


def norm_fused(
    x: Float[Tensor, "model token d"],
    w: Float[Tensor, "model d"],
    b: Float[Tensor, "model d"],
    eps: float,
    centred: bool,
) -> Float[Tensor, "model token d"]:
    """Tokens over the root of their mean square plus `eps`, times `w`, plus `b`. Differentiable once.

    Args:
        x: In float32, best with tokens last in memory.
        w: The weights of each model.
        b: The biases of each model.
        eps: What is added to the mean square.
        centred: Whether a token's mean is taken off first: LayerNorm.

    Raises:
        ValueError: Shapes that do not fit, or another type than float32.
    """
    models, _, d = x.shape
    check_floats({"x": (x, tuple(x.shape)), "w": (w, (models, d)), "b": (b, (models, d))})
    apply: Any = _Norm.apply  # torch's `apply` has no types
    out: Tensor = apply(x, w, b, f32(eps), centred)
    return out


def layer_norm(x: Tensor, w: Tensor, b: Tensor, eps: float, centred: bool) -> Tensor:
    """LayerNorm in one pass of torch's; arguments as of `norm_fused`, centred."""
    assert centred
    return (F.layer_norm(x, x.shape[-1:], eps=eps) * w.unsqueeze(1)).add_(b.unsqueeze(1))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, eps: np.float32, centred: bool) -> Tensor:
        out, scales = new_token_rows(x, x.shape[-1]), x.new_empty(x.shape[:2])
        given = as_token_rows(x), as_array(w), as_array(b), as_token_rows(out), as_array(scales)
        _forward(*given, eps, centred)
        ctx.save_for_backward(x, w, scales)
        ctx.centred = centred
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, w, scales = ctx.saved_tensors
        d_x, d_w, d_b = new_token_rows(x, x.shape[-1]), torch.zeros_like(w), torch.zeros_like(w)
        given = as_token_rows(x), as_array(w), as_array(scales), as_token_rows(d_out)
        _backward(*given, as_token_rows(d_x), as_array(d_w), as_array(d_b), ctx.centred)
        return d_x, d_w, d_b, None, None


@no_type_check
@compiled
def _forward(x, w, b, out, scales, eps, centred):
    (n_models, d, n_tokens), length = x.shape, np.int64(LENGTH)
    some, scale = np.zeros(d * LENGTH, f32), np.zeros(LENGTH, f32)
    for m in range(n_models):
        for start in range(0, n_tokens, LENGTH):
            n = min(LENGTH, n_tokens - start)
            take(some, length, x[m, :, start : start + n], ONE)
            for i in range(0, n, WIDTH):
                _centre(some, d, i, centred)
                total = splat(f32(0))
                for row in range(i, d * LENGTH, LENGTH):
                    total = total + load(some, row) * load(some, row)
                store(scale, i, square_root(total / splat(f32(d)) + splat(eps)))
                inverse = splat(f32(1)) / load(scale, i)
                for r in range(d):
                    at = r * LENGTH + i
                    store(some, at, load(some, at) * inverse * load_splat(w[m], r) + load_splat(b[m], r))
            give(out[m, :, start : start + n], some, length, ONE)
            copy(scales[m, start:], scale, n)


@no_type_check
@compiled
def _backward(x, w, scales, d_out, d_x, d_w, d_b, centred):
    (n_models, d, n_tokens), length = x.shape, np.int64(LENGTH)
    some, d_some = np.zeros(d * LENGTH, f32), np.zeros(d * LENGTH, f32)
    scale = np.ones(LENGTH, f32)
    for m in range(n_models):
        for start in range(0, n_tokens, LENGTH):
            n = min(LENGTH, n_tokens - start)
            take(some, length, x[m, :, start : start + n], ONE)
            take(d_some, length, d_out[m, :, start : start + n], ONE)
            copy(scale, scales[m, start:], n)
            for i in range(0, n, WIDTH):
                _centre(some, d, i, centred)
                inverse = splat(f32(1)) / load(scale, i)
                for row in range(i, d * LENGTH, LENGTH):
                    store(some, row, load(some, row) * inverse)
            add_sums(d_b[m], d_some, length, d, n)
            add_products_by_row(d_w[m], some, d_some, length, d, n)
            for i in range(0, n, WIDTH):
                along = splat(f32(0))
                for r in range(d):
                    at = r * LENGTH + i
                    slope = load(d_some, at) * load_splat(w[m], r)
                    store(d_some, at, slope)
                    along = along + slope * load(some, at)
                along = along / splat(f32(d))
                inverse = splat(f32(1)) / load(scale, i)
                for row in range(i, d * LENGTH, LENGTH):
                    store(d_some, row, (load(d_some, row) - along * load(some, row)) * inverse)
                _centre(d_some, d, i, centred)
            give(d_x[m, :, start : start + n], d_some, length, ONE)


@no_type_check
@inlined
def _centre(rows, d, i, centred):
    """Take the mean off the tokens of a register."""
    if centred:
        total = splat(f32(0))
        for row in range(i, d * LENGTH, LENGTH):
            total = total + load(rows, row)
        mean = total / splat(f32(d))
        for row in range(i, d * LENGTH, LENGTH):
            store(rows, row, load(rows, row) - mean)
