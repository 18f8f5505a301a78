"""Causal attention of small heads, a block of queries of some sequences at a time.

A toy head has 4 to 16 numbers, and torch's fused kernel multiplies tiles of that width. Here a product has as
many columns as a block has keys (`thin_gemm`), and weights stay in a core's cache between the products. They
are powers of two without a maximum in front, which take a third of the time of `exp`: as long as a row's sum
is an ordinary number, no digit is lost. Where one is not, torch's kernel computes all of it.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechmarkov.models.fast.thin_gemm import thin_matmul

QUERIES = 64  # of a block: keys ahead of all of them are never computed
CACHED_WEIGHTS = 1 << 19  # of a block of some sequences: two megabytes
LARGEST_SUM = 2.0**64  # of a row's weights; the smallest is one over it


def attend_in_blocks(
    q: Float[Tensor, "*batch position d_head"],
    k: Float[Tensor, "*batch position d_head"],
    v: Float[Tensor, "*batch position d_head"],
    scale: float,
) -> Float[Tensor, "*batch position d_head"]:
    """Causal attention; `scale` is what scores are multiplied by."""
    lead = q.shape[:-2]
    q, k, v = (_flat(x) for x in (q, k, v))
    apply: Any = _BlockAttention.apply  # torch's `apply` has no types
    z, total = apply(q, k, v, scale)
    if not bool(((total > 1 / LARGEST_SUM) & (total < LARGEST_SUM)).all()):
        q, k, v = (x[:, None].contiguous() for x in (q, k, v))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)[:, 0]
    return z.view(*lead, *z.shape[1:])


def _flat(x: Tensor) -> Tensor:
    """`[sequence, position, d_head]`, positions last in memory if they are now."""
    if x.stride(-1) == 1:
        return x.reshape(-1, *x.shape[-2:])
    return x.mT.reshape(-1, x.shape[-1], x.shape[-2]).mT


class _BlockAttention(torch.autograd.Function):
    """`z` and the sums of weights `[sequence, position, 1]`; backward computes the weights again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        z, total = torch.empty_like(q), q.new_empty(*q.shape[:2], 1)
        scaled, memory = q * (scale * math.log2(math.e)), q.new_empty(_memory(q))
        for some, a, b in _blocks(q):
            weights = _weights(scaled, k, some, a, b, memory)
            torch.sum(weights, -1, keepdim=True, out=total[some, a:b])
            torch.div(thin_matmul(weights, v[some, :b]), total[some, a:b], out=z[some, a:b])
        ctx.save_for_backward(q, k, v, scaled, z, total)
        ctx.scale = scale
        ctx.mark_non_differentiable(total)
        return z, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, scaled, z, total = ctx.saved_tensors
        d_sum = dz / total
        of_row = (d_sum * z).sum(-1, keepdim=True)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        memory, d_memory = (q.new_empty(_memory(q)) for _ in range(2))
        for some, a, b in _blocks(q):
            weights = _weights(scaled, k, some, a, b, memory)
            d_scores = d_memory[: weights.numel()].view_as(weights)
            torch.bmm(d_sum[some, a:b], v[some, :b].mT, out=d_scores).sub_(of_row[some, a:b]).mul_(weights)
            dq[some, a:b] = thin_matmul(d_scores, k[some, :b])
            of_keys = thin_matmul(d_scores.mT, q[some, a:b])
            of_values = thin_matmul(weights.mT, d_sum[some, a:b])
            if b == q.shape[1]:  # the last queries come first, and read every key
                dk[some], dv[some] = of_keys, of_values
            else:
                dk[some, :b] += of_keys
                dv[some, :b] += of_values
        return dq.mul_(ctx.scale), dk.mul_(ctx.scale), dv, None


def _weights(scaled: Tensor, k: Tensor, some: slice, a: int, b: int, memory: Tensor) -> Tensor:
    """The weights of queries `[a, b)` before they are divided by their sums, 0 ahead of a query."""
    n = len(scaled[some])
    weights = memory[: n * (b - a) * b].view(n, b - a, b)
    torch.bmm(scaled[some, a:b], k[some, :b].mT, out=weights).exp2_()
    weights[..., a:].tril_()
    return weights


def _blocks(q: Tensor) -> Iterator[tuple[slice, int, int]]:
    """Sequences, and queries `[a, b)` of them, the last ones first."""
    n, length, _ = q.shape
    size = _at_once(length)
    starts = range(0, length, QUERIES)[::-1]
    return ((slice(i, i + size), a, min(a + QUERIES, length)) for i in range(0, n, size) for a in starts)


def _at_once(length: int) -> int:
    """Sequences of a block."""
    return max(1, CACHED_WEIGHTS // (min(QUERIES, length) * length))


def _memory(q: Tensor) -> int:
    """The most weights of a block."""
    return min(len(q), _at_once(q.shape[1])) * min(QUERIES, q.shape[1]) * q.shape[1]
