"""The model of Chen et al. 2024 with its trained parts alone: lags of heads, sets of lags, one scale."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.theory.lag_sets import LagSet

EPS = 0.01  # inside the logarithm of the loss


@dataclass(frozen=True)
class Weights:
    """What is trained. A leading axis holds one model each.

    Attributes:
        W: Scores of lags 1 .. M in the first layer, a head for every lag.
        c: Of each set of heads in the feature layer; its share is `c² / sum c²`.
        a: The scale of the second layer's scores.
    """

    W: Float[Tensor, "model head lag"]
    c: Float[Tensor, "model set"]
    a: Float[Tensor, " model"]

    @property
    def heads(self) -> Float[Tensor, "model head lag"]:
        """Attention of the first layer."""
        return self.W.softmax(-1)

    @property
    def shares(self) -> Float[Tensor, "model set"]:
        """p_S, summing to 1: the feature layer's norm is divided out."""
        return self.c**2 / (self.c**2).sum(-1, keepdim=True)


def started(models: int, window: int, sets: int) -> Weights:
    """The start of the public code: each head leans to a lag of its own, sets alike, the scale small."""
    W = 0.01 + (3.0 - 0.01) * torch.eye(window)
    return Weights(W.repeat(models, 1, 1), torch.full((models, sets), 0.01), torch.full((models,), 0.01))


def agreement(
    tokens: Int[Tensor, "model batch position"], weights: Weights, sets: list[LagSet], n_states: int
) -> Float[Tensor, "model batch key set"]:
    """K_S of every position that has all lags before it, against the position after the last.

    Each head's mean state is divided by its norm, as the code does; the kernel of a set is the product of its
    heads' inner products with those of the answer.
    """
    M, n = weights.W.shape[-1], tokens.shape[-1]
    hot = one_hot(tokens, n_states, weights.W.dtype)[:, :, None]
    A = weights.heads[:, None, :, None]
    lagged = [A[..., lag - 1, None] * hot[..., M - lag : n - lag + 1] for lag in range(1, M + 1)]
    read = torch.stack(lagged).sum(0)  # [model, batch, head, state, position]
    read = read / (read * read).sum(-2, keepdim=True).sqrt()
    match = (read[..., :-1] * read[..., -1:]).sum(-2)  # [model, batch, head, key]
    values = [torch.ones_like(match[:, :, 0])] * len(sets)
    for k, each in enumerate(sets):
        for lag in each:
            values[k] = values[k] * match[:, :, lag - 1]
    return torch.stack(values, dim=2).mT


def one_hot(
    tokens: Int[Tensor, "model batch position"], n_states: int, dtype: torch.dtype
) -> Float[Tensor, "model batch state position"]:
    """Indicators, positions last: sums over the few states are then fast."""
    return (tokens[:, :, None] == torch.arange(n_states)[:, None]).to(dtype)


def outputs(
    tokens: Int[Tensor, "model batch position"], weights: Weights, sets: list[LagSet], n_states: int
) -> Float[Tensor, "model batch state"]:
    """The attended frequency of each state, for the answer after the last token."""
    M = weights.W.shape[-1]
    kernel = (agreement(tokens, weights, sets, n_states) @ weights.shares[:, None, :, None])[..., 0]
    pattern = (weights.a[:, None, None] * kernel).softmax(-1)
    hot = one_hot(tokens[:, :, M:], n_states, pattern.dtype)
    return (pattern[:, :, None] * hot).sum(-1)


def loss(
    output: Float[Tensor, "model batch state"], answer: Int[Tensor, "model batch"], eps: float = EPS
) -> Float[Tensor, " model"]:
    """Mean `-log(output + eps)` of the answer (nats)."""
    return -(output.gather(-1, answer[..., None])[..., 0] + eps).log().mean(-1)
