"""Products of a stack on a CPU that are faster in another way than torch's: thin ones and wide ones.

A toy model multiplies thousands of tokens by matrices of 8 or 2 columns. As `tokens @ weight` that takes four
to seven times as long as the transposed product `weight^T @ tokens^T`, which has thousands of columns. The
result stays transposed in memory, so that sums of such results run along the tokens.

Products of many tokens with whole matrices are by oneDNN, which torch carries too. On AMD processors it takes
half of the time of MKL (`benchmarks/README.md`). Its sums are float32 too, in another order.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

THIN_COLUMNS = 8  # from 16 columns on both orders are equally fast


LEAST_PRODUCTS = 1 << 22  # of one model: below them what oneDNN prepares takes longer than it saves
LEAST_WIDTH = 16
# How oneDNN calls the activations of an MLP.
ACTIVATIONS = {
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "silu": ("swish", ""),
}
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


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
        return _products(x, _whole(weight).mT, bias)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradient by `x`; weight and bias have none."""
        apply: Any = WideAffine.apply
        return apply(d_out, ctx.weight.mT, None, False), None, None, None


def wide_mlp(
    x: Float[Tensor, "model row d_in"],
    W_in: Float[Tensor, "model d_in d_mlp"],
    b_in: Float[Tensor, "model d_mlp"],
    W_out: Float[Tensor, "model d_mlp d_out"],
    b_out: Float[Tensor, "model d_out"],
    act_fn: str,
    rows: int,
) -> Float[Tensor, "model row d_out"]:
    """Compute `act_fn(x @ W_in + b_in) @ W_out + b_out` while hidden units are in the cache; no gradients.

    Args:
        x: Rows for which `is_wide` holds.
        W_in: Matrices of the hidden units.
        b_in: Their biases.
        W_out: Matrices that read the hidden units.
        b_out: Their biases.
        act_fn: The activation, as `DecoderConfig.act_fn` calls it.
        rows: How many rows of a model at once.

    Example:
        >>> x, weight, bias = torch.ones(1, 2, 16), torch.ones(1, 16, 16), torch.zeros(1, 16)
        >>> wide_mlp(x, weight, bias, -weight, bias, "relu", 1).unique()
        tensor([-256.])
    """
    product: Any = torch.ops.mkldnn._linear_pointwise
    out = x.new_empty(*x.shape[:2], W_out.shape[-1])
    readers, writers = _whole(W_in.detach()).mT, _whole(W_out.detach()).mT
    then, how = ACTIVATIONS[act_fn]
    for own, *weights, written in zip(x, readers, b_in.detach(), writers, b_out.detach(), out, strict=True):
        reader, bias, writer, last = weights
        for some, place in zip(own.split(rows), written.split(rows), strict=True):
            hidden = product(some.contiguous(), reader, bias, then, [], how)
            place.copy_(product(hidden, writer, last, "none", [], ""))
    return out


def _whole(weight: Tensor) -> Tensor:
    """Returns matrices in memory of their own: parts of another one's take a hundred times as long."""
    return weight if weight.is_contiguous() or weight.mT.is_contiguous() else weight.contiguous()


def _products(
    x: Float[Tensor, "model row d_in"],
    weight: Float[Tensor, "model d_out d_in"],
    bias: Float[Tensor, "model d_out"] | None = None,
) -> Float[Tensor, "model row d_out"]:
    biases = [None] * len(x) if bias is None else bias.contiguous()
    product: Any = torch.ops.mkldnn._linear_pointwise
    rows = [product(*one, "none", [], "") for one in zip(x, weight, biases, strict=True)]
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)
