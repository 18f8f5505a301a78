"""A belief set by hand: after the first block the residual stream holds it exactly, or does not.

A head reads all tokens as the digits of one number, by attention that grows from position to position.
The first MLP looks that number up and writes the belief. The second turns the belief into log-probabilities;
or it looks the number up itself, and the belief is not read. Both are piecewise linear, exact at what occurs.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.models.constructions.lookup_tables import embedding_frame, write_piecewise_linear
from mechmarkov.models.decoder import HookedDecoder

GATE = 2.0  # added to a number only at its own position; numbers are at most 1
KNOT_DIGITS = 7  # beliefs that agree so far are one knot of the piecewise linear function


@torch.no_grad()
def belief_model(
    beliefs: Sequence[Float[np.ndarray, "_ hidden"]],
    laws: Float[np.ndarray, "hidden state"],
    *,
    carries: bool = True,
    reads: bool = True,
) -> HookedDecoder:
    """A two-block model that predicts the law under each belief, exactly.

    Args:
        beliefs: `beliefs[t]` after each history of t + 1 tokens, numbered to the base of the number of
            tokens, the oldest first. As many as the context is long.
        laws: The laws of the next token in each hidden state; all on one line between two of them.
        carries: Whether the first block writes the belief to the stream.
        reads: Whether the prediction is made from it; else from the tokens.

    Raises:
        ValueError: The laws are not on one line, or the prediction would read what is not there.

    Example:
        >>> beliefs = [np.array([[0.9, 0.1], [0.2, 0.8]])]
        >>> laws = np.array([[0.7, 0.3], [0.4, 0.6]])
        >>> belief_model(beliefs, laws)(torch.tensor([[0], [1]])).softmax(-1)[:, 0].detach()
        tensor([[0.6700, 0.3300],
                [0.4600, 0.5400]])
    """
    if reads and not carries:
        raise ValueError("reads is True and carries is False: a belief that is not written cannot be read")
    n_ctx, (n_hidden, n) = len(beliefs), laws.shape
    of_history = np.concatenate(beliefs)
    ends, place = _line(laws)
    # The stream: the token, the digits as one number, logits, belief, position.
    number, logits, belief, positions = n, n + 1, 2 * n + 1, 2 * n + 1 + n_hidden
    knots = np.unique(np.concatenate([[0.0, 1.0], of_history @ place]).round(KNOT_DIGITS))
    width, d_mlp = positions + n_ctx, max(len(of_history), len(knots))
    shape = {"n_layers": 2, "d_model": width, "d_head": 1, "d_mlp": d_mlp}
    decoder = embedding_frame(n, n_ctx, positions=positions, output=logits, **shape)
    attn: Any = decoder.blocks[0].attn
    mlps: list[Any] = [block.mlp for block in decoder.blocks]
    first, second = mlps
    attn.W_Q[0, positions:] = 1
    attn.W_K[0, positions:, 0] = math.log(n) * torch.arange(n_ctx)
    attn.W_V[0, :n, 0] = torch.arange(n) / (n - 1)
    attn.W_O[0, 0, number] = 1
    if carries:
        _look_up(first, beliefs, n, number, positions, belief)
    if reads:
        values = np.log((1 - knots[:, None]) * ends[0] + knots[:, None] * ends[1])
        reading, middle = np.zeros(width), place.mean()
        reading[belief:positions] = place - middle  # beliefs sum to 1; what is common to them is not read
        units, places = slice(0, len(knots) - 1), knots - middle
        write_piecewise_linear(second, units, reading, places, values, logits, second.b_out)
    else:
        _look_up(second, [np.log(table @ laws) for table in beliefs], n, number, positions, logits)
    return decoder


def _look_up(mlp: Any, tables: Sequence[np.ndarray], n: int, number: int, positions: int, to: int) -> None:
    """Write each history's row of its table: a piecewise linear function of its number, a position each."""
    start = 0
    for t, table in enumerate(tables):
        size = len(table)
        # Attention weighs the last token most: the number's digits are the tokens, the newest first.
        order = np.arange(size).reshape((n,) * (t + 1)).transpose().ravel()
        values, knots = table[order], np.arange(size) / (size - 1)
        mlp.W_in[positions + t, start] = 1
        reading = np.zeros(len(mlp.W_in))
        reading[number], reading[positions + t] = 1, GATE
        units = slice(start + 1, start + size)
        write_piecewise_linear(mlp, units, reading, knots + GATE, values, to, mlp.W_out[start])
        start += size


def _line(laws: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """The two laws furthest apart, and each law's place between them, 0 to 1."""
    gaps = np.abs(laws[:, None] - laws).sum(-1)
    i, j = np.unravel_index(gaps.argmax(), gaps.shape)
    along = laws[j] - laws[i]
    place = (laws - laws[i]) @ along / (along @ along)
    if np.abs(laws[i] + place[:, None] * along - laws).max() > 1e-9:
        raise ValueError("laws are not on one line between two of them")
    return (laws[i], laws[j]), place
