"""A belief set by hand: after the first block the residual stream holds it exactly, or does not.

Heads copy the tokens of every position into slots. The first MLP looks the history up and writes its belief.
The second block turns the belief into log-probabilities, piecewise linear and exact at every belief that
occurs and at certainty; or it looks the history up itself, and the belief is not read.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.models.constructions.lookup_tables import SHARP, handset_config
from mechmarkov.models.decoder import HookedDecoder

KNOT_DIGITS = 7  # beliefs that agree so far are one knot of the piecewise linear function


@torch.no_grad()
def belief_model(
    beliefs: Sequence[Float[np.ndarray, "history hidden"]],
    laws: Float[np.ndarray, "hidden state"],
    *,
    carries: bool = True,
    reads: bool = True,
) -> HookedDecoder:
    """A two-block model that predicts the law under each belief, exactly.

    Args:
        beliefs: `beliefs[t]` after each history of t + 1 tokens, numbered to the base of the number of
            tokens, the oldest first. As many as the context is long.
        laws: Of the next token in each hidden state; all on one line between two of them.
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
    histories = [history for t in range(n_ctx) for history in product(range(n), repeat=t + 1)]
    of_history = np.concatenate(beliefs)
    ends, place = _line(laws)
    knots = np.unique(np.concatenate([[0.0, 1.0], of_history @ place]).round(KNOT_DIGITS))
    slots = n * (1 + np.arange(n_ctx + 1))  # tokens, a slot a position, logits, belief, position
    logits, belief = int(slots[-1]), int(slots[-1]) + n
    positions = belief + n_hidden
    config = handset_config(
        n,
        n_ctx,
        n_layers=2,
        n_heads=n_ctx,
        d_model=positions + n_ctx,
        d_head=n + n_ctx,
        d_mlp=max(len(histories), len(knots)),
    )
    decoder = HookedDecoder(config)
    first, second = (block for block in decoder.blocks)
    decoder.embed.W_E[:, :n] = torch.eye(n)
    decoder.get_parameter("pos_embed.W_pos")[:, positions:] = torch.eye(n_ctx)
    decoder.get_parameter("unembed.W_U")[logits : logits + n] = torch.eye(n)
    attn: Any = first.attn
    for head in range(n_ctx):
        seen = torch.arange(n_ctx).clamp_max(head)
        attn.W_Q[head, positions + torch.arange(n_ctx), n + seen] = SHARP
        attn.W_K[head, positions:, n:] = torch.eye(n_ctx)
        attn.W_V[head, :n, :n] = torch.eye(n)
        attn.W_O[head, :n, slots[head] : slots[head] + n] = torch.eye(n)

    def look_up(mlp: Any, values: np.ndarray, to: int) -> None:
        """One hidden unit a history, 1 where it is the one."""
        for unit, history in enumerate(histories):
            mlp.W_in[positions + len(history) - 1, unit] = 1
            for at, token in enumerate(history):
                mlp.W_in[slots[at] + token, unit] = 1
            mlp.b_in[unit] = -len(history)
            mlp.W_out[unit, to : to + values.shape[1]] = torch.from_numpy(values[unit]).float()

    if carries:
        look_up(first.mlp, of_history, belief)
    if not reads:
        look_up(second.mlp, np.log(of_history @ laws), logits)
        return decoder
    mlp: Any = second.mlp
    values = np.log((1 - knots[:, None]) * ends[0] + knots[:, None] * ends[1])
    slopes = np.diff(values, axis=0) / np.diff(knots)[:, None]
    bends = np.diff(slopes, axis=0, prepend=0)
    mlp.W_in[belief:positions, : len(bends)] = torch.from_numpy(place).float()[:, None]
    mlp.b_in[: len(bends)] = -torch.from_numpy(knots[:-1]).float()
    mlp.W_out[: len(bends), logits : logits + n] = torch.from_numpy(bends).float()
    mlp.b_out[logits : logits + n] = torch.from_numpy(values[0]).float()
    return decoder


def _line(laws: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """The two laws furthest apart, and each law's place between them, 0 to 1."""
    gaps = np.abs(laws[:, None] - laws).sum(-1)
    i, j = np.unravel_index(gaps.argmax(), gaps.shape)
    along = laws[j] - laws[i]
    place = (laws - laws[i]) @ along / (along @ along)
    if np.abs(laws[i] + place[:, None] * along - laws).max() > 1e-9:
        raise ValueError("laws are not on one line between two of them")
    return (laws[i], laws[j]), place
