"""Attention of a first layer over two tokens that differ by the same key and value at every position.

Without a norm and without rotation, `dk = k[1, s] - k[0, s]` and `dv = v[1, s] - v[0, s]` are the same for
all s. One table of weights over positions then serves both tokens: a key of token 1 weighs `odds = exp(q .
dk)` times what it would weigh as token 0. With `w_s = softmax_s(q . k[0, s])` and x the tokens,

    total = 1 + (odds - 1) sum_s w_s x_s
    z = (sum_s w_s v[0, s] + (odds - 1) sum_s w_s x_s v[0, s] + odds dv sum_s w_s x_s) / total.

These are half the products of `mechmarkov.models.fast.input_table`, which has a table for each token of the
key.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
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
    by_token = [rearrange(x.reshape(-1, *x.shape[-4:]), "m a h t d -> a (m h) t d") for x in (q, k, v)]
    queries = rearrange(by_token[0], "a m t d -> m (t a) d") * scale
    (k0, k1), (v0, v1) = by_token[1:]
    odds = torch.bmm(queries, (k1 - k0)[:, 0, :, None]).exp().view(len(queries), -1, 2)
    if not bool(((odds > MIN_ODDS) & (odds < MAX_ODDS)).all()):
        return attend_by_table(q, k, v, tokens, scale, window)
    x = repeat(tokens.reshape(-1, *tokens.shape[-2:]), "m b t -> (m h) t 1 b", h=heads).to(q.dtype)
    apply: Any = _BinaryAttention.apply  # torch's `apply` has no types
    z = apply(queries, k0.contiguous(), v0, (v1 - v0)[:, 0], odds, x, window)
    z = rearrange(z, "(m h) t d b -> m b h t d", h=heads)
    return z.reshape(*lead, *z.shape[1:])


class _BinaryAttention(torch.autograd.Function):
    """`z [m, t, d, b]` of `x [m, t, 1, b]`; gradients by hand, since autograd would keep every step.

    Sums over keys are of e = d + 1 numbers, a value's and a 1, whose sums are those of the weights.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, dv: Tensor, odds: Tensor, x: Tensor, window: int | None
    ) -> Tensor:
        m, n, _, B = x.shape
        e = v.shape[-1] + 1
        v = F.pad(v, (0, 1), value=1.0)
        held = (x * v[..., None]).view(m, n, e * B)  # what keys with a 1 hold
        ones, everywhere = q.new_empty(m, n, e, B), q.new_empty(m, n, 2, e, 1)
        weights = []
        for some, a, b, first in tiles(m, n, 2, window):
            w = torch.bmm(q[some, 2 * a : 2 * b], k[some, first:b].mT)
            masked = b - a if window is None else b - first
            w[..., -masked:] += score_mask(b - a, masked, (2, 1), window, q.dtype, q.device)
            torch.softmax(w, -1, out=w)
            by_query = torch.bmm(w, held[some, first:b]).view(-1, b - a, 2, e, B)
            torch.lerp(by_query[:, :, 0], by_query[:, :, 1], x[some, a:b], out=ones[some, a:b])
            over_all = torch.bmm(v[some, first:b].mT, w.mT).mT  # transposed: see `thin_gemm`
            everywhere[some, a:b] = over_all.view(-1, b - a, 2, e, 1)
            weights.append(w)
        odds = torch.lerp(odds[:, :, None, :1], odds[:, :, None, 1:], x)
        out = torch.lerp(everywhere[:, :, 0], everywhere[:, :, 1], x).addcmul_(odds - 1, ones)
        out[:, :, :-1].addcmul_(odds * ones[:, :, -1:], dv[:, None, :, None])
        total = out[:, :, -1:].contiguous()
        z = out[:, :, :-1] / total
        ctx.save_for_backward(q, k, v, dv, odds, x, held, ones, z, total, *weights)
        ctx.window = window
        return z

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, dv, odds, x, held, ones, z, total, *weights = ctx.saved_tensors
        m, n, d, B = z.shape
        d_out = z.new_empty(m, n, d + 1, B)
        d_z, d_total = d_out[:, :, :-1], d_out[:, :, -1:]
        torch.div(dz, total, out=d_z)
        torch.sum(d_z * z, 2, keepdim=True, out=d_total).neg_()
        along = (d_z * dv[:, None, :, None]).sum(2, keepdim=True)
        share = ones[:, :, -1:]
        d_dv = (d_z * (odds * share)).sum((1, 3))
        d_odds = _by_token((ones * d_out).sum(2, keepdim=True).addcmul_(share, along), x)[..., 0]
        d_everywhere = _by_token(d_out, x).view(m, 2 * n, d + 1)
        d_out *= odds - 1
        d_total.addcmul_(odds, along)
        d_ones = z.new_empty(m, n, 2, d + 1, B)
        torch.mul(d_out, x, out=d_ones[:, :, 1])
        torch.sub(d_out, d_ones[:, :, 1], out=d_ones[:, :, 0])
        d_ones = d_ones.view(m, 2 * n, -1)
        make = z.new_empty if ctx.window is None else z.new_zeros
        dq, dk, dv_t = z.new_empty(q.mT.shape), make(k.mT.shape), make(v.mT.shape)
        d_held = make(held.shape)
        # In reverse: without a window the last chunk reads every key, and there is nothing yet to add to.
        chunks = tiles(m, n, 2, ctx.window)
        for (some, a, b, first), w in reversed(list(zip(chunks, weights, strict=True))):
            queries, keys = slice(2 * a, 2 * b), slice(first, b)
            by_query, over_all = d_ones[some, queries], d_everywhere[some, queries]
            d_scores = torch.bmm(by_query, held[some, keys].mT)
            d_scores.baddbmm_(over_all, v[some, keys].mT).mul_(w)
            dq[some, :, queries] = torch.bmm(k[some, keys].mT, d_scores.mT)
            if ctx.window is None and b == n:
                torch.bmm(w.mT, by_query, out=d_held[some])
                torch.bmm(over_all.mT, w, out=dv_t[some])
                torch.bmm(q[some, queries].mT, d_scores, out=dk[some])
            else:
                d_held[some, keys].baddbmm_(w.mT, by_query)
                dv_t[some, :, keys] += torch.bmm(over_all.mT, w)
                dk[some, :, keys] += torch.bmm(q[some, queries].mT, d_scores)
        of_values = (d_held.view(m, n, d + 1, B)[:, :, :-1] * x).sum(3).add_(dv_t[:, :-1].mT)
        return dq.mT, dk.mT, of_values, d_dv, d_odds, None, None


def _by_token(gradient: Tensor, x: Tensor) -> Tensor:
    """`[m, t, e, b]` summed over the sequences that have a 0, and those that have a 1: `[m, t, token, e]`."""
    of_ones = (gradient * x).sum(-1)
    return torch.stack([gradient.sum(-1) - of_ones, of_ones], 2)
