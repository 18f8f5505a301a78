"""The next-token loss that TransformerLens' tools ask a model for; training has its own objectives."""

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.utilities import lm_cross_entropy_loss

from mechmarkov.models.lens.errors import LensError


class Output(NamedTuple):
    """Logits and loss, as of `return_type="both"`."""

    logits: Float[Tensor, "*batch position d_vocab_out"]
    loss: Float[Tensor, "*loss"]


def next_token_loss(
    logits: Float[Tensor, "*batch position d_vocab_out"],
    tokens: Int[Tensor, "*batch position"] | None,
    attention_mask: Tensor | None = None,
    per_token: bool = False,
) -> Float[Tensor, "*loss"]:
    """Compute the cross-entropy in nats of each next token, `[*batch, position - 1]`, or the mean over all.

    Args:
        logits: Those at each position.
        tokens: The tokens; the one at t + 1 is what position t predicts.
        attention_mask: True or 1 for tokens that count, as what is read and as what is predicted.
        per_token: Whether the loss of each position is returned, 0 where it does not count.

    Raises:
        LensError: There are no tokens.

    Example:
        >>> import torch
        >>> next_token_loss(torch.zeros(1, 3, 2), torch.tensor([[0, 1, 1]]))  # the logarithm of 2
        tensor(0.6931)
    """
    if tokens is None:
        raise LensError("tokens is None, expected those of the sequences for a loss from start_at_layer")
    if attention_mask is None and not per_token:
        return F.cross_entropy(logits[..., :-1, :].flatten(0, -2), tokens[..., 1:].flatten())
    mask = None if attention_mask is None else attention_mask.flatten(0, -2)
    loss: Tensor = lm_cross_entropy_loss(logits.flatten(0, -3), tokens.flatten(0, -2), mask, per_token)
    return loss.view(*tokens.shape[:-1], -1) if per_token else loss
