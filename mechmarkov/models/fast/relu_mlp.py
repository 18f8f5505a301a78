"""A ReLU MLP of a stack, some tokens of one model at a time.

A toy MLP's products take less time than moving its hidden units to memory and back, which the bias, the ReLU,
their gradients and four products each do. Here the hidden units of some tokens go through all of it while a
core's cache holds them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CACHED_UNITS = 1 << 19  # hidden units at a time: two megabytes


class ReluMlp(torch.autograd.Function):
    """`relu(x W_in + b_in) W_out + b_out`, with `x` `[model, token, d_model]` and weights of each model."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W_in: Tensor, b_in: Tensor, W_out: Tensor, b_out: Tensor) -> Tensor:
        ctx.save_for_backward(x, W_in, b_in, W_out)
        out, memory = torch.empty_like(x), x.new_empty(CACHED_UNITS)
        for models, tokens in _chunks(x, W_in):
            some, weights = x[models, tokens], W_in[models]
            units = _affine(some, weights, b_in[models], _units(memory, some, weights)).relu_()
            _affine(units, W_out[models], b_out[models], out[models, tokens])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        x, W_in, b_in, W_out = ctx.saved_tensors
        d_x, memory, d_memory = torch.empty_like(x), x.new_empty(CACHED_UNITS), x.new_empty(CACHED_UNITS)
        d_W_in, d_b_in, d_W_out = (torch.zeros_like(weight) for weight in (W_in, b_in, W_out))
        for models, tokens in _chunks(x, W_in):
            some, d_some, weights = x[models, tokens], d_out[models, tokens], W_in[models]
            # Once more: it takes less time than to keep them in memory.
            units = _affine(some, weights, b_in[models], _units(memory, some, weights)).relu_()
            d_units = _product(d_some, W_out[models].mT, _units(d_memory, d_some, weights))
            torch.ops.aten.threshold_backward.grad_input(d_units, units, 0, grad_input=d_units)
            d_W_out[models].baddbmm_(units.mT, d_some)
            d_W_in[models].baddbmm_(some.mT, d_units)
            d_b_in[models] += d_units.sum(1)
            _product(d_units, weights.mT, d_x[models, tokens])
        return d_x, d_W_in, d_b_in, d_W_out, d_out.sum(1)


def _units(memory: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """A place for `x @ weight`, transposed as `x` is (see `thin_gemm`), in memory that is used again."""
    (n_models, n_tokens, _), n_units = x.shape, weight.shape[-1]
    place = memory[: n_models * n_tokens * n_units]
    if x.stride(-1) == 1:
        return place.view(n_models, n_tokens, n_units)
    return place.view(n_models, n_units, n_tokens).mT


def _affine(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    if x.stride(-1) == 1:
        return torch.baddbmm(bias.unsqueeze(-2), x, weight, out=out)
    torch.baddbmm(bias.unsqueeze(-1), weight.mT, x.mT, out=out.mT)
    return out


def _product(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    if x.stride(-1) == 1:
        return torch.bmm(x, weight, out=out)
    torch.bmm(weight.mT, x.mT, out=out.mT)
    return out


def _chunks(x: Tensor, W_in: Tensor) -> list[tuple[slice, slice]]:
    """Some models with all of their tokens, or one with some: a core's cache holds their hidden units."""
    n_models, n_tokens, _ = x.shape
    tokens = max(1, min(n_tokens, CACHED_UNITS // W_in.shape[-1]))
    models = max(1, CACHED_UNITS // (tokens * W_in.shape[-1]))
    return [
        (slice(i, i + models), slice(a, a + tokens))
        for i in range(0, n_models, models)
        for a in range(0, n_tokens, tokens)
    ]
