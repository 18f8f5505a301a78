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
from mechmarkov.models.kernels import kernels_of, use_fast_kernels
from mechmarkov.objectives import Objective, mean_over
from mechmarkov.training.sections import Init

Measures = dict[str, Float[Tensor, " stack"]]


def with_errors(
    parts: Sequence[tuple[Measures, Float[Tensor, "stack number"]]],
) -> tuple[Measures, Float[Tensor, "stack number"]]:
    """Average measures and gradients over groups of sequences, and give the standard errors of the averages.

    With n groups the error of the loss is `std / sqrt(n)`. The error of the gradient `g` is
    `sqrt(E |g - mean g|^2)`, without bias under the root. It bounds that of the gradient's norm in the mean
    square, as `||a| - |b|| <= |a - b|`.

    Args:
        parts: For each group, drawn independently of the others, its measures by name (`loss` in nats among
            them, `[stack]` each) and its gradient `[stack, number]`.

    Returns:
        The means, with `loss_error`, `gradient_norm` and `gradient_norm_error` `[stack]` next to them, and
        the mean gradient `[stack, number]`.

    Example:
        >>> groups = [({"loss": torch.tensor([x])}, torch.tensor([[x, 0.0]])) for x in (1.0, 3.0)]
        >>> measures, gradient = with_errors(groups)
        >>> {name: value.item() for name, value in measures.items()}, gradient.tolist()
        ({'loss': 2.0, 'loss_error': 1.0, 'gradient_norm': 2.0, 'gradient_norm_error': 1.0}, [[2.0, 0.0]])
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
    """Everything that the learner of a stack is built from: `recipe.model.learner(job)`.

    Attributes:
        config: The decoder that is trained, or exported.
        objective: What it is trained for.
        seeds: The seed of each member's start.
        inits: How each member starts.
        trainable: The part of the decoder that is trained; None for all.
        precision: The type that matrix products compute in.
        compile: Whether the decoder runs through `torch.compile`.
        device: Where the stack lives.
        start: Weights that every member starts from instead, without the stack axis.
    """

    config: DecoderConfig
    objective: Objective
    seeds: Sequence[int]
    inits: Sequence[Init]
    trainable: Slices | None
    precision: str
    compile: bool
    device: torch.device
    start: Mapping[str, Tensor] | None = None


@runtime_checkable
class Learner(Protocol):
    """A stack of models as the training loop needs it; every tensor has the leading stack axis.

    Attributes:
        parameters: What the optimiser moves, by name, `[stack, ...]`.
        masks: For parameters of which a part stays as it is: true where they may move, `[stack, ...]`.
        frozen: Tensors of the exported decoder that no step can change, without the stack axis.
        computed_by: What its steps are computed by, for the run's provenance.
    """

    parameters: dict[str, Tensor]
    masks: dict[str, Tensor]
    frozen: dict[str, Tensor]
    computed_by: str

    def measure(
        self,
        tokens: Int[Tensor, "*stack batch position"],
        targets: Int[Tensor, "*stack batch read"],
        weights: Float[Tensor, "*stack batch read"] | None = None,
    ) -> Measures:
        """Compute the mean loss of each member in nats, with its gradient graph, and other measures.

        Args:
            tokens: What the models read, `[batch, position]` or with the stack in front.
            targets: The states that they are to predict at the last `read` positions.
            weights: What each target counts (`population_law`); all the same where they are not given.

        Returns:
            By name, `loss` among them, `[stack]` each.
        """

    def export(self) -> dict[str, Tensor]:
        """Returns the decoder's tensors but `frozen`, by HookedTransformer's names."""


class DecoderLearner(Learner):
    """A stack of decoders as the training loop needs it (`Learner`), each started from its own seed.

    Args:
        job: What is trained. A member starts as it would by itself.
        fixed: Weights that are part of the architecture, by name. Parameters that are not among them are
            zero; what is drawn is added to the part that `job.trainable` names.

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
        self.computed_by = "torch.compile" if job.compile else kernels_of(self.decoder)

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
