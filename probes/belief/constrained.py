"""What one layer of attention can make of beliefs: an update for each token, and their sum.

Attention adds up what it reads of single tokens, so it cannot multiply their likelihoods as Bayes' rule does.
Piotrowski et al. (2025, arXiv 2502.01954) carry each token's own update on by the hidden chain:

    ρ_t = π + Σ_s (b(x_s) - π) T^(t - s),  b(x) the belief after one token

The best sum has other updates. It is a least-squares reading of one-hot tokens, apart for each distance.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from mechmarkov.models.decoder import HookedDecoder, activations
from mechmarkov.sources import HiddenMarkov


def carried_on(
    source: HiddenMarkov, tokens: Int[np.ndarray, "batch position"]
) -> Float[np.ndarray, "batch position hidden"]:
    """The sums `ρ_t`; they add up to one and may leave the simplex.

    Example:
        >>> source = HiddenMarkov.mess3()
        >>> carried_on(source, np.array([[1, 0]]))[0].round(4).tolist()
        [[0.075, 0.85, 0.075], [0.6304, 0.5142, -0.1446]]
        >>> source.beliefs(np.array([[1, 0]]))[0].round(4).tolist()
        [[0.075, 0.85, 0.075], [0.5926, 0.3551, 0.0523]]
    """
    updates = source.beliefs(np.arange(source.n_states)[:, None])[:, 0] - source.hidden_law
    beliefs, total = np.empty((*tokens.shape, source.n_hidden)), np.zeros((len(tokens), source.n_hidden))
    for t in range(tokens.shape[1]):
        total = total @ source.T + updates[tokens[:, t]]
        beliefs[:, t] = source.hidden_law + total
    return beliefs


def after_attention(
    model: HookedDecoder, tokens: Int[torch.Tensor, "batch position"]
) -> dict[int, Float[np.ndarray, "batch position d_model"]]:
    """The residual stream after each block's attention, before its MLP, by the block's number.

    Args:
        model: One model.
        tokens: Its input.

    Returns:
        Only blocks that have an attention and an MLP after it, each on its own, have such a stream.
    """
    hooks = {}
    after = "hook_resid_post" if model.config.attn_only else "hook_resid_mid"
    for layer, block in enumerate(model.blocks):
        mixer: Any = block.attn
        if mixer.has_attention_weights and f"blocks.{layer}.{after}" in model.hook_dict:
            hooks[layer] = f"blocks.{layer}.{after}"
    seen = activations(model, tokens, hooks.values())
    return {layer: seen[name].double().cpu().numpy() for layer, name in hooks.items()}
