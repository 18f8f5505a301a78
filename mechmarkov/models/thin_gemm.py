"""Thin GEMM for stacks on a CPU: products with few columns, computed transposed.

A toy model multiplies thousands of tokens by matrices of 8 or 2 columns. As `tokens @ weight` that takes four
to seven times as long as the transposed product `weight^T @ tokens^T`, which has thousands of columns. The
result stays transposed in memory, so that sums of such results run along the tokens.
"""

from typing import Any

import torch
from torch import Tensor

THIN_COLUMNS = 8  # from 16 columns on both orders are equally fast


def is_thin(x: Tensor, weight: Tensor, transposed: bool = False) -> bool:
    """Returns whether `x @ weight`, or one of its gradients, has so few columns that its transpose is faster.

    So it is where `x` lies transposed in memory, or where the result shall (`transposed`). In training on a
    CPU only: without gradients, equal rows of `x` stay equal to the last bit.

    Example:
        >>> x = torch.ones(2, 50, 16)
        >>> is_thin(x, torch.ones(2, 16, 4)), is_thin(x, torch.ones(2, 16, 16))
        (True, False)
    """
    plain = x.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
    thin = plain and (transposed or x.stride(-1) != 1 or min(weight.shape[-2:]) <= THIN_COLUMNS)
    return thin and torch.is_grad_enabled() and weight.device.type == "cpu"


def thin_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices `[model, row, column]` in the order that is fast: by the transpose for few columns.

    Example:
        >>> thin_matmul(torch.ones(2, 40, 3), torch.ones(2, 3, 5)).shape
        torch.Size([2, 40, 5])
    """
    if b.shape[-1] <= THIN_COLUMNS and b.shape[-1] < a.shape[-2]:
        return torch.bmm(b.mT, a.mT).mT
    return torch.bmm(a, b)


class ThinAffine(torch.autograd.Function):
    """`x @ weight + bias` with every product in its fast order; can be differentiated twice.

    The result lies transposed in memory where it is thin or `transposed` asks for it, and the gradient of
    `x` as `x` does.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, transposed: bool) -> Tensor:
        """Returns `x @ weight + bias`, `[model, row, d_out]`; bias `[model, d_out]`."""
        ctx.save_for_backward(x, weight)
        if weight.shape[-1] > THIN_COLUMNS and not transposed:
            return torch.baddbmm(bias.unsqueeze(-2), x, weight)
        m, rows, columns = len(x), x.shape[1], weight.shape[-1]
        # Transposed, and yet no view, since a hook may write into it.
        out = x.new_empty_strided((m, rows, columns), (rows * columns, 1, rows))
        torch.baddbmm(bias.unsqueeze(-1), weight.mT, x.mT, out=out.mT)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients by x, weight and bias, and None for `transposed` and what is frozen."""
        (x, weight), (_, by_weight, by_bias, _) = ctx.saved_tensors, ctx.needs_input_grad
        d_x = torch.bmm(weight, d_out.mT).mT if x.stride(-1) != 1 else thin_matmul(d_out, weight.mT)
        d_weight = thin_matmul(x.mT, d_out) if by_weight else None
        return d_x, d_weight, d_out.sum(-2) if by_bias else None, None
