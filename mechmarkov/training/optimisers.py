"""What moves the weights of a stack: gradient descent or AdamW, a rate for each member, and loss scaling.

Both rules act elementwise, so that a stack takes them in one pass: gradients, first and second
moments are `[stack, number]`, all parameters of a member side by side, and what differs between members is a
vector over the stack. torch's own optimisers know one learning rate a parameter, and one count of steps.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from mechmarkov.training.sections import AdamW, GradientDescent

# torch's defaults for `torch.amp.GradScaler`.
INITIAL_SCALE, GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL = 2.0**16, 2.0, 0.5, 2000
CLIP_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_
RATES_AT_ONCE = 256  # steps whose learning rates go to the device together

# Matrices shrink under weight decay; embeddings, positions, convolutions, biases and norms do not (nanoGPT's
# groups, which Makkuva et al. use). `V` and `u` are the walk model's matrices.
NOT_DECAYED = {"W_E", "W_pos", "W_rel"}


def is_decayed(name: str) -> bool:
    """Returns whether weight decay acts on the parameter of this name.

    Example:
        >>> [is_decayed(f"blocks.0.attn.{name}") for name in ("W_Q", "_W_K", "W_rel", "b_Q")]
        [True, True, False, False]
    """
    last = name.rsplit(".", 1)[-1]
    return last in ("V", "u") or (last.lstrip("_").startswith("W") and last not in NOT_DECAYED)


def learning_rate(settings: GradientDescent | AdamW, step: int, steps: int) -> float:
    """The learning rate of step `step` (the first is 0) out of `steps`.

    Example:
        >>> [round(learning_rate(AdamW(lr=1.0, warmup=0.5), step, 4), 2) for step in range(4)]
        [0.01, 1.0, 0.6, 0.2]
    """
    if isinstance(settings, GradientDescent) or settings.schedule == "constant":
        return settings.lr
    start = settings.lr / settings.div_factor
    if settings.schedule == "constant_with_warmup":
        rises = settings.warmup * steps
        return settings.lr if step >= rises else start + (settings.lr - start) * step / rises
    end = start / settings.final_div_factor
    peak = settings.warmup * steps - 1  # torch counts a warm-up of n steps as n - 1 intervals
    if step <= peak:
        return _cosine(start, settings.lr, step / peak if peak > 0 else 1.0)
    return _cosine(settings.lr, end, (step - peak) / (steps - 1 - peak))


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * done))


class StackOptimiser:
    """Gradient descent or AdamW for several models at once, each with its own learning rate.

    Args:
        settings: The `[optimiser]` of each model's recipe, all of one kind; AdamW's betas and eps are those
            of the first.
        parameters: Name to tensor `[stack, ...]`; `step` moves these in place.
        steps: How many steps there will be, which schedules stretch over.

    Example:
        >>> weights = {"W": torch.ones(2, 3)}  # two models of three numbers
        >>> optimiser = StackOptimiser([GradientDescent(lr=0.5), GradientDescent(lr=1.0)], weights, steps=1)
        >>> optimiser.step(optimiser.flatten([torch.ones(2, 3)]), optimiser.rates(0))
        >>> weights["W"].tolist()
        [[0.5, 0.5, 0.5], [0.0, 0.0, 0.0]]
    """

    def __init__(
        self, settings: Sequence[GradientDescent | AdamW], parameters: Mapping[str, Tensor], steps: int
    ) -> None:
        self._settings, self._steps = settings, steps
        self._rates = -1, torch.empty(0)
        self._names, self._parameters = list(parameters), list(parameters.values())
        self._sizes = [parameter[0].numel() for parameter in self._parameters]
        self._device = self._parameters[0].device
        first = settings[0]
        self._adam = first if isinstance(first, AdamW) else None
        decays = [s.weight_decay if isinstance(s, AdamW) else 0.0 for s in settings]
        self._weight_decay = self._over_stack(decays) if any(decays) else None
        limits = [getattr(s, "max_grad_norm", None) or math.inf for s in settings]
        self._max_norm = self._over_stack(limits) if min(limits) < math.inf else None
        self._decayed = [is_decayed(name) for name in self._names]
        if self._adam is not None:
            shape = (len(settings), sum(self._sizes))
            kwargs: dict[str, Any] = {"device": self._device, "dtype": self._parameters[0].dtype}
            self._mean, self._square = torch.zeros(shape, **kwargs), torch.zeros(shape, **kwargs)
            self._taken = torch.zeros(len(settings), device=self._device, dtype=torch.float64)

    def rates(self, step: int) -> Float64[Tensor, " stack"]:
        """Returns the members' learning rates at a step, the first of which is 0.

        They go to the device as a table of some steps at a time, since copying it waits for a GPU.
        """
        block, place = divmod(step, RATES_AT_ONCE)
        if self._rates[0] != block:
            steps = range(block * RATES_AT_ONCE, min(self._steps, (block + 1) * RATES_AT_ONCE))
            different = list(dict.fromkeys(self._settings))
            rates = {s: [learning_rate(s, i, self._steps) for i in steps] for s in different}
            table = torch.tensor([rates[s] for s in self._settings], dtype=torch.float64).T.contiguous()
            self._rates = block, table.to(self._device)
        return self._rates[1][place]

    def _over_stack(self, values: Sequence[float]) -> Float[Tensor, " stack"]:
        return torch.tensor(values, device=self._device, dtype=torch.float64)

    @torch.no_grad()
    def step(
        self,
        gradients: Float[Tensor, "stack number"],
        lr: Float64[Tensor, " stack"],
        taken: Bool[Tensor, " stack"] | None = None,
    ) -> None:
        """Take a step: move the parameters, and what is remembered of earlier gradients, in place.

        Args:
            gradients: What `flatten` returns.
            lr: What `rates` returns.
            taken: Members that take the step; the others stay as they are. None for all.
        """
        old = None
        if taken is not None:  # whether all are finite is not asked: a GPU would be waited for
            old = [parameter.clone() for parameter in self._parameters]
            gradients = torch.where(taken[:, None], gradients, 0.0)  # a NaN would reach the moments
        if self._max_norm is not None:
            norm = torch.linalg.vector_norm(gradients, dim=1)
            gradients = gradients * (self._max_norm / (norm + CLIP_EPS)).clamp_max(1.0)[:, None].to(norm)
        before = None if old is None or self._adam is None else (self._mean.clone(), self._square.clone())
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
        if taken is not None and old is not None:
            for parameter, value in zip(self._parameters, old, strict=True):
                parameter.copy_(torch.where(_like(taken, parameter), parameter, value))
            if before is not None:
                torch.where(taken[:, None], self._mean, before[0], out=self._mean)
                torch.where(taken[:, None], self._square, before[1], out=self._square)

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
        """Put the gradients of all parameters, in their order, side by side for each member."""
        return torch.cat([gradient.flatten(1) for gradient in gradients], 1)

    def _memory(self) -> dict[str, Tensor]:
        if self._adam is None:
            return {}
        return {"mean": self._mean, "square": self._square, "taken": self._taken}

    def state(self) -> dict[str, Tensor]:
        """Returns copies, on the CPU, of what it remembers of earlier steps; `restore` takes them."""
        return {name: tensor.cpu().clone() for name, tensor in self._memory().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Set what it remembers to a `state`, bit for bit."""
        for name, tensor in self._memory().items():
            tensor.copy_(state[name])


def _like(values: Tensor, tensor: Tensor) -> Tensor:
    """A vector over the stack, shaped to broadcast against `[stack, ...]`, in its type (or as bools)."""
    shaped = values.view(-1, *[1] * (tensor.ndim - 1))
    return shaped if values.dtype == torch.bool else shaped.to(tensor.dtype)


class StackScaler:
    """A loss scale for each member of a stack, by `torch.amp.GradScaler`'s rule.

    In float16 small gradients vanish and large ones are infinite. The loss is multiplied by `factor`
    `[stack]` before the backward pass, and `unscale` divides gradients after it. A member whose gradients
    overflowed skips the step and halves its factor. A member that took `GROWTH_INTERVAL` steps in a row
    doubles it.

    Example:
        >>> scaler = StackScaler(2, torch.device("cpu"))
        >>> gradients, finite = scaler.unscale(torch.tensor([[65536.0], [torch.inf]]))
        >>> gradients.tolist(), finite.tolist(), scaler.factor.tolist()
        ([[1.0], [inf]], [True, False], [65536.0, 32768.0])
    """

    def __init__(self, n_models: int, device: torch.device) -> None:
        self.factor: Float[Tensor, " stack"] = torch.full((n_models,), INITIAL_SCALE, device=device)
        self._since_growth = torch.zeros(n_models, device=device)

    def unscale(
        self, gradients: Float[Tensor, "stack number"]
    ) -> tuple[Float[Tensor, "stack number"], Bool[Tensor, " stack"]]:
        """Divide gradients by the factors, which then move on, in place.

        Returns:
            The gradients of the losses themselves, and which members' are finite.
        """
        gradients = gradients / self.factor[:, None].to(gradients.dtype)
        finite = gradients.isfinite().all(1)
        self._since_growth.add_(1).mul_(finite)
        grows = self._since_growth >= GROWTH_INTERVAL
        torch.where(finite, self.factor, self.factor * BACKOFF_FACTOR, out=self.factor)
        torch.where(grows, self.factor * GROWTH_FACTOR, self.factor, out=self.factor)
        self._since_growth.masked_fill_(grows, 0)
        return gradients, finite

    def state(self) -> dict[str, Tensor]:
        """Returns the factors, and since how many steps each stands, on the CPU."""
        return {"factor": self.factor.cpu().clone(), "since_growth": self._since_growth.cpu().clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Set the factors to a `state`."""
        self.factor.copy_(state["factor"])
        self._since_growth.copy_(state["since_growth"])
