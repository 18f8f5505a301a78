"""The generalised induction head of Chen et al. (2024), set by hand: copier, selector, classifier.

No norms. The residual stream has a block for the token, one for the position, one for each token that a head
of the first layer copies, one for the features of keys, one for those of queries, and one for the output.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mechmarkov.models.constructions.lookup_tables import SHARP, embedding_frame
from mechmarkov.models.constructions.n_grams import attend_back
from mechmarkov.models.decoder import HookedDecoder


@torch.no_grad()
def lag_set_counter(
    n_states: int, n_ctx: int, *, lags: Sequence[int], dtype: torch.dtype = torch.float32
) -> HookedDecoder:
    """The frequencies of what followed the states at a set of lags, the limit of the paper's training.

    A head of the first layer copies each lag, for keys, and each lag less one, for queries. Each hidden unit
    of the MLP knows one word of states at these lags: the product of their indicators. The second layer
    attends uniformly to the keys whose word is the query's, and writes the mean of the tokens there. Where
    there are none, attention is uniform over the keys that have all lags. Lags are counted from the predicted
    token.

    Raises:
        ValueError: A lag is below 1, twice there, or leaves no key.

    Example:
        >>> model = lag_set_counter(2, n_ctx=8, lags=(1, 3))
        >>> model(torch.tensor([[0, 1, 1, 0, 1, 0, 1, 1]]))[0, -1].round(decimals=4).tolist()
        [1.0, 0.0]
    """
    if not lags or min(lags) < 1 or len(set(lags)) < len(lags) or max(lags) >= n_ctx:
        raise ValueError(f"lags are {list(lags)}, expected different ones from 1 to {n_ctx - 1}")
    n, words = n_states, n_states ** len(lags)
    offsets = sorted({offset for lag in lags for offset in (lag - 1, lag)} - {0})
    blocks = {0: 0} | {offset: n + n_ctx + n * j for j, offset in enumerate(offsets)}
    for_keys = n + n_ctx + n * len(offsets)
    for_queries, out = for_keys + words, for_keys + 2 * words
    shape = {"n_layers": 2, "n_heads": len(offsets), "d_model": out + n, "d_mlp": 2 * words}
    width = max(n, n_ctx, words + 1)
    decoder = embedding_frame(n, n_ctx, positions=n, output=out, d_head=width, **shape).double()
    first: Any = decoder.blocks[0].attn
    second: Any = decoder.blocks[1].attn
    mlp: Any = decoder.blocks[0].mlp
    for head, offset in enumerate(offsets):
        attend_back(first, head, n, n_ctx, {offset: 0.0}, SHARP)
        first.W_V[head, :n, :n] = torch.eye(n)
        first.W_O[head, :n, blocks[offset] : blocks[offset] + n] = torch.eye(n)
    word = np.arange(words)
    states = np.indices((n,) * len(lags)).reshape(len(lags), -1)
    for lag, state in zip(lags, states, strict=True):
        mlp.W_in[blocks[lag] + state, word] = 1.0
        mlp.W_in[blocks[lag - 1] + state, words + word] = 1.0
    mlp.b_in.fill_(1.0 - len(lags))  # only where all agree is the sum above |S| - 1
    mlp.W_out[:, for_keys:out] = torch.eye(2 * words)
    second.W_Q[0, for_queries:out, :words] = SHARP * torch.eye(words)
    second.W_K[0, for_keys:for_queries, :words] = torch.eye(words)
    # A key without all its lags stands for no word: a term in every query masks it.
    second.W_Q[0, :n, words] = SHARP
    second.W_K[0, n : n + max(lags), words] = -2.0
    second.W_V[0, :n, :n] = torch.eye(n)
    second.W_O[0, :n, out : out + n] = torch.eye(n)
    return decoder.to(dtype)
