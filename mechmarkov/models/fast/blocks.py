"""Causal attention of small heads, a block of queries of some sequences at a time.

A toy head has 4 to 8 numbers, and torch's fused kernel multiplies tiles of that width. Here positions are
last in memory, so that a product has as many columns as a block has keys or queries. Weights stay in a core's
cache between the products. They are powers of two without a maximum in front, which take a third of the time
of `exp`: as long as a row's sum is an ordinary number, no digit is lost. Where one is not, torch's kernel
computes all of it.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

QUERIES = 64  # of a block: keys ahead of all of them are never computed
CACHED_WEIGHTS = 1 << 18  # of a block of some sequences: a megabyte, and another for their gradients
LARGEST_SUM = 2.0**64  # of a row's weights; the smallest is one over it

Block = tuple[int, slice, slice, slice]  # a head of a model, some sequences, queries, and the keys they read


def attend_in_blocks(
    q: Float[Tensor, "*stack batch head position d_head"],
    k: Float[Tensor, "*stack batch head position d_head"],
    v: Float[Tensor, "*stack batch head position d_head"],
    scale: float,
) -> Float[Tensor, "*stack batch head position d_head"]:
    """Causal attention; `scale` is what scores are multiplied by. Best with positions last in memory."""
    shape = q.shape
    q, k, v = (_by_head(x) for x in (q, k, v))
    apply: Any = _BlockAttention.apply  # torch's `apply` has no types
    z, total = apply(q, k, v, scale)
    if not bool(((total > 1 / LARGEST_SUM) & (total < LARGEST_SUM)).all()):
        q, k, v = (rearrange(x, "m d b p -> m b p d").contiguous() for x in (q, k, v))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        z = rearrange(z, "m b p d -> m d b p")
    return rearrange(z, "(m h) d b p -> m b h p d", h=shape[-3]).reshape(shape)


def _by_head(x: Tensor) -> Float[Tensor, "model_head d_head batch position"]:
    return rearrange(x.reshape(-1, *x.shape[-4:]), "m b h p d -> (m h) d b p").contiguous()


class _BlockAttention(torch.autograd.Function):
    """`z` and the sums of weights, `[model_head, 1, batch, position]`; backward computes weights again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        z, total = torch.empty_like(q), torch.empty_like(q[:, :1])
        scaled, memory = q * (scale * math.log2(math.e)), q.new_empty(_memory(q))
        for block in _blocks(q):
            weights = _weights(scaled, k, block, memory)
            sums = _of_queries(total, block).copy_(weights.sum(-1).unsqueeze(1))
            torch.div(torch.bmm(_of_keys(v, block), weights.mT), sums, out=_of_queries(z, block))
        ctx.save_for_backward(q, k, v, scaled, z, total)
        ctx.scale = scale
        ctx.mark_non_differentiable(total)
        return z, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, scaled, z, total = ctx.saved_tensors
        d_sum = dz / total
        of_row = (d_sum * z).sum(1, keepdim=True)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        memory, d_memory = (q.new_empty(_memory(q)) for _ in range(2))
        for block in _blocks(q):
            weights, slopes = _weights(scaled, k, block, memory), _of_queries(d_sum, block)
            d_scores = d_memory[: weights.numel()].view_as(weights)
            torch.bmm(slopes.mT, _of_keys(v, block), out=d_scores)
            d_scores.sub_(_of_queries(of_row, block).mT).mul_(weights)
            _of_queries(dq, block).copy_(torch.bmm(_of_keys(k, block), d_scores.mT))
            of_keys, of_values = torch.bmm(_of_queries(q, block), d_scores), torch.bmm(slopes, weights)
            if of_keys.shape[-1] == q.shape[-1]:  # the last queries come first, and read every key
                _of_keys(dk, block).copy_(of_keys)
                _of_keys(dv, block).copy_(of_values)
            else:
                _of_keys(dk, block).add_(of_keys)
                _of_keys(dv, block).add_(of_values)
        return dq.mul_(ctx.scale), dk.mul_(ctx.scale), dv, None


def _weights(scaled: Tensor, k: Tensor, block: Block, memory: Tensor) -> Float[Tensor, "some query key"]:
    """The weights of a block before they are divided by their sums, 0 ahead of a query."""
    queries, keys = _of_queries(scaled, block), _of_keys(k, block)
    n, first = queries.shape[-1], keys.shape[-1] - queries.shape[-1]
    weights = memory[: len(queries) * n * keys.shape[-1]].view(len(queries), n, -1)
    torch.bmm(queries.mT, keys, out=weights).exp2_()
    weights[..., first:].tril_()
    return weights


def _blocks(q: Tensor) -> Iterator[Block]:
    """The blocks of all heads, the last queries of a sequence first."""
    heads, _, batch, length = q.shape
    size = _at_once(length)
    for head, start, a in product(range(heads), range(0, batch, size), range(0, length, QUERIES)[::-1]):
        b = min(a + QUERIES, length)
        yield head, slice(start, start + size), slice(a, b), slice(b)


def _of_queries(x: Tensor, block: Block) -> Float[Tensor, "some d_head query"]:
    head, some, queries, _ = block
    return x[head, :, some, queries].transpose(0, 1)


def _of_keys(x: Tensor, block: Block) -> Float[Tensor, "some d_head key"]:
    head, some, _, keys = block
    return x[head, :, some, keys].transpose(0, 1)


def _at_once(length: int) -> int:
    """Sequences of a block."""
    return max(1, CACHED_WEIGHTS // (min(QUERIES, length) * length))


def _memory(q: Tensor) -> int:
    """The most weights of a block."""
    batch, length = q.shape[-2:]
    return min(batch, _at_once(length)) * min(QUERIES, length) * length
