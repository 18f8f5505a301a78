"""A bound for every sequence by the last norm only, however many layers stand in front of it.

A normalised stream has length `sqrt(d_model)` at most, whatever it comes from. So a logit difference is at
most `sqrt(d) |w (U_k - U_l)|` and what the biases add (Cauchy and Schwarz), a probability is bounded from
below, and `KL(p || q) <= -log min q` for any program's law p. For trained models this is vacuous, and said to
be.
"""

import numpy as np
from jaxtyping import Float

from mechmarkov.certify.bounds.ball import ELEMENTARY, gamma, up
from mechmarkov.certify.bounds.layer import Weights
from mechmarkov.models.components import norms_between
from mechmarkov.models.config import DecoderConfig


def largest_kl(config: DecoderConfig, weights: Weights, unit: float) -> float | None:
    """The most that KL from any law to a softmax model can be, in nats; None where no norm stands last.

    Args:
        config: The model.
        weights: Its tensors by HookedTransformer's names, float64.
        unit: Unit roundoff of the evaluations that are covered.
    """
    if config.normalization_type is None or not (last := norms_between(config, "direct")[-1:]):
        return None
    tied = weights["embed.W_E"][: config.d_vocab_out].T
    W_U = tied if config.tied else weights["unembed.W_U"]
    gain = weights.get(f"{last[0]}.w", np.ones(config.d_model))
    shift = weights.get(f"{last[0]}.b", np.zeros(config.d_model))
    error, length = gamma(2 * config.d_model + 4 * ELEMENTARY, unit), np.sqrt(config.d_model)
    scaled, bias = gain[:, None] * W_U, shift @ W_U + weights["unembed.b_U"]
    size = (
        length * np.linalg.norm(scaled, axis=0) + np.abs(shift) @ np.abs(W_U) + np.abs(weights["unembed.b_U"])
    )
    apart = length * np.linalg.norm(scaled[:, :, None] - scaled[:, None], axis=0)
    log_odds: Float[np.ndarray, "state_to state_against"] = (
        up(apart) + bias[:, None] - bias + up(error * (size[:, None] + size))
    )
    np.fill_diagonal(log_odds, 0.0)
    largest = log_odds.max(0)
    return float(up((largest + np.log(np.exp(log_odds - largest).sum(0))).max()) + 1e-12)
