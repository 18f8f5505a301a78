"""Gradient descent and AdamW over a stack of models, each with its own learning rate.

Both rules act on each number alone, so that a stack takes them in one pass: gradients, first and second
moments are `[stack, number]`, all parameters of a member side by side, and what differs between members is a
vector over the stack. torch's own optimisers know one learning rate a parameter, and one count of steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechmarkov.training.optimiser import DECAYED, AdamW, GradientDescent, learning_rate


class StackOptimiser:
    """Moves the parameters of a stack, in place.

    Args:
        settings: One a member, of one kind; AdamW's betas and eps are those of the first.
        parameters: Name to tensor `[stack, ...]`.
        steps: How many steps there will be, which schedules stretch over.
    """

    def __init__(
        self,
        settings: Sequence[GradientDescent | AdamW],
        parameters: Mapping[str, Tensor],
        steps: int,
    ) -> None:
        self._settings, self._steps = settings, steps
        self._names, self._parameters = list(parameters), list(parameters.values())
        self._sizes = [parameter[0].numel() for parameter in self._parameters]
        self._device = self._parameters[0].device
        first = settings[0]
        self._adam = first if isinstance(first, AdamW) else None
        decays = [s.weight_decay if isinstance(s, AdamW) else 0.0 for s in settings]
        self._weight_decay = self._over_stack(decays) if any(decays) else None
        self._decayed = [name.rsplit(".", 1)[-1] in DECAYED for name in self._names]
        if self._adam is not None:
            shape = (len(settings), sum(self._sizes))
            kwargs: dict[str, Any] = {"device": self._device, "dtype": self._parameters[0].dtype}
            self._mean, self._square = torch.zeros(shape, **kwargs), torch.zeros(shape, **kwargs)
            self._taken = torch.zeros(len(settings), device=self._device, dtype=torch.float64)

    def _over_stack(self, values: Sequence[float]) -> Float[Tensor, " stack"]:
        return torch.tensor(values, device=self._device, dtype=torch.float64)

    @torch.no_grad()
    def step(
        self,
        gradients: Float[Tensor, "stack number"],
        step: int,
        taken: Bool[Tensor, " stack"] | None = None,
    ) -> None:
        """Take a step.

        Args:
            gradients: As `flatten` returns them.
            step: Its number; the first is 0.
            taken: Members that take the step; the others stay as they are. None for all.
        """
        lr = self._over_stack([learning_rate(s, step, self._steps) for s in self._settings])
        kept = None
        if taken is not None and not bool(taken.all()):
            kept = [parameter.clone() for parameter in self._parameters]
            gradients = torch.where(taken[:, None], gradients, 0.0)  # a NaN would reach the moments
        before = None if kept is None or self._adam is None else (self._mean.clone(), self._square.clone())
        update = self._adamw(gradients, lr, taken) if self._adam else gradients * -_like(lr, gradients)
        if self._weight_decay is not None:
            shrink = 1 - lr * self._weight_decay
            for parameter, decayed in zip(self._parameters, self._decayed, strict=True):
                if decayed:
                    parameter.mul_(_like(shrink, parameter))
        parts = torch.split(update, self._sizes, 1)
        torch._foreach_add_(
            self._parameters, [u.view_as(p) for u, p in zip(parts, self._parameters, strict=True)]
        )
        if taken is not None and kept is not None:
            for parameter, old in zip(self._parameters, kept, strict=True):
                parameter.copy_(torch.where(_like(taken, parameter), parameter, old))
            if before is not None:
                self._mean = torch.where(taken[:, None], self._mean, before[0])
                self._square = torch.where(taken[:, None], self._square, before[1])

    def _adamw(self, gradients: Tensor, lr: Tensor, taken: Tensor | None) -> Float[Tensor, "stack number"]:
        """Kingma & Ba's update with their correction of the start, without the decay."""
        assert self._adam is not None
        beta_mean, beta_square = self._adam.betas
        self._taken += 1 if taken is None else taken.to(self._taken.dtype)
        self._mean.lerp_(gradients, 1 - beta_mean)
        self._square.mul_(beta_square).addcmul_(gradients, gradients, value=1 - beta_square)
        steps = self._taken.clamp_min(1)  # a member that never took one is put back anyway
        correction = (1 - beta_square**steps).sqrt()
        rate = lr / (1 - beta_mean**steps)
        scale = self._square.sqrt().div_(_like(correction, gradients)).add_(self._adam.eps)
        return (self._mean / scale).mul_(_like(-rate, gradients))

    def flatten(self, gradients: Sequence[Tensor]) -> Float[Tensor, "stack number"]:
        """Gradients of the parameters, in their order, side by side."""
        return torch.cat([gradient.flatten(1) for gradient in gradients], 1)

    def state(self) -> dict[str, Tensor]:
        """What it remembers, on the CPU."""
        if self._adam is None:
            return {}
        return {
            name: value.cpu().clone()
            for name, value in (("mean", self._mean), ("square", self._square), ("taken", self._taken))
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Undo `state`, bit for bit."""
        if self._adam is not None:
            self._mean, self._square, self._taken = (
                state[name].to(self._device).clone() for name in ("mean", "square", "taken")
            )


def _like(values: Tensor, tensor: Tensor) -> Tensor:
    """A vector over the stack, shaped to broadcast against `[stack, ...]`, in its type (or as bools)."""
    shaped = values.view(-1, *[1] * (tensor.ndim - 1))
    return shaped if values.dtype == torch.bool else shaped.to(tensor.dtype)
