"""Induction circuits set by hand, and heads that resemble one: models whose circuit is known.

Attention only, no norms. The residual stream has a block for the token, one for the position, one for each
token that the first layer carries over, and one for the output, which is unembedded.
"""

from collections.abc import Sequence
from typing import Any

import torch

from mechmarkov.models.constructions.lookup_tables import SHARP, embedding_frame
from mechmarkov.models.decoder import HookedDecoder


@torch.no_grad()
def induction_pair(
    n_states: int,
    n_ctx: int,
    *,
    lags: Sequence[int] = (1,),
    gain: float = 4.0,
    readers: int = 1,
    only_after: Sequence[int] | None = None,
) -> HookedDecoder:
    """Heads that carry tokens over, and an induction head in the second layer that reads them by its keys.

    Head j of the first layer writes the token `lags[j]` back. The second layer's head 0 attends uniformly to
    the keys for which all these tokens are those the query ends in: with `lags = (1,)` the keys that follow
    a copy of the current token, the induction circuit of Olsson et al. (2022); with `(1, 2)` those that
    follow a copy of the last two tokens (order-k induction, Rajaraman et al. 2024). `(2,)` is a wrong one:
    it compares the current token with the token two before the key. Where no key matches, attention is
    uniform over all keys that have such tokens (with several lags, over those that match most of them).

    Args:
        n_states: The number of states of the source.
        n_ctx: Length of the context.
        lags: How far back the heads of the first layer attend.
        gain: Logits are this times the attention-weighted frequency of each token.
        readers: How many heads of the second layer do so, each with an equal part of the gain.
        only_after: The states of the current token that look for a match; by default all. After others
            attention is uniform over the keys that have such tokens.

    Raises:
        ValueError: If no head of the first layer carries over a token that the query needs.

    Example:
        >>> model = induction_pair(3, n_ctx=6)
        >>> model(torch.tensor([[0, 1, 0, 2, 0]]))[0, -1].round(decimals=4).tolist()
        [0.0, 2.0, 2.0]
    """
    n, k = n_states, len(lags)
    carried = {lag: n + n_ctx + n * j for j, lag in enumerate(lags)}  # where each block begins
    ends_in = [lag - lags[0] for lag in lags]
    for offset in ends_in:
        if offset and offset not in carried:
            raise ValueError(f"lags are {list(lags)}, expected one of them to be {offset}")
    written = n + n_ctx + n * k
    d_head = max(n, n_ctx, n * k + 1)
    shape = {"n_layers": 2, "n_heads": max(k, readers), "d_model": written + n, "d_head": d_head}
    decoder = embedding_frame(n, n_ctx, positions=n, output=written, **shape)
    states, positions = torch.arange(n), torch.arange(n_ctx)
    mixers: list[Any] = [block.attn for block in decoder.blocks]
    first, second = mixers
    for head, lag in enumerate(lags):
        first.W_Q[head, n + positions, (positions - lag).clamp_min(0)] = SHARP
        first.W_K[head, n + positions, positions] = 1.0
        first.W_V[head, states, states] = 1.0
        first.W_O[head, states, carried[lag] + states] = 1.0
    for j, (lag, offset) in enumerate(zip(lags, ends_in, strict=True)):
        sought = torch.tensor(list(states if only_after is None else only_after))
        second.W_Q[:readers, (carried[offset] if offset else 0) + sought, n * j + sought] = SHARP
        second.W_K[:readers, carried[lag] + states, n * j + states] = 1.0
    # A key before the first carried token has none: a term in every query masks it.
    second.W_Q[:readers, states, n * k] = SHARP
    second.W_K[:readers, n + positions[: max(lags)], n * k] = -(k + 1.0)
    second.W_V[:readers, states, states] = 1.0
    second.W_O[:readers, states, written + states] = gain / readers
    return decoder


@torch.no_grad()
def duplicate_token_head(n_states: int, n_ctx: int, *, n_layers: int = 1) -> HookedDecoder:
    """Build a head that attends uniformly to earlier copies of the current token; other layers do nothing.

    Without such copies it attends uniformly to all earlier tokens. On a sticky chain most copies follow a
    copy, so the head attends where an induction head would, without any induction. It is in the last layer;
    logits are 4 times the attention-weighted frequency of each token.

    Example:
        >>> model = duplicate_token_head(3, n_ctx=5)
        >>> model(torch.tensor([[0, 1, 0, 2, 0]]))[0, -1].round(decimals=4).tolist()
        [4.0, 0.0, 0.0]
    """
    n, written = n_states, n_states + n_ctx
    shape = {"n_layers": n_layers, "d_model": written + n, "d_head": written}
    decoder = embedding_frame(n, n_ctx, positions=n, output=written, **shape)
    states, both = torch.arange(n), torch.arange(written)
    last: Any = decoder.blocks[-1].attn
    last.W_Q[0, both, both] = torch.where(both < n, SHARP, -2 * SHARP)  # not itself
    last.W_K[0, both, both] = 1.0
    last.W_V[0, states, states] = 1.0
    last.W_O[0, states, written + states] = 4.0
    return decoder
