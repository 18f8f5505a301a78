"""What the measurements share: data, and a trained stack against the exact laws."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

import mechmarkov as mm
from experiments.sampling_error import over_sequences
from experiments.which_parents.kernel_model import EPS, Weights, outputs
from mechmarkov.theory.kernel import kl
from mechmarkov.theory.lag_sets import LagSet

STATES, LENGTH, CONCENTRATION, WINDOW, DEGREE = 3, 100, 0.1, 3, 2  # of the public code
SEQUENCES = 4096  # of each seed; the public code has 9000 of one seed
UNSEEN = 2048
Laws = Float[np.ndarray, "batch state"]


def source(lags: LagSet) -> mm.sources.CausalGraph:
    """Parents at fixed lags, a fresh kernel a sequence; the last position is the answer."""
    return mm.sources.CausalGraph.of_lags(STATES, LENGTH + 1, lags, CONCENTRATION)


def pools(of: mm.sources.CausalGraph, seeds: int) -> Int[Tensor, "model sequence position"]:
    """Each seed's own sequences."""
    drawn = [
        of.sample(SEQUENCES, LENGTH + 1, generator=torch.Generator().manual_seed(s)) for s in range(seeds)
    ]
    return torch.stack(drawn)


def signed(
    beta: float, gamma: float, flips: Float[np.ndarray, "kernel 2"]
) -> Float[np.ndarray, "kernel 2 2 2"]:
    """`P(y | x₁, x₂) = (1 + y x₂ (±beta ± gamma x₁)) / 2` on states read as -1 and 1, the lag 2 first.

    Histories are uniform, so that `J = beta² / 2` for the lag 2 alone, `(beta² + gamma²) / 4` for both.
    """
    sign = np.array([-1.0, 1.0])
    lean = beta * flips[:, :1] + gamma * flips[:, 1:] * sign  # [kernel, state at lag 1]
    up = sign[:, None, None] * sign * lean[:, None, :, None]
    return np.asarray((1 + up) / 2)


def signed_sequences(
    beta: float, gamma: float, sequences: int, seed: int
) -> tuple[Int[Tensor, "sequence position"], Laws]:
    """Sequences of such kernels, with signs drawn for each; and the answer's law."""
    rng = np.random.default_rng(seed)
    kernels = signed(beta, gamma, rng.choice([-1.0, 1.0], (sequences, 2)))
    tokens, every = rng.integers(2, size=(sequences, LENGTH + 1)), np.arange(sequences)
    for i in range(2, LENGTH + 1):
        law = kernels[every, tokens[:, i - 2], tokens[:, i - 1]]
        tokens[:, i] = rng.random(sequences) > law[:, 0]
    return torch.tensor(tokens), law


def away(
    tokens: Int[Tensor, "sequence position"], laws: Laws, weights: Weights, sets: list[LagSet]
) -> Float[np.ndarray, " model"]:
    """Mean KL (nats) from laws of the last token to each model's, its outputs read with eps added."""
    models, n = len(weights.a), laws.shape[-1]
    with torch.no_grad():
        output = outputs(tokens[None, :, :-1].expand(models, -1, -1), weights, sets, n).double().numpy()
    return over_sequences(kl(laws[None], (output + EPS) / (1 + n * EPS))[..., None])
