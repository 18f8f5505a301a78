"""LayerNorm and RMSNorm of a stack: compiled by numba on a CPU, LayerNorm by torch elsewhere."""

from typing import Any, no_type_check

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechmarkov.models.fast.panels import (
    LANES,
    ONE,
    TOKENS,
    add_lanes,
    add_rows,
    as_array,
    as_rows,
    called,
    check_floats,
    f32,
    give,
    new_rows,
    take,
)
from mechmarkov.utils.compiled import compiled


def norm_fused(
    x: Float[Tensor, "model token d"],
    w: Float[Tensor, "model d"],
    b: Float[Tensor, "model d"],
    eps: float,
    centred: bool,
) -> Float[Tensor, "model token d"]:
    """Compute `(x - mean) / sqrt(mean square + eps) * w + b` over the last axis. Differentiable once.

    Args:
        x: What is normed, in float32, best with tokens last in memory.
        w: The weights of each model.
        b: The biases of each model.
        eps: A number that is added to the mean square.
        centred: Whether a token's mean is taken off first: LayerNorm; else RMSNorm.

    Raises:
        ValueError: Shapes that do not fit, or another type than float32.
    """
    models, _, d = x.shape
    check_floats({"x": (x, tuple(x.shape)), "w": (w, (models, d)), "b": (b, (models, d))})
    apply: Any = _Norm.apply  # torch's `apply` has no types
    out: Tensor = apply(x, w, b, f32(eps), centred)
    return out


def layer_norm(x: Tensor, w: Tensor, b: Tensor, eps: float, centred: bool) -> Tensor:
    """Normalise by torch's own LayerNorm, with the arguments of `norm_fused`.

    Args:
        x: The input; its last axis is normalised.
        w: The gain, `[model, d_model]`.
        b: The bias, `[model, d_model]`.
        eps: What is added to the variance.
        centred: True; torch's kernel always takes off the mean.
    """
    assert centred
    return (F.layer_norm(x, x.shape[-1:], eps=eps) * w.unsqueeze(1)).add_(b.unsqueeze(1))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, eps: np.float32, centred: bool) -> Tensor:
        out = new_rows(x, x.shape[-1])
        _forward(as_rows(x), as_array(w), as_array(b), as_rows(out), eps, centred)
        ctx.save_for_backward(x, w)
        ctx.eps, ctx.centred = eps, centred
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        d_x, d_w, d_b = new_rows(x, x.shape[-1]), torch.empty_like(w), torch.empty_like(w)
        given = as_rows(x), as_array(w), as_rows(d_out)
        _backward(*given, as_rows(d_x), as_array(d_w), as_array(d_b), ctx.eps, ctx.centred)
        return d_x, d_w, d_b, None, None


@no_type_check
@compiled
def _forward(x, w, b, out, eps, centred):
    panel, scale = np.zeros(x.shape[1] * TOKENS, f32), np.zeros(TOKENS, f32)
    for m in range(len(x)):
        for start in range(0, x.shape[3], TOKENS):
            take(panel, x, m, 0, start, ONE)
            _normalise(panel, scale, x.shape[1], eps, centred)
            for row in range(x.shape[1]):
                own, gain, bias = panel[row * TOKENS :], w[m, row], b[m, row]
                for j in range(TOKENS):
                    own[j] = own[j] * gain + bias
            give(out, m, 0, start, panel, ONE)


@no_type_check
@compiled
def _backward(x, w, d_out, d_x, d_w, d_b, eps, centred):
    d, share = x.shape[1], ONE / f32(x.shape[1])
    fours = -(-d // 4) * 4
    panel, d_panel, products = [np.zeros(fours * TOKENS, f32) for _ in range(3)]
    scale, along = np.zeros(TOKENS, f32), np.zeros(TOKENS, f32)
    of_w, of_b = np.zeros(fours * LANES, f32), np.zeros(fours * LANES, f32)
    for m in range(len(x)):
        for start in range(0, x.shape[3], TOKENS):
            take(panel, x, m, 0, start, ONE)
            take(d_panel, d_out, m, 0, start, ONE)
            _normalise(panel, scale, d, eps, centred)
            for i in range(d * TOKENS):
                products[i] = panel[i] * d_panel[i]
            add_rows(of_w, products)
            add_rows(of_b, d_panel)
            for j in range(TOKENS):
                along[j] = 0
            for row in range(d):
                own, normal, gain = d_panel[row * TOKENS :], panel[row * TOKENS :], w[m, row]
                for j in range(TOKENS):
                    own[j] *= gain
                    along[j] += own[j] * normal[j]
            for row in range(d):
                own, normal = d_panel[row * TOKENS :], panel[row * TOKENS :]
                for j in range(TOKENS):
                    own[j] = (own[j] - along[j] * share * normal[j]) * scale[j]
            if centred:
                _centre(d_panel, along, d)
            give(d_x, m, 0, start, d_panel, ONE)
        add_lanes(d_w[m], of_w)
        add_lanes(d_b[m], of_b)


@no_type_check
@called
def _normalise(panel, scale, d, eps, centred):
    """Divide tokens by the root of their mean square; `scale` is set to one over it."""
    if centred:
        _centre(panel, scale, d)
    for j in range(TOKENS):
        scale[j] = 0
    for row in range(d):
        own = panel[row * TOKENS :]
        for j in range(TOKENS):
            scale[j] += own[j] * own[j]
    for j in range(TOKENS):
        scale[j] = ONE / np.sqrt(scale[j] / f32(d) + eps)
    for row in range(d):
        own = panel[row * TOKENS :]
        for j in range(TOKENS):
            own[j] *= scale[j]


@no_type_check
@called
def _centre(panel, mean, d):
    """Take the mean off each token."""
    share = ONE / f32(d)
    for j in range(TOKENS):
        mean[j] = 0
    for row in range(d):
        own = panel[row * TOKENS :]
        for j in range(TOKENS):
            mean[j] += own[j]
    for row in range(d):
        own = panel[row * TOKENS :]
        for j in range(TOKENS):
            own[j] -= mean[j] * share
