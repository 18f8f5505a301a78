"""What moves the weights: plain gradient descent, and AdamW with a one-cycle schedule."""

import math
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from mechmarkov.utils.config import Fields

Rate = Annotated[float, Field(gt=0, le=1e6)]
Fraction = Annotated[float, Field(ge=0, lt=1)]

# Matrices shrink under weight decay; embeddings, positions, biases and norms do not (nanoGPT's groups, which
# Makkuva et al. use). The last three are the walk model's.
DECAYED = {"W_Q", "W_K", "W_V", "W_O", "W_in", "W_out", "W_U", "V", "u", "W"}


class GradientDescent(Fields):
    """Plain gradient descent, `x - lr * gradient`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["gd"] = "gd"
    lr: Rate = 1.0


class AdamW(Fields):
    """AdamW; the defaults are Makkuva et al.'s (arXiv 2402.04161, their code).

    Attributes:
        schedule: `one_cycle` is torch's `OneCycleLR` without its momentum cycle: a cosine from
            `lr / div_factor` up to `lr` over the fraction `warmup` of the steps, then a cosine down to
            `lr / div_factor / final_div_factor`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["adamw"] = "adamw"
    lr: Rate = 2e-3
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0, le=1)
    weight_decay: float = Field(default=1e-3, ge=0, le=1e3)
    schedule: Literal["one_cycle", "constant"] = "one_cycle"
    warmup: Fraction = 0.02
    div_factor: float = Field(default=100.0, ge=1, le=1e9)
    final_div_factor: float = Field(default=0.05, gt=0, le=1e9)


Settings = Annotated[GradientDescent | AdamW, Field(discriminator="kind")]


def learning_rate(settings: GradientDescent | AdamW, step: int, steps: int) -> float:
    """The learning rate of step `step` (the first is 0) out of `steps`.

    Example:
        >>> [round(learning_rate(AdamW(lr=1.0, warmup=0.5), step, 4), 2) for step in range(4)]
        [0.01, 1.0, 0.6, 0.2]
    """
    if isinstance(settings, GradientDescent) or settings.schedule == "constant":
        return settings.lr
    start = settings.lr / settings.div_factor
    end = start / settings.final_div_factor
    peak = settings.warmup * steps - 1  # torch counts a warm-up of n steps as n - 1 intervals
    if step <= peak:
        return _cosine(start, settings.lr, step / peak if peak > 0 else 1.0)
    return _cosine(settings.lr, end, (step - peak) / (steps - 1 - peak))


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * done))
