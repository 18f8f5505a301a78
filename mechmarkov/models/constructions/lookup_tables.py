"""Lookup tables set by hand: models whose circuit is known.

Each takes a table `[state_from, state_to]` of scores and builds a one-layer decoder without norms that
applies it along one path and no other. The residual stream has a block for the token, one for the output,
which is unembedded, and (where attention must find a lag) one for the position.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder

# Attention logit of the one attended key: e^-60 of the mass is left for all others.
SHARP = 60.0


@torch.no_grad()
def direct_table(table: Float[Tensor | np.ndarray, "state_from state_to"], n_ctx: int) -> HookedDecoder:
    """Build a model whose logits are a lookup of the current token, in the direct path `W_E W_U`.

    The head writes nothing.

    Args:
        table: The logits of the next state, by the current one.
        n_ctx: Length of the context.

    Example:
        >>> table = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> direct_table(table, n_ctx=4)(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 1.0], [2.0, 3.0]]]
    """
    n = len(table)
    decoder = HookedDecoder(handset_config(n, n_ctx, d_model=n, d_head=n))
    decoder.embed.W_E.copy_(torch.eye(n))
    decoder.get_parameter("unembed.W_U").copy_(torch.as_tensor(table))
    return decoder


@torch.no_grad()
def value_table(
    table: Float[Tensor | np.ndarray, "state_from state_to"], n_ctx: int, lag: int = 1, *, every: int = 1
) -> HookedDecoder:
    """Build a head that applies the table, in its OV circuit, to the token at one lag from the predicted one.

    Queries without a token that far back attend to the first token.

    Args:
        table: The scores that the head writes; of a chain `log P`.
        n_ctx: The length of the context (positions).
        lag: Counted from the predicted token; 1 is its parent, the query itself.
        every: Queries at other positions than every `every`th attend to all tokens equally.

    Example:
        >>> table = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> value_table(table, n_ctx=4, lag=2)(torch.tensor([[0, 1, 1]])).round()[0, 1:].tolist()
        [[0.0, 1.0], [2.0, 3.0]]
    """
    n, position = len(table), torch.arange(n_ctx)
    decoder = _reading_one_token(n, (position - (lag - 1)).clamp_min(0))
    attn: Any = decoder.blocks[0].attn
    attn.W_Q[0, 2 * n + position[position % every > 0]] = 0
    attn.W_O[0, :n, n : 2 * n] = torch.as_tensor(table)
    return decoder


@torch.no_grad()
def content_table(table: Float[Tensor | np.ndarray, "state_from state_to"], n_ctx: int) -> HookedDecoder:
    """Build a model whose head attends by content: a skip-trigram over a table of logits.

    A query of state i attends to all tokens of state i + 1 (after the last state comes the first), however
    far back, and to all tokens equally where there is none. Its OV circuit applies the table to what it
    finds.

    Args:
        table: The logits of the next state, by the state that is attended to.
        n_ctx: Length of the context.

    Example:
        >>> table = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> content_table(table, n_ctx=4)(torch.tensor([[1, 0]]))[0, 1].tolist()  # 0 looks for 1
        [2.0, 3.0]
    """
    n = len(table)
    decoder = value_table(table, n_ctx)
    attn: Any = decoder.blocks[0].attn
    attn.W_Q.zero_()
    attn.W_K.zero_()
    attn.W_Q[0, :n, :n] = SHARP * torch.eye(n).roll(1, 1)
    attn.W_K[0, :n, :n] = torch.eye(n)
    return decoder


@torch.no_grad()
def cancelling_tables(
    table: Float[Tensor | np.ndarray, "state_from state_to"], n_ctx: int, *, gain: float = 5.0
) -> HookedDecoder:
    """Build a model in which two heads cancel: one writes `gain` times the table, the other takes it back.

    The logits are the table's, by the direct path, and change where one of the two heads is removed.

    Args:
        table: The logits of the next state, by the current one.
        n_ctx: Length of the context.
        gain: How many times the table each head writes.

    Example:
        >>> table = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> cancelling_tables(table, n_ctx=4)(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 1.0], [2.0, 3.0]]]
    """
    n, table = len(table), torch.as_tensor(table)
    decoder = _reading_one_token(n, torch.arange(n_ctx), n_heads=2)
    attn: Any = decoder.blocks[0].attn
    attn.W_O[0, :n, n : 2 * n] = gain * table
    attn.W_O[1, :n, n : 2 * n] = -gain * table
    decoder.get_parameter("unembed.W_U")[:n] = table
    return decoder


def _reading_one_token(n: int, seen: Int[Tensor, " position"], n_heads: int = 1) -> HookedDecoder:
    """A decoder whose heads read the token that each position sees, and write nothing yet."""
    n_ctx = len(seen)
    shape = {"d_model": 2 * n + n_ctx, "d_head": max(n, n_ctx), "n_heads": n_heads}
    decoder = embedding_frame(n, n_ctx, positions=2 * n, output=n, **shape)
    attn: Any = decoder.blocks[0].attn
    attn.W_Q[:, 2 * n + torch.arange(n_ctx), seen] = SHARP
    attn.W_K[:, 2 * n :, :n_ctx] = torch.eye(n_ctx)
    attn.W_V[:, :n, :n] = torch.eye(n)
    return decoder


@torch.no_grad()
def mlp_table(table: Float[Tensor | np.ndarray, "state_from state_to"], n_ctx: int) -> HookedDecoder:
    """Build a model whose logits are a lookup of the current token, in the MLP: one hidden unit a state.

    The head writes nothing.

    Args:
        table: The logits of the next state, by the current one.
        n_ctx: Length of the context.

    Example:
        >>> table = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> mlp_table(table, n_ctx=4)(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 1.0], [2.0, 3.0]]]
    """
    n = len(table)
    decoder = HookedDecoder(handset_config(n, n_ctx, d_model=2 * n, d_head=n, d_mlp=n))
    decoder.embed.W_E[:, :n] = torch.eye(n)
    decoder.get_parameter("blocks.0.mlp.W_in")[:n] = torch.eye(n)
    decoder.get_parameter("blocks.0.mlp.W_out")[:, n:] = torch.as_tensor(table)
    decoder.get_parameter("unembed.W_U")[n:] = torch.eye(n)
    return decoder


def write_piecewise_linear(
    mlp: Any,
    units: slice,
    reading: Float[np.ndarray, " d_model"],
    knots: Float[np.ndarray, " knot"],
    values: Float[np.ndarray, "knot out"],
    to: int,
    constant: Float[Tensor, " d_model"],
) -> None:
    """Set hidden units of a ReLU MLP to write a piecewise linear function of a reading of the stream.

    Between two knots it is linear, and constant below the first.

    Args:
        mlp: The MLP, with a bias `b_in` of zero.
        units: The hidden units, one for every knot but the last.
        reading: What the function is of: the stream times this vector.
        knots: Values of the reading, ascending.
        values: What is written at each of them.
        to: The dimension of the stream from which on it is written.
        constant: What takes the first value: a bias, or what some other unit writes.
    """
    out = slice(to, to + values.shape[1])
    slopes = np.diff(values, axis=0) / np.diff(knots)[:, None]
    mlp.W_in[:, units] = torch.from_numpy(reading)[:, None]
    mlp.b_in[units] = -torch.from_numpy(knots[:-1])
    mlp.W_out[units, out] = torch.from_numpy(np.diff(slopes, axis=0, prepend=0))
    constant[out] = torch.from_numpy(values[0])


def handset_config(
    n_states: int,
    n_ctx: int,
    *,
    d_model: int,
    d_head: int,
    d_mlp: int | None = None,
    n_layers: int = 1,
    n_heads: int = 1,
    **others: Any,
) -> DecoderConfig:
    """Returns the config of a model whose weights are set by hand: no norms, and scores are not scaled.

    Args:
        n_states: The size of the vocabulary.
        n_ctx: Length of the context.
        d_model: Width of the residual stream.
        d_head: Width of a head.
        d_mlp: Hidden units of each MLP; without them the model is attention only.
        n_layers: The number of layers.
        n_heads: Heads a layer.
        others: Further fields of `DecoderConfig`.

    Example:
        >>> handset_config(3, 8, d_model=6, d_head=3).attn_only
        True
    """
    return DecoderConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=d_model,
        d_head=d_head,
        d_mlp=d_mlp,
        n_ctx=n_ctx,
        d_vocab=n_states,
        attn_only=d_mlp is None,
        normalization_type=None,
        use_attn_scale=False,
        **others,
    )


@torch.no_grad()
def embedding_frame(n: int, n_ctx: int, *, positions: int, output: int, **shape: Any) -> HookedDecoder:
    """Build a decoder that embeds tokens and positions one-hot and unembeds a block; all else is zero.

    Args:
        n: The number of states, embedded in dimensions 0 to n - 1.
        n_ctx: Length of the context.
        positions: The first of the `n_ctx` dimensions in which positions are embedded.
        output: The first of the `n` dimensions that are unembedded.
        shape: The sizes `d_model` and `d_head`, and others, of `handset_config`.

    Example:
        >>> decoder = embedding_frame(2, 3, positions=2, output=5, d_model=7, d_head=2)
        >>> decoder.embed.W_E[1].tolist(), decoder(torch.tensor([[0, 1]])).tolist()
        ([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [[[0.0, 0.0], [0.0, 0.0]]])
    """
    decoder = HookedDecoder(handset_config(n, n_ctx, **shape))
    decoder.embed.W_E[:, :n] = torch.eye(n)
    decoder.get_parameter("pos_embed.W_pos")[:, positions : positions + n_ctx] = torch.eye(n_ctx)
    decoder.get_parameter("unembed.W_U")[output : output + n] = torch.eye(n)
    return decoder
