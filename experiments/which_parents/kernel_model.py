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


def started(
    models: int, window: int, sets: int, dtype: torch.dtype = torch.float32, lean: float = 3.0
) -> Weights:
    """The start of the public code: each head leans to a lag of its own, sets alike, the scale small."""
    W = 0.01 + (lean - 0.01) * torch.eye(window, dtype=dtype)
    return Weights(
        W.repeat(models, 1, 1),
        torch.full((models, sets), 0.01, dtype=dtype),
        torch.full((models,), 0.01, dtype=dtype),
    )


def agreement(
    tokens: Int[Tensor, "model batch position"], weights: Weights, sets: list[LagSet], n_states: int
) -> Float[Tensor, "model batch key set"]:
    """K_S of every position that has all lags before it, against the position after the last.

    Each head's mean state is divided by its norm, as the code does; the kernel of a set is the product of its
    heads' inner products with those of the answer.
    """
    M = weights.W.shape[-1]
    hot = torch.nn.functional.one_hot(tokens, n_states).to(weights.W.dtype)
    before = hot.unfold(2, M, 1).flip(-1)  # [model, batch, first position of the window, state, lag]
    read = torch.einsum("rhm,rbism->rbihs", weights.heads, before)
    read = read / read.norm(dim=-1, keepdim=True)
    match = (read[:, :, :-1] * read[:, :, -1:]).sum(-1)  # [model, batch, key, head]
    ones = torch.ones_like(match[..., 0])
    return torch.stack(
        [match[..., [lag - 1 for lag in each]].prod(-1) if each else ones for each in sets], dim=-1
    )


def outputs(
    tokens: Int[Tensor, "model batch position"], weights: Weights, sets: list[LagSet], n_states: int
) -> Float[Tensor, "model batch state"]:
    """The attended frequency of each state, for the answer after the last token."""
    M = weights.W.shape[-1]
    kernel = torch.einsum("rbis,rs->rbi", agreement(tokens, weights, sets, n_states), weights.shares)
    pattern = (weights.a[:, None, None] * kernel).softmax(-1)
    hot = torch.nn.functional.one_hot(tokens[:, :, M:], n_states).to(pattern.dtype)
    return torch.einsum("rbi,rbis->rbs", pattern, hot)


def loss(
    output: Float[Tensor, "model batch state"], answer: Int[Tensor, "model batch"], eps: float = EPS
) -> Float[Tensor, " model"]:
    """Mean `-log(output + eps)` of the answer (nats)."""
    return -(output.gather(-1, answer[..., None])[..., 0] + eps).log().mean(-1)
