"""Attention of a first layer over two tokens that differ by the same key and value at every position.

Without a norm and without rotation, `dk = k[1, s] - k[0, s]` and `dv = v[1, s] - v[0, s]` are the same for
all s. One table of weights over positions then serves both tokens: a key of token 1 weighs `odds = exp(q .
dk)` times what it would weigh as token 0. With `w_s = softmax_s(q . k[0, s])` and x the tokens,

    total = 1 + (odds - 1) sum_s w_s x_s
    z = (sum_s w_s v[0, s] + (odds - 1) sum_s w_s x_s v[0, s] + odds dv sum_s w_s x_s) / total.

These are half the products of `mechmarkov.models.fast.input_table`, which has a table for each token of the
key. Positions are the last axis, so that the innermost loop never runs over a factor that all entries of a
value share.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.fast.input_table import attend_by_table, score_mask, tiles

MIN_ODDS = 1 / 16  # below, `total` is a small difference of sums near 1: more than one digit is lost
MAX_ODDS = 1e15  # float32 holds far more


def attend_binary(
    q: Float[Tensor, "*stack token=2 head position d_head"],
    k: Float[Tensor, "*stack token=2 head position d_head"],
    v: Float[Tensor, "*stack token=2 head position d_head"],
    tokens: Int[Tensor, "*stack batch position"],
    scale: float,
    window: int | None = None,
) -> Float[Tensor, "*stack batch head position d_head"]:
    """Causal attention of sequences of two tokens; arguments are those of `attend_by_table`.

    Where the odds are so far from 1 that digits would be lost, `attend_by_table` computes it.
    """
    heads, lead = q.shape[-3], q.shape[:-4]
    by_token = [rearrange(x.reshape(-1, *x.shape[-4:]), "m a h t d -> a (m h) d t") for x in (q, k, v)]
    queries = rearrange(by_token[0], "a m d t -> m a t d").contiguous() * scale
    (k0, k1), (v0, v1) = by_token[1:]
    odds = (queries @ (k1 - k0)[:, None, :, :1]).exp()[..., 0]
    if not bool(((odds > MIN_ODDS) & (odds < MAX_ODDS)).all()):
        return attend_by_table(q, k, v, tokens, scale, window)
    # One sequence more, of token 1 alone: what it reads is the sum over all keys.
    x = F.pad(tokens.reshape(-1, *tokens.shape[-2:]), (0, 0, 0, 1), value=1).to(q.dtype)
    x = x.repeat_interleave(heads, 0).unsqueeze(1)
    apply: Any = _BinaryAttention.apply  # torch's `apply` has no types
    z = apply(queries, k0.contiguous(), v0, (v1 - v0)[:, :, 0], odds, x, window)
    z = rearrange(z, "(m h) d b t -> m b h t d", h=heads)
    return z.reshape(*lead, *z.shape[1:])


class _BinaryAttention(torch.autograd.Function):
    """`z [m, d, b, t]` of `x [m, 1, b + 1, t]`; gradients by hand, since autograd would keep every step.

    Sums over keys are of e = d + 1 numbers, a value's and a 1, whose sums are those of the weights. Queries
    are `[m, token, t, d]`, keys and values `[m, d, t]`, odds `[m, token, t]`.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, dv: Tensor, odds: Tensor, x: Tensor, window: int | None
    ) -> Tensor:
        m, _, B, n = x.shape
        e = v.shape[1] + 1
        held = (x * F.pad(v, (0, 0, 0, 1), value=1.0)[:, :, None]).flatten(1, 2)  # what keys with a 1 hold
        sums, everywhere = q.new_empty(m, e, B - 1, n), q.new_empty(m, e, 2, n)
        weights, x = [], x[:, :, :-1]
        for some, a, b, first in tiles(m, n, 2, window):
            w = torch.bmm(q[some, :, a:b].flatten(1, 2), k[some, :, first:b])
            masked = b - a if window is None else b - first
            mask = score_mask(b - a, masked, (1, 1), window, q.dtype, q.device)
            w.view(-1, 2, b - a, b - first)[..., -masked:] += mask
            torch.softmax(w, -1, out=w)
            read = torch.bmm(held[some, :, first:b], w.mT).view(-1, e, B, 2, b - a)
            everywhere[some, ..., a:b] = read[:, :, -1]
            torch.lerp(read[:, :, :-1, 0], read[:, :, :-1, 1], x[some, ..., a:b], out=sums[some, ..., a:b])
            weights.append(w)
        odds = torch.lerp(odds[:, None, :1], odds[:, None, 1:], x)
        out = torch.lerp(everywhere[:, :, :1], everywhere[:, :, 1:], x).addcmul_(odds - 1, sums)
        out[:, :-1].addcmul_(odds * sums[:, -1:], dv[:, :, None, None])
        total = out[:, -1:]
        z = out[:, :-1] / total
        ctx.save_for_backward(q, k, dv, odds, x, held, sums, z, total, *weights)
        ctx.window = window
        return z

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        q, k, dv, odds, x, held, sums, z, total, *weights = ctx.saved_tensors
        m, d, B, n = z.shape
        d_out = z.new_empty(m, d + 1, B, n)
        d_z, d_total = d_out[:, :-1], d_out[:, -1:]
        torch.div(dz, total, out=d_z)
        torch.sum(d_z * z, 1, keepdim=True, out=d_total).neg_()
        along = torch.einsum("mdbt,md->mbt", d_z, dv).unsqueeze(1)
        share = sums[:, -1:]
        d_dv = torch.einsum("mdbt,mbt->md", d_z, (odds * share)[:, 0])
        d_odds = _by_token((sums * d_out).sum(1, keepdim=True).addcmul_(share, along), x)[:, 0]
        d_read = z.new_empty(m, d + 1, B + 1, 2, n)
        d_read[:, :, -1] = _by_token(d_out, x)
        d_out *= odds - 1
        d_total.addcmul_(odds, along)
        torch.mul(d_out, x, out=d_read[:, :, :-1, 1])
        torch.sub(d_out, d_read[:, :, :-1, 1], out=d_read[:, :, :-1, 0])
        make = z.new_empty if ctx.window is None else z.new_zeros
        dq, dk, d_held = q.new_empty(m, 2, d, n), make(k.shape), make(held.shape)
        # In reverse: without a window the last chunk reads every key, and there is nothing yet to add to.
        chunks = tiles(m, n, 2, ctx.window)
        for (some, a, b, first), w in reversed(list(zip(chunks, weights, strict=True))):
            keys = slice(first, b)
            by_query = d_read[some, ..., a:b].flatten(3, 4).flatten(1, 2)
            d_scores = torch.bmm(by_query.mT, held[some, :, keys]).mul_(w)
            of_queries = torch.bmm(k[some, :, keys], d_scores.mT)  # transposed: see `thin_gemm`
            dq[some, ..., a:b] = of_queries.view(-1, d, 2, b - a).transpose(1, 2)
            of_keys = torch.bmm(q[some, :, a:b].flatten(1, 2).mT, d_scores)
            if ctx.window is None and b == n:
                dk[some] = of_keys
                torch.bmm(by_query, w, out=d_held[some])
            else:
                dk[some, :, keys] += of_keys
                d_held[some, :, keys].baddbmm_(by_query, w)
        of_values = (d_held.view(m, d + 1, B + 1, n)[:, :-1, :-1] * x).sum(2)
        of_values += d_held.view(m, d + 1, B + 1, n)[:, :-1, -1]
        return dq.mT, dk, of_values, d_dv, d_odds, None, None


def _by_token(gradient: Tensor, x: Tensor) -> Tensor:
    """`[m, e, b, t]` summed over the sequences that have a 0, and those that have a 1: `[m, e, token, t]`."""
    of_ones = (gradient * x).sum(2)
    return torch.stack([gradient.sum(2) - of_ones, of_ones], 2)
