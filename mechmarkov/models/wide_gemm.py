"""Wide GEMM for stacks on a CPU: products of many tokens with whole matrices, by oneDNN.

On AMD processors oneDNN, which torch carries too, takes half of the time of MKL (`benchmarks/README.md`). Its
sums are float32 too, in another order.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

LEAST_PRODUCTS = 1 << 22  # of one model: below them what oneDNN prepares takes longer than it saves
LEAST_WIDTH = 16
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def is_wide(x: Tensor, weight: Tensor) -> bool:
    """Returns whether `x @ weight` is so large that oneDNN is faster: of a stack, where no weight is trained.

    Args:
        x: Rows `[model, row, d_in]`.
        weight: Matrices `[model, d_in, d_out]`.

    Example:
        >>> is_wide(torch.ones(1, 8, 64), torch.ones(1, 64, 64))
        False
    """
    trained = torch.is_grad_enabled() and weight.requires_grad
    plain = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    large = min(weight.shape[-2:]) >= LEAST_WIDTH and x.shape[-2] * weight[0].numel() >= LEAST_PRODUCTS
    return HAS_ONEDNN and large and plain and not trained and x.device.type == "cpu"


class WideAffine(torch.autograd.Function):
    """`x @ weight + bias` by oneDNN, differentiable by `x` as often as is asked."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "model row d_in"],
        weight: Float[Tensor, "model d_in d_out"],
        bias: Float[Tensor, "model d_out"] | None,
        transposed: bool,
    ) -> Float[Tensor, "model row d_out"]:
        """Returns `x @ weight + bias`, rows last in memory if `transposed`, which is a view."""
        ctx.weight = weight  # never trained here
        x, weight = x.contiguous(), weight.detach()
        if transposed:
            out = _products(weight.mT.contiguous(), x)
            return (out if bias is None else out.add_(bias[..., None])).mT
        # A matrix that is a part of another one's memory takes a hundred times as long.
        is_whole = weight.is_contiguous() or weight.mT.is_contiguous()
        return _products(x, (weight if is_whole else weight.contiguous()).mT, bias)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradient by `x`; weight and bias have none."""
        apply: Any = WideAffine.apply
        return apply(d_out, ctx.weight.mT, None, False), None, None, None


def _products(
    x: Float[Tensor, "model row d_in"],
    weight: Float[Tensor, "model d_out d_in"],
    bias: Float[Tensor, "model d_out"] | None = None,
) -> Float[Tensor, "model row d_out"]:
    biases = [None] * len(x) if bias is None else bias.contiguous()
    product: Any = torch.ops.mkldnn._linear_pointwise
    rows = [product(*one, "none", [], "") for one in zip(x, weight, biases, strict=True)]
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)
