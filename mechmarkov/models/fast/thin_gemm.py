"""Products with a narrow result, for stacks on a CPU: the same sums, in the order a BLAS is fast at.

A toy model multiplies thousands of tokens by matrices of 8 or 2 columns. As `tokens @ weight` that takes four
to seven times as long as the transposed product `weight^T @ tokens^T`, which has thousands of columns.
"""

from typing import Any

import torch
from torch import Tensor

NARROW = 8  # columns; from 16 on both orders are equally fast


def narrow(x: Tensor, weight: Tensor) -> bool:
    """Whether `x @ weight`, or one of its gradients, has so few columns that order matters.

    In training alone: what is recorded of a model without gradients keeps equal rows equal to the last bit.
    """
    plain = weight.device.type == "cpu" and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    return plain and x.dtype == weight.dtype and min(weight.shape[-2:]) <= NARROW


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, `[model, row, column]`, by its transpose where there are few columns and more rows."""
    if b.shape[-1] <= NARROW and b.shape[-1] < a.shape[-2]:
        return torch.bmm(b.mT, a.mT).mT
    return torch.bmm(a, b)


class Affine(torch.autograd.Function):
    """`x @ weight + bias` with every product in its fast order; can be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        if weight.shape[-1] > NARROW:
            return torch.baddbmm(bias.unsqueeze(-2), x, weight)
        return torch.baddbmm(bias.unsqueeze(-1), weight.mT, x.mT).mT.contiguous()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return product(d_out, weight.mT).contiguous(), product(x.mT, d_out), d_out.sum(-2)
