"""The attention layer that is a context-conditioned chain, exactly.

Ildiz et al. 2024 (arXiv 2402.13512): embeddings are orthonormal, values are the tokens, the classifier is the
embeddings' transpose. So the output at a position is the share of attention that each state gets, a law, and

    f(X)_k = sum over i with x_i = k of softmax_i(E[x_i] W E[x_t])

is proportional to `n_k exp(W[k, q])`. All but `W`, here `W_K`, stays as it is.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.constructions.lookup_tables import handset_config
from mechmarkov.models.decoder import HookedDecoder

TRAINED = "blocks.0.attn.W_K"


def context_conditioned_config(n_states: int, n_ctx: int) -> DecoderConfig:
    """Returns the config of Ildiz et al.'s layer: one head, no norms, no positions, a block for the output.

    Args:
        n_states: The number of states, K.
        n_ctx: Length of the context.
    """
    return handset_config(
        n_states,
        n_ctx,
        d_model=2 * n_states,
        d_head=n_states,
        positional_embedding_type="none",
        initializer_range=0.02,  # the null models of a run that started at zero
    )


def context_conditioned_weights(n_states: int) -> dict[str, Tensor]:
    """Returns the frozen weights by HookedTransformer's names, float32; `W_K` and biases are not among them.

    Shapes, with S states, d_model = 2 S and d_head = S: `embed.W_E` [state, d_model], `W_Q` and `W_V`
    [head, d_model, d_head], `W_O` [head, d_head, d_model], `unembed.W_U` [d_model, state].

    Example:
        >>> context_conditioned_weights(3)["embed.W_E"].shape
        torch.Size([3, 6])
    """
    token = torch.eye(2 * n_states, n_states)
    return {
        "embed.W_E": token.T.contiguous(),
        "blocks.0.attn.W_Q": token[None],
        "blocks.0.attn.W_V": token[None],
        "blocks.0.attn.W_O": token.flip(0, 1).T[None].contiguous(),
        "unembed.W_U": token.flip(0, 1).contiguous(),
    }


@torch.no_grad()
def context_conditioned_model(
    base: Float[np.ndarray, "state_from state_to"], n_ctx: int, dtype: torch.dtype = torch.float32
) -> HookedDecoder:
    """A decoder whose outputs are `theory.context_conditioned.next_laws` (probability, no softmax).

    The base chain has rows of positive numbers.

    Example:
        >>> model = context_conditioned_model(np.array([[0.75, 0.25], [0.5, 0.5]]), n_ctx=3)
        >>> model(torch.tensor([[1, 0, 0]]))[0, -1].detach()
        tensor([0.8571, 0.1429])
    """
    n_states = len(base)
    decoder = HookedDecoder(context_conditioned_config(n_states, n_ctx))
    for name, value in context_conditioned_weights(n_states).items():
        decoder.get_parameter(name).copy_(value)
    decoder.to(dtype).get_parameter(TRAINED)[0, :n_states] = torch.from_numpy(np.log(base)).to(dtype).T
    return decoder


def read_scores(
    W_K: Float[Tensor, "*stack head d_model d_head"],
) -> Float[Tensor, "*stack query key"]:
    """Returns the score that a token of each state gives to one of each other, from the weights `W_K`."""
    n_states = W_K.shape[-1]
    return W_K[..., 0, :n_states, :].mT
