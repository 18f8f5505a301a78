"""Circuits set by hand whose heads find a lag by a bias of scores: no token and no position tells them where.

Attention only, no norms. The residual stream has a block for the token, one for what the first layer carries
over, if there are two, and one for the output, which is unembedded.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.constructions.lookup_tables import SHARP, handset_config
from mechmarkov.models.decoder import HookedDecoder


@torch.no_grad()
def lag_table(table: Float[Tensor, "state_from state_to"], n_ctx: int, lag: int = 1) -> HookedDecoder:
    """Build a head that applies the table, in its OV circuit, to the token that its bias singles out.

    Lag 1 is the predicted token's parent, the query itself. Where there is no token that far back, attention
    is uniform.

    Args:
        table: The logits of the next state, by the state that is attended to.
        n_ctx: Length of the context.
        lag: How far before the predicted token the head attends.

    Example:
        >>> table = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> lag_table(table, n_ctx=4, lag=2)(torch.tensor([[0, 1, 1]])).round()[0, 1:].tolist()
        [[0.0, 1.0], [2.0, 3.0]]
    """
    n = len(table)
    decoder = _frame(n, n_ctx, blocks=2, d_head=n)
    attn: Any = decoder.blocks[0].attn
    attn.b_rel[0, lag - 1] = SHARP
    attn.W_V[0, :n] = torch.eye(n)
    attn.W_O[0, :, n:] = table
    return decoder


@torch.no_grad()
def induction_pair_by_lag(n_states: int, n_ctx: int, *, lag: int = 1, gain: float = 4.0) -> HookedDecoder:
    """Build an induction pair whose first head finds the previous token by its bias (Edelman et al. 2024).

    That head writes the token `lag` back; what has none that far back carries the mean of all before it, the
    first token itself. The second layer's head, whose bias is zero, attends to the keys for which that is the
    current token. With `lag = 2` it is a wrong one: it compares with the token two before the key.

    Args:
        n_states: The number of states of the source.
        n_ctx: Length of the context.
        lag: How far back the head of the first layer attends.
        gain: Logits are this times the attention-weighted frequency of each token.

    Example:
        >>> model = induction_pair_by_lag(3, n_ctx=6)
        >>> model(torch.tensor([[2, 1, 0, 2, 0, 1]]))[0, -1].round(decimals=4).tolist()
        [4.0, 0.0, 0.0]
    """
    n = n_states
    decoder = _frame(n, n_ctx, blocks=3, d_head=n, n_layers=2)
    mixers: list[Any] = [block.attn for block in decoder.blocks]
    first, second = mixers
    first.b_rel[0, lag] = SHARP
    first.W_V[0, :n] = torch.eye(n)
    first.W_O[0, :, n : 2 * n] = torch.eye(n)
    second.W_Q[0, :n] = SHARP * torch.eye(n)
    second.W_K[0, n : 2 * n] = torch.eye(n)
    second.W_V[0, :n] = torch.eye(n)
    second.W_O[0, :, 2 * n :] = gain * torch.eye(n)
    return decoder


def _frame(n: int, n_ctx: int, *, blocks: int, **shape: Any) -> HookedDecoder:
    """A decoder that embeds tokens one-hot in its first block and unembeds its last; all else is zero."""
    shape |= {"d_model": blocks * n, "positional_embedding_type": "relative_bias"}
    decoder = HookedDecoder(handset_config(n, n_ctx, **shape))
    decoder.embed.W_E[:, :n] = torch.eye(n)
    decoder.get_parameter("unembed.W_U")[-n:] = torch.eye(n)
    return decoder
