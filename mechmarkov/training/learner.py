"""What the training loop needs of a stack of models, and a stack of decoders that gives it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.config import DecoderConfig, Slices
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.init import initialise
from mechmarkov.models.kernels import use_fast_kernels
from mechmarkov.objectives import Objective, mean_over
from mechmarkov.training.sections import Init

Measures = dict[str, Float[Tensor, " stack"]]


def with_errors(
    parts: Sequence[tuple[Measures, Float[Tensor, "stack number"]]],
) -> tuple[Measures, Float[Tensor, "stack number"]]:
    """The means over groups of sequences that were drawn independently, with their standard errors.

    The error of the gradient `g` is `sqrt(E |g - mean g|^2)`, without bias under the root. It bounds that of
    its norm in the mean square, as `||a| - |b|| <= |a - b|`.

    Args:
        parts: What was measured on each group, and its gradient.

    Returns:
        The means, with `loss_error`, `gradient_norm` and `gradient_norm_error`, and the gradient.
    """
    n = len(parts)
    means = {name: torch.stack([one[name] for one, _ in parts]).mean(0) for name in parts[0][0]}
    losses = torch.stack([one["loss"] for one, _ in parts])
    gradient = torch.stack([part for _, part in parts]).mean(0)
    distance = torch.stack([(part - gradient).square().sum(-1) for _, part in parts]).sum(0)
    return means | {
        "loss_error": losses.std(0) / n**0.5,
        "gradient_norm": gradient.norm(dim=-1),
        "gradient_norm_error": (distance / (n * (n - 1))).sqrt(),
    }, gradient


@dataclass(frozen=True, eq=False)
class LearnerJob:
    """All that a section of a recipe builds its learner from; seeds and starts are each member's own."""

    config: DecoderConfig  # the decoder that is trained, or exported
    objective: Objective  # what it is trained for
    seeds: Sequence[int]  # the seed of each member's start
    inits: Sequence[Init]  # how each member starts
    trainable: Slices | None  # the part of the decoder that is trained; None for all
    precision: str  # the type that matrix products compute in
    compile: bool  # whether the decoder runs through `torch.compile`
    device: torch.device  # where the stack lives
    # Weights that every member starts from instead, without the stack axis.
    start: Mapping[str, Tensor] | None = None


@runtime_checkable
class Learner(Protocol):
    """A stack of models that can be trained; every tensor has the leading stack axis.

    Attributes:
        parameters: What the optimiser moves, by name.
        masks: For parameters of which a part stays as it is: true where they may move.
        frozen: Exported tensors that no step can change, without the stack axis.
    """

    parameters: dict[str, Tensor]
    masks: dict[str, Tensor]
    frozen: dict[str, Tensor]

    def measure(
        self,
        tokens: Int[Tensor, "*stack batch position"],
        targets: Int[Tensor, "*stack batch read"],
        weights: Float[Tensor, "*stack batch read"] | None = None,
    ) -> Measures:
        """Mean loss of each member in nats, with its gradient graph, and what else is cheap to know.

        Weights are what `population_law` gives; without them each sequence counts the same.
        """

    def export(self) -> dict[str, Tensor]:
        """The other tensors of the decoder this is, detached, under HookedTransformer's names."""


class DecoderLearner:
    """A stack of decoders, each started from its seed.

    Args:
        job: A member starts as it does by itself.
        fixed: Weights that are part of the architecture, to which what is drawn is added where it is trained.

    Raises:
        ValueError: If `trainable` or `init.zero` names something that is not a parameter of the decoder.
    """

    def __init__(self, job: LearnerJob, fixed: Mapping[str, Tensor] | None = None) -> None:
        self.objective = job.objective
        self.decoder = HookedDecoder(job.config, n_models=len(job.seeds))
        initialise(
            self.decoder,
            job.seeds,
            scheme=[init.scheme for init in job.inits],
            std=[init.std for init in job.inits],
            zero=[init.zero for init in job.inits],
        )
        if fixed is not None:
            _put(fixed, dict(self.decoder.named_parameters()), job.trainable or {})
        if job.start is not None:
            states = {name: value.expand(len(job.seeds), *value.shape) for name, value in job.start.items()}
            self.decoder.load_state_dict(states)
        self.decoder.to(job.device)
        is_float32 = job.precision == "float32"
        if is_float32 and not job.compile:
            use_fast_kernels(self.decoder)
        self._autocast = torch.autocast(
            job.device.type, dtype=getattr(torch, job.precision), enabled=not is_float32
        )
        self._forward = torch.compile(self.decoder) if job.compile else self.decoder
        parameters = dict(self.decoder.named_parameters())
        self.masks = {} if job.trainable is None else _masks(parameters, job.trainable)
        for name, parameter in parameters.items():
            parameter.requires_grad_(job.trainable is None or name in job.trainable)
        self.parameters: dict[str, Tensor] = {n: p for n, p in parameters.items() if p.requires_grad}
        self.frozen: dict[str, Tensor] = {}

    def measure(
        self,
        tokens: Int[Tensor, "*stack batch position"],
        targets: Int[Tensor, "*stack batch read"],
        weights: Float[Tensor, "*stack batch read"] | None = None,
    ) -> Measures:
        with self._autocast:
            scores = self._forward(tokens)[..., -targets.shape[-1] :, :].float()
        losses = self.objective.loss(scores, targets.expand(scores.shape[:-1]))
        return {"loss": mean_over(losses, weights)}

    def export(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.decoder.state_dict().items()}


@torch.no_grad()
def _put(fixed: Mapping[str, Tensor], parameters: dict[str, torch.nn.Parameter], trainable: Slices) -> None:
    """Fixed weights, zero where none are given; where a parameter may move, what was drawn is added."""
    masks = _masks(parameters, trainable)
    for name, parameter in parameters.items():
        drawn = parameter * masks.get(name, 1) if name in trainable else 0
        parameter.copy_(fixed.get(name, torch.zeros(())) + drawn)


def _masks(parameters: dict[str, torch.nn.Parameter], trainable: Slices) -> dict[str, Tensor]:
    masks = {}
    for name, slices in trainable.items():
        if name not in parameters:
            raise ValueError(f"trainable names {name!r}, which is not a parameter: {', '.join(parameters)}")
        shape = list(parameters[name].shape[1:])
        if slices is None:
            continue
        if len(slices) != len(shape) or any(
            len(pair) != 2 or not 0 <= pair[0] < pair[1] <= size
            for pair, size in zip(slices, shape, strict=False)
        ):
            raise ValueError(f"trainable.{name} is {slices}, expected [start, stop] within each of {shape}")
        mask = torch.zeros_like(parameters[name], dtype=torch.bool)
        mask[(slice(None), *(slice(start, stop) for start, stop in slices))] = True
        masks[name] = mask
    return masks
