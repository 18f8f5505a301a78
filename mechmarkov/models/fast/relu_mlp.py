"""A ReLU MLP of a stack, some tokens of one model at a time.

A toy MLP's products take less time than moving its hidden units to memory and back, which the bias, the ReLU,
their gradients and four products each do. Here the hidden units of some tokens go through all of it while a
core's cache holds them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CACHED_UNITS = 1 << 17  # hidden units at a time: half a megabyte


class ReluMlp(torch.autograd.Function):
    """`relu(x W_in + b_in) W_out + b_out`, with `x` `[model, token, d_model]` and weights of each model."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W_in: Tensor, b_in: Tensor, W_out: Tensor, b_out: Tensor) -> Tensor:
        ctx.save_for_backward(x, W_in, b_in, W_out)
        scratch, out = _scratch(x, W_in), torch.empty_like(x)
        for i, tokens in _chunks(x, scratch):
            some = x[i, tokens]
            units = torch.addmm(b_in[i], some, W_in[i], out=scratch[: len(some)]).relu_()
            torch.addmm(b_out[i], units, W_out[i], out=out[i, tokens])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        x, W_in, b_in, W_out = ctx.saved_tensors
        d_out, d_x = d_out.contiguous(), torch.empty_like(x)
        d_W_in, d_b_in, d_W_out = (torch.zeros_like(weight) for weight in (W_in, b_in, W_out))
        scratch, d_scratch = _scratch(x, W_in), _scratch(x, W_in)
        for i, tokens in _chunks(x, scratch):
            some, d_some = x[i, tokens], d_out[i, tokens]
            # Once more: it takes less time than to keep them in memory.
            units = torch.addmm(b_in[i], some, W_in[i], out=scratch[: len(some)]).relu_()
            d_units = torch.mm(d_some, W_out[i].mT, out=d_scratch[: len(some)])
            torch.ops.aten.threshold_backward.grad_input(d_units, units, 0, grad_input=d_units)
            d_W_out[i].addmm_(units.mT, d_some)
            d_W_in[i].addmm_(some.mT, d_units)
            d_b_in[i] += d_units.sum(0)
            torch.mm(d_units, W_in[i].mT, out=d_x[i, tokens])
        return d_x, d_W_in, d_b_in, d_W_out, d_out.sum(1)


def _scratch(x: Tensor, W_in: Tensor) -> Tensor:
    """Memory for the hidden units of some tokens."""
    d_mlp = W_in.shape[-1]
    return x.new_empty(max(1, min(x.shape[1], CACHED_UNITS // d_mlp)), d_mlp)


def _chunks(x: Tensor, scratch: Tensor) -> list[tuple[int, slice]]:
    """Each model's place with as many of its tokens as the scratch memory holds."""
    size = len(scratch)
    return [(i, slice(a, a + size)) for i in range(len(x)) for a in range(0, x.shape[1], size)]
