"""Attention in a first layer, whose inputs are few: one for each token at each position.

A batch of B sequences over K tokens has B T vectors at the first layer but only K T different ones, those of
the K sequences that repeat one token. Queries, keys and values of these are enough: `exp` is taken of
`(K T)²` scores, not of `B T²`, and what a sequence reads is a matrix product of those weights with its own
one-hot tokens times the values. With two states and many sequences that is two to three times as fast as a
fused kernel on a CPU; with many states it is slower (`pays`). Two tokens that differ by one key and one value
take half of it: `mechmarkov.models.fast.two_tokens`.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.config import DecoderConfig

TINY = 1e-30  # of all weights in a row; tokens that are there have less, and their weights lost digits
CHUNK = 64  # query positions at a time: what is ahead of all of them is never computed
WEIGHTS = 1 << 18  # of so many at a time, which a core's cache holds


def adds_up(config: DecoderConfig) -> bool:
    """Whether there are two tokens, which differ by the same key and value at every position."""
    plain = config.positional_embedding_type in ("standard", "shortformer", "none")
    return config.d_vocab == 2 and config.normalization_type is None and plain


def pays(config: DecoderConfig, n_sequences: int) -> bool:
    """Whether it is faster than a fused kernel on a CPU, by measurement (`benchmarks/README.md`)."""
    if (
        config.n_ctx < 32
        or n_sequences < 4 * config.d_vocab
        or config.positional_embedding_type == "relative"
    ):
        return False
    narrow = config.d_vocab**2 * (config.d_head + 1) <= 64
    return narrow or (adds_up(config) and config.n_ctx >= 6 * config.d_head)


def attend_few(
    q: Float[Tensor, "*stack token head position d_head"],
    k: Float[Tensor, "*stack token head position d_head"],
    v: Float[Tensor, "*stack token head position d_head"],
    tokens: Int[Tensor, "*stack batch position"],
    scale: float,
    window: int | None = None,
) -> Float[Tensor, "*stack batch head position d_head"]:
    """What causal attention gives to sequences, from queries, keys and values of each token at each position.

    Args:
        q: Queries of the sequence that repeats token a, for every a.
        k: Keys.
        v: Values.
        tokens: The sequences.
        scale: What scores are multiplied by.
        window: Attention reaches so many positions back; None for all.
    """
    heads, lead = q.shape[-3], q.shape[:-4]
    q, k, v = (
        rearrange(x.reshape(-1, *x.shape[-4:]), "m a h t d -> (m h) (t a) d").contiguous() for x in (q, k, v)
    )
    hot = F.one_hot(tokens.reshape(-1, *tokens.shape[-2:]), q.shape[1] // tokens.shape[-1]).to(q.dtype)
    hot = repeat(hot, "m b t a -> (m h) t a b", h=heads).contiguous()
    few: Any = _Few  # torch's `apply` has no types
    z, total = few.apply(q * scale, k, v, hot, window)
    if bool((total < TINY).any()):
        z = _one_by_one(q, k, v, hot, scale, window)
    z = rearrange(z, "(m h) t b d -> m b h t d", h=heads)
    return z.reshape(*lead, *z.shape[1:])


def _one_by_one(q: Tensor, k: Tensor, v: Tensor, hot: Tensor, scale: float, window: int | None) -> Tensor:
    """The same, sequence by sequence, for scores so far apart that sums over all tokens lose the digits."""
    n_positions, n_tokens = hot.shape[1:3]
    q, k, v = (
        torch.einsum("mtad,mtab->mbtd", x.view(len(x), n_positions, n_tokens, -1), hot) for x in (q, k, v)
    )
    lag = torch.arange(n_positions, device=q.device)
    lag = lag[:, None] - lag
    allowed = (lag >= 0) & (lag <= (n_positions if window is None else window))
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)
    return rearrange(z, "m b t d -> m t b d")


def spans(n_positions: int, window: int | None) -> list[tuple[int, int, int]]:
    """Chunks of queries `[first, last)` and the first key that any of them reads."""
    starts = range(0, n_positions, CHUNK)
    return [(a, min(a + CHUNK, n_positions), 0 if window is None else max(0, a - window)) for a in starts]


def mask(n_queries: int, n_keys: int, tokens: tuple[int, int], window: int | None, like: Tensor) -> Tensor:
    """0 where the last queries may look at the last keys, else -inf: `[(query token), (key token)]`.

    So many rows a query and so many columns a key as `tokens` says.
    """
    return _mask(n_queries, n_keys, tokens, window, like.dtype, like.device)


@lru_cache(maxsize=64)
def _mask(
    n_queries: int,
    n_keys: int,
    tokens: tuple[int, int],
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    query = torch.arange(n_keys - n_queries, n_keys, device=device)
    lag = query[:, None] - torch.arange(n_keys, device=device)
    allowed = (lag >= 0) & (lag <= (n_keys if window is None else window))
    rows, columns = tokens
    scores = torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill(~allowed, -torch.inf)
    return repeat(scores, "t s -> (t a) (s c)", a=rows, c=columns)


class _Few(torch.autograd.Function):
    """`z [m, t, b, d]` and the sums of weights; gradients by hand, since autograd would keep every step."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, hot: Tensor, window: int | None
    ) -> tuple[Tensor, Tensor]:
        m, n_positions, K, B = hot.shape
        d = v.shape[-1]
        ones = F.pad(v.view(m, n_positions, K, 1, d), (0, 1), value=1.0)
        read = (hot[..., None] * ones).view(m, n_positions * K, B * (d + 1))
        weights = []
        total = q.new_empty(m, n_positions, B, d + 1)
        for a, b, first in spans(n_positions, window):
            # Without a window all but the chunk's own keys are behind all of its queries.
            masked = b - a if window is None else b - first
            blocked = mask(b - a, masked, (K, K), window, q)
            kept = q.new_empty(m, (b - a) * K, (b - first) * K)
            size = max(1, WEIGHTS // kept[0].numel())
            for i in range(0, m, size):
                some = slice(i, i + size)
                scores = torch.bmm(q[some, a * K : b * K], k[some, first * K : b * K].mT)
                scores[..., -masked * K :] += blocked
                # Over all tokens: a factor a row, which cancels in the quotient, and no exp overflows.
                w = torch.softmax(scores, -1, out=kept[some])
                summed = torch.bmm(w, read[some, first * K : b * K]).view(-1, b - a, K, B, d + 1)
                torch.sum(summed.mul_(hot[some, a:b, ..., None]), 2, out=total[some, a:b])
            weights.append(kept)
        z = total[..., :d] / total[..., d:]
        ctx.save_for_backward(q, k, v, hot, read, z, total, *weights)
        ctx.window = window
        ctx.mark_non_differentiable(total)
        return z, total[..., d]

    @staticmethod
    def backward(ctx: Any, dz: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, hot, read, z, total, *weights = ctx.saved_tensors
        m, n_positions, K, B = hot.shape
        d = v.shape[-1]
        d_total = torch.cat([dz, -(dz * z).sum(-1, keepdim=True)], -1) / total[..., d:]
        # Of queries and keys the transposed gradients: see `mechmarkov.models.fast.thin_gemm`.
        make = q.new_empty if ctx.window is None else q.new_zeros
        dq, dk, d_read = q.new_empty(q.mT.shape), make(k.mT.shape), make(read.shape)
        # The last first: without a window it reads every key, and there is nothing yet to add to.
        for (a, b, first), kept in reversed(list(zip(spans(n_positions, ctx.window), weights, strict=True))):
            whole = ctx.window is None and b == n_positions
            size = max(1, WEIGHTS // kept[0].numel())
            for i in range(0, m, size):
                some, queries, keys = slice(i, i + size), slice(a * K, b * K), slice(first * K, b * K)
                w = kept[some]
                d_summed = hot[some, a:b, ..., None] * d_total[some, a:b, None]
                d_summed = d_summed.view(-1, (b - a) * K, B * (d + 1))
                d_scores = torch.bmm(d_summed, read[some, keys].mT).mul_(w)
                dq[some, :, queries] = torch.bmm(k[some, keys].mT, d_scores.mT)
                if whole:
                    torch.bmm(w.mT, d_summed, out=d_read[some])
                    torch.bmm(q[some, queries].mT, d_scores, out=dk[some])
                else:
                    d_read[some, keys].baddbmm_(w.mT, d_summed)
                    dk[some, :, keys] += torch.bmm(q[some, queries].mT, d_scores)
        dv = (d_read.view(m, n_positions, K, B, d + 1)[..., :d] * hot[..., None]).sum(3)
        return dq.mT, dk.mT, dv.view_as(v), None, None
