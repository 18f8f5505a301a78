"""Attention of a first layer from the table of its inputs: token × position.

A batch of B sequences over K tokens has B T vectors at the first layer, but only K T different ones: those of
the K sequences that repeat one token. Their queries, keys and values are enough. `exp` is taken of `(K T)²`
scores, not of `B T²`. What a sequence reads is a product of these weights with its one-hot tokens times the
values. With two states and many sequences that is two to three times as fast as SDPA on a CPU; with many
states it is slower.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.causal_mask import causal_mask

MIN_PRESENT_WEIGHT = 1e-30  # share of a row's weights; below it those of tokens that are present lost digits
QUERY_CHUNK = 64  # positions at a time: keys ahead of all of them are never computed
CACHED_WEIGHTS = 1 << 18  # elements at a time, which a core's cache holds


def attend_by_table(
    q: Float[Tensor, "*stack token head position d_head"],
    k: Float[Tensor, "*stack token head position d_head"],
    v: Float[Tensor, "*stack token head position d_head"],
    tokens: Int[Tensor, "*stack batch position"],
    scale: float,
    window: int | None = None,
) -> Float[Tensor, "*stack batch head position d_head"]:
    """Causal attention of sequences, from the queries, keys and values of each token at each position.

    Args:
        q: Queries of the sequence that repeats token a, for every a.
        k: Its keys.
        v: Its values.
        tokens: The sequences.
        scale: What scores are multiplied by.
        window: How many positions back attention reaches; None for all.
    """
    heads, lead = q.shape[-3], q.shape[:-4]
    q, k, v = (
        rearrange(x.reshape(-1, *x.shape[-4:]), "m a h t d -> (m h) (t a) d").contiguous() for x in (q, k, v)
    )
    one_hot = F.one_hot(tokens.reshape(-1, *tokens.shape[-2:]), q.shape[1] // tokens.shape[-1]).to(q.dtype)
    one_hot = repeat(one_hot, "m b t a -> (m h) t a b", h=heads).contiguous()
    apply: Any = _TableAttention.apply  # torch's `apply` has no types
    z, total = apply(q * scale, k, v, one_hot, window)
    if bool((total < MIN_PRESENT_WEIGHT).any()):
        z = _by_sequence(q, k, v, one_hot, scale, window)
    z = rearrange(z, "(m h) t b d -> m b h t d", h=heads)
    return z.reshape(*lead, *z.shape[1:])


def _by_sequence(
    q: Tensor, k: Tensor, v: Tensor, one_hot: Tensor, scale: float, window: int | None
) -> Tensor:
    """The same by SDPA, for scores so far apart that sums over all tokens lose the digits."""
    n_positions, n_tokens = one_hot.shape[1:3]
    q, k, v = (
        torch.einsum("mtad,mtab->mbtd", x.view(len(x), n_positions, n_tokens, -1), one_hot) for x in (q, k, v)
    )
    allowed = causal_mask(n_positions, n_positions, window, q.device)
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)
    return rearrange(z, "m b t d -> m t b d")


def tiles(
    n_members: int, n_positions: int, weights_per_pair: int, window: int | None
) -> list[tuple[slice, int, int, int]]:
    """Members, a chunk of queries `[first, last)`, and the first key that any of them reads.

    The weights of a tile, `weights_per_pair` for each pair of positions, fit a core's cache.
    """
    size = max(1, CACHED_WEIGHTS // (weights_per_pair * min(QUERY_CHUNK, n_positions) * n_positions))
    back = n_positions if window is None else window
    return [
        (slice(i, i + size), a, min(a + QUERY_CHUNK, n_positions), max(0, a - back))
        for i in range(0, n_members, size)
        for a in range(0, n_positions, QUERY_CHUNK)
    ]


@lru_cache(maxsize=64)
def score_mask(
    n_queries: int,
    n_keys: int,
    tokens: tuple[int, int],
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Float[Tensor, "query_token key_token"]:
    """0 where the last queries may attend to the last keys, else -inf.

    A query has `tokens[0]` rows, one for each of its tokens; a key has `tokens[1]` columns.
    """
    allowed = causal_mask(n_queries, n_keys, window, device)
    scores = torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill(~allowed, -torch.inf)
    return repeat(scores, "t s -> (t a) (s c)", a=tokens[0], c=tokens[1])


class _TableAttention(torch.autograd.Function):
    """`z [m, t, b, d]` and the sums of weights; gradients by hand, since autograd would keep every step."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, one_hot: Tensor, window: int | None
    ) -> tuple[Tensor, Tensor]:
        m, n_positions, K, B = one_hot.shape
        d = v.shape[-1]
        ones = F.pad(v.view(m, n_positions, K, 1, d), (0, 1), value=1.0)
        read = (one_hot[..., None] * ones).view(m, n_positions * K, B * (d + 1))
        weights = []
        total = q.new_empty(m, n_positions, B, d + 1)
        for some, a, b, first in tiles(m, n_positions, K**2, window):
            # Without a window all but the chunk's own keys are behind all of its queries.
            masked = b - a if window is None else b - first
            w = torch.bmm(q[some, a * K : b * K], k[some, first * K : b * K].mT)
            w[..., -masked * K :] += score_mask(b - a, masked, (K, K), window, q.dtype, q.device)
            # Over all tokens: a factor a row, which cancels in the quotient, and no exp overflows.
            torch.softmax(w, -1, out=w)
            summed = torch.bmm(w, read[some, first * K : b * K]).view(-1, b - a, K, B, d + 1)
            torch.sum(summed.mul_(one_hot[some, a:b, ..., None]), 2, out=total[some, a:b])
            weights.append(w)
        z = total[..., :d] / total[..., d:]
        ctx.save_for_backward(q, k, v, one_hot, read, z, total, *weights)
        ctx.window = window
        ctx.mark_non_differentiable(total)
        return z, total[..., d]

    @staticmethod
    def backward(ctx: Any, dz: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, one_hot, read, z, total, *weights = ctx.saved_tensors
        m, n_positions, K, B = one_hot.shape
        d = v.shape[-1]
        d_total = torch.cat([dz, -(dz * z).sum(-1, keepdim=True)], -1) / total[..., d:]
        # Of queries and keys the transposed gradients: see `mechmarkov.models.fast.thin_gemm`.
        make = q.new_empty if ctx.window is None else q.new_zeros
        dq, dk, d_read = q.new_empty(q.mT.shape), make(k.mT.shape), make(read.shape)
        # In reverse: without a window the last chunk reads every key, and there is nothing yet to add to.
        chunks = tiles(m, n_positions, K**2, ctx.window)
        for (some, a, b, first), w in reversed(list(zip(chunks, weights, strict=True))):
            queries, keys = slice(a * K, b * K), slice(first * K, b * K)
            d_summed = one_hot[some, a:b, ..., None] * d_total[some, a:b, None]
            d_summed = d_summed.view(-1, (b - a) * K, B * (d + 1))
            d_scores = torch.bmm(d_summed, read[some, keys].mT).mul_(w)
            dq[some, :, queries] = torch.bmm(k[some, keys].mT, d_scores.mT)
            if ctx.window is None and b == n_positions:
                torch.bmm(w.mT, d_summed, out=d_read[some])
                torch.bmm(q[some, queries].mT, d_scores, out=dk[some])
            else:
                d_read[some, keys].baddbmm_(w.mT, d_summed)
                dk[some, :, keys] += torch.bmm(q[some, queries].mT, d_scores)
        dv = (d_read.view(m, n_positions, K, B, d + 1)[..., :d] * one_hot[..., None]).sum(3)
        return dq.mT, dk.mT, dv.view_as(v), None, None
