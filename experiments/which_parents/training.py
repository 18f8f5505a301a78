"""Gradient descent on the trained parts, one after the other or together; a stack of seeds at once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.which_parents.kernel_model import Weights, loss, outputs
from mechmarkov.theory.lag_sets import LagSet

BATCH = 256
NAMES = tuple(field.name for field in fields(Weights))


@dataclass(frozen=True)
class Stage:
    """Some parts, each at its learning rate, for some steps."""

    rates: dict[str, float]
    steps: int


@dataclass(frozen=True)
class Trained:
    """What is kept of every model at every kept step, the start among them.

    Attributes:
        steps: The kept steps.
        shares: Of each set of lags.
        heads: Attention of the first layer.
        a: The second layer's scale.
        end: The last weights.
    """

    steps: Int[np.ndarray, " step"]
    shares: Float[np.ndarray, "step model set"]
    heads: Float[np.ndarray, "step model head lag"]
    a: Float[np.ndarray, "step model"]
    end: Weights


def descend(
    tokens: Int[Tensor, "model sequence position"],
    start: Weights,
    sets: list[LagSet],
    n_states: int,
    stages: Sequence[Stage],
    every: int = 10,
) -> Trained:
    """Plain gradient descent; each model goes through its own sequences, batch after batch.

    Args:
        tokens: The last is the answer.
        start: Where they begin.
        sets: Of lags, as `start.c` orders them.
        n_states: K.
        stages: One after the other.
        every: How many steps lie between kept ones.
    """
    now, step, kept = start, 0, [(0, start)]
    for stage in stages:
        for _ in range(stage.steps):
            at = step * BATCH % (tokens.shape[1] - BATCH + 1)
            batch = tokens[:, at : at + BATCH]
            moving = {name: getattr(now, name).detach().requires_grad_() for name in stage.rates}
            output = outputs(batch[..., :-1], replace(now, **moving), sets, n_states)
            slopes = torch.autograd.grad(loss(output, batch[..., -1]).sum(), list(moving.values()))
            moved = {
                name: moving[name].detach() - stage.rates[name] * slope
                for name, slope in zip(moving, slopes, strict=True)
            }
            now, step = replace(now, **moved), step + 1
            if step % every == 0:
                kept.append((step, now))
    return Trained(
        np.array([at for at, _ in kept]),
        np.stack([weights.shares.numpy() for _, weights in kept]),
        np.stack([weights.heads.numpy() for _, weights in kept]),
        np.stack([weights.a.numpy() for _, weights in kept]),
        now,
    )
