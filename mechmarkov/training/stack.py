"""A stack in training: all members as one model, one forward, one backward, one optimiser step."""

import operator
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.objectives import inputs_and_targets
from mechmarkov.runs.run import Run
from mechmarkov.training.cuda_graph import StepAsGraph
from mechmarkov.training.data import Batches
from mechmarkov.training.learner import LearnerJob, Measures, with_errors
from mechmarkov.training.optimisers import StackOptimiser, StackScaler
from mechmarkov.training.plan import Stack
from mechmarkov.training.workload import Member


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of training one stack, on the CPU.

    Attributes:
        members: What was trained, in the order of the stack.
        checkpoints: Tensors `[stack, ...]` under HookedTransformer's names, by step.
        frozen: The decoder's other tensors, the same for all members at all steps, without those axes.
        metrics: Arrays `[recorded step, stack]` by name; entry i is of the weights after i steps.
        seconds: Wall time, of only this session where training was resumed (s).
        device: Where it was trained.
        computed_by: What its steps were computed by.
    """

    members: tuple[Member, ...]
    checkpoints: dict[int, dict[str, Tensor]]
    frozen: dict[str, Tensor]
    metrics: dict[str, Tensor]
    seconds: float
    device: str
    computed_by: str

    def member(self, index: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns one member's weights and metrics by name.

        Weights are `[checkpoint, ...]`, or `[1, ...]` where they never change, metrics `[recorded step]`.
        """
        states = {name: tensor[None].clone() for name, tensor in self.frozen.items()}
        steps = sorted(self.checkpoints)
        for name in self.checkpoints[steps[0]]:
            tensors = [self.checkpoints[step][name][index] for step in steps]
            changes = any(not torch.equal(tensor, tensors[0]) for tensor in tensors)
            states[name] = torch.stack(tensors if changes else tensors[:1])
        return states, {name: values[:, index].clone() for name, values in self.metrics.items()}

    def diverged(self, index: int) -> bool:
        """Returns whether a member's weights or metrics are no longer finite."""
        last = self.checkpoints[max(self.checkpoints)]
        finite = all(bool(tensor[index].isfinite().all()) for tensor in last.values())
        return not finite or not all(bool(v[:, index].isfinite().all()) for v in self.metrics.values())


class StackInTraining:
    """Models that train as one, and everything of them that changes with a step.

    A member starts from the same weights and sees the same data, bit for bit, as if trained by itself;
    afterwards the two differ by the rounding of a different order of summation, which grows near a saddle.

    Args:
        stack: The members.
        device: Where they live.
        start: A run whose last weights every member, a decoder, starts from instead of its `init`.

    Raises:
        ValueError: `start` is given for walk models.

    Example:
        >>> from mechmarkov.training.plan import plan_training
        >>> from mechmarkov.training.recipe import load_recipe
        >>> recipe = load_recipe("walk-k6-half").with_set(["steps=2", "data={batch=4}"])
        >>> members = [Member(recipe, 0), Member(recipe, 1)]
        >>> (stack,) = plan_training(members, device="cpu", at_once=1).stacks
        >>> training = StackInTraining(stack, torch.device("cpu"))
        >>> for step in range(recipe.steps):
        ...     lr, drawn = training.optimiser.rates(step), training.batches.at(step)
        ...     training.record(training.update(lr, drawn))
        >>> training.fitted().metrics["loss"].shape  # a step, a member
        torch.Size([2, 2])
    """

    def __init__(self, stack: Stack, device: torch.device, start: Run | None = None) -> None:
        self._began, self.stack, self.device, self.step = time.perf_counter(), stack, device, 0
        work, members = stack.workload, stack.members
        self.recipe = recipe = work.recipe
        self.learner = recipe.model.learner(
            LearnerJob(
                config=work.config,
                objective=recipe.objective,
                seeds=[member.seed for member in members],
                inits=[member.recipe.init for member in members],
                trainable=work.trainable,
                precision=recipe.precision,
                compile=recipe.compile,
                device=device,
                start=None if start is None else {name: x[-1] for name, x in start.states.items()},
            )
        )
        self.start = {name: self.learner.parameters[name].detach().clone() for name in self.learner.masks}
        # Whole from the start: small tensors that stay, one a step, would keep malloc from using again what
        # activations leave between them, and a thousand steps of a walk would take 25 times the memory.
        self.rows = {step: row for row, step in enumerate(work.checkpoints)}
        self.weights: dict[str, Tensor] = {}  # [checkpoint, stack, ...]
        self.metrics: dict[str, Tensor] = {}  # [recorded step, stack]
        for name, value in self.learner.export().items():
            self.weights[name] = torch.zeros(len(self.rows), *value.shape, dtype=value.dtype)
            self.weights[name][0] = value
        self.batches = Batches(members, work.length, device)
        settings = [member.recipe.optimiser for member in members]
        self.optimiser = StackOptimiser(settings, self.learner.parameters, recipe.steps)
        self.scaler = StackScaler(len(members), device) if recipe.grad_scaler else None
        # Calls `update`, on a GPU by replaying its launches; torch.compile has its own way to launch less.
        self.launch = StepAsGraph() if device.type == "cuda" and not recipe.compile else operator.call
        # Tokens and targets of every step; None where each has its own.
        self.fixed = None if self.batches.fixed is None else self._split(self.batches.fixed)

    def record(self, measures: Measures) -> None:
        """Note what `update` measured, and keep the weights if they are wanted at this step."""
        self._note(measures)
        self.step += 1
        if self.step in self.rows:
            self._keep(self.step, self.learner.export())

    def _split(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return inputs_and_targets(states, self.recipe.objective, self.recipe.source.n_states)

    def update(self, lr: Tensor, *drawn: Tensor) -> Measures:
        """Move the weights by one step; a function of only tensors, as a CUDA graph needs it.

        Args:
            lr: The learning rates `[stack]`.
            drawn: The step's states `[stack, batch, state]`; nothing where all steps have `fixed`.

        Returns:
            What the learner measured before it: the loss in nats and the like, `[stack]` each.
        """
        tokens, targets = self.fixed or self._split(*drawn)
        groups = self.recipe.data.groups
        if groups is None:
            measures, gradients = self._slope(tokens, targets)
        else:
            parts = zip(tokens.chunk(groups, -2), targets.chunk(groups, -2), strict=True)
            measures, gradients = with_errors([self._slope(*part) for part in parts])
        taken = None
        if self.scaler is not None:
            gradients, taken = self.scaler.unscale(gradients)
        self.optimiser.step(gradients, lr, taken)
        with torch.no_grad():
            for name, mask in self.learner.masks.items():
                parameter = self.learner.parameters[name]
                parameter.copy_(torch.where(mask, parameter, self.start[name]))
        return measures

    def _slope(self, tokens: Tensor, targets: Tensor) -> tuple[Measures, Float[Tensor, "stack number"]]:
        """Returns measures on sequences, and the gradient of their loss, which a scaler multiplies."""
        measures = self.learner.measure(tokens, targets, self.batches.weights)
        losses = measures["loss"] if self.scaler is None else measures["loss"] * self.scaler.factor
        parameters, masks = self.learner.parameters, self.learner.masks
        slopes = torch.autograd.grad(losses.sum(), list(parameters.values()))
        gradients = [  # of what may move: the rest is not part of the gradient's length
            torch.where(masks[name], gradient, 0.0) if name in masks else gradient
            for name, gradient in zip(parameters, slopes, strict=True)
        ]
        return {name: value.detach() for name, value in measures.items()}, self.optimiser.flatten(gradients)

    def _note(self, measures: Measures) -> None:
        for name, value in measures.items():
            if name not in self.metrics:
                self.metrics[name] = value.new_zeros(self.recipe.steps + 1, *value.shape)
            self.metrics[name][self.step].copy_(value)

    def loss(self) -> float:
        """Returns the loss that the last update measured, on average over the members."""
        return float(self.metrics["loss"][self.step - 1].mean())

    def _keep(self, step: int, states: Mapping[str, Tensor]) -> None:
        for name, value in states.items():
            self.weights[name][self.rows[step]].copy_(value)

    @property
    def checkpoints(self) -> dict[int, dict[str, Tensor]]:
        """Returns the weights at each step so far that they were kept at, `[stack, ...]`."""
        rows = {step: row for step, row in self.rows.items() if step <= self.step}
        return {step: {name: x[row] for name, x in self.weights.items()} for step, row in rows.items()}

    def fitted(self) -> Fitted:
        """Returns the result, once all steps are taken."""
        seconds = time.perf_counter() - self._began
        metrics, learner, device = self.all_metrics(), self.learner, str(self.device)
        by = learner.computed_by
        return Fitted(self.stack.members, self.checkpoints, learner.frozen, metrics, seconds, device, by)

    def all_metrics(self) -> dict[str, Tensor]:
        """Returns metrics `[step, stack]` by name; on a fixed training set, those of the last weights too."""
        recorded = self.step
        if self.fixed is not None:
            with torch.no_grad():
                self._note(self.learner.measure(*self.fixed, self.batches.weights))
            recorded += 1
        return {name: values[:recorded].cpu() for name, values in self.metrics.items()}

    def snapshot(self) -> dict[str, Any]:
        """Returns all that is needed to go on from here, as plain values and CPU tensors."""
        parameters = self.learner.parameters
        return {
            "step": self.step,
            "parameters": {name: value.detach().cpu().clone() for name, value in parameters.items()},
            "optimiser": self.optimiser.state(),
            "scaler": {} if self.scaler is None else self.scaler.state(),
            "generators": self.batches.state(self.step),
            "checkpoints": {str(step): states for step, states in self.checkpoints.items()},
            "metrics": {name: values[: self.step].cpu().clone() for name, values in self.metrics.items()},
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a `snapshot`, to the same bits.

        Raises:
            ValueError: If it belongs to other members.
        """
        try:
            self._restore(snapshot)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                "what an interrupted training left does not fit this one: delete it to start again"
            ) from error

    def _restore(self, snapshot: dict[str, Any]) -> None:
        self.step = snapshot["step"]
        steps = sorted(map(int, snapshot["checkpoints"]))
        if steps != [step for step in self.rows if step <= self.step] or self.step < 0:
            raise ValueError(f"checkpoints {steps} at step {self.step}")
        with torch.no_grad():
            for name, parameter in self.learner.parameters.items():
                parameter.copy_(snapshot["parameters"][name])
        self.optimiser.restore(snapshot["optimiser"])
        if self.scaler is not None:
            self.scaler.restore(snapshot["scaler"])
        self.batches.restore(snapshot["generators"])
        for step, states in snapshot["checkpoints"].items():
            self._keep(int(step), states)
        for name, values in snapshot["metrics"].items():
            to_come = values.new_zeros(self.recipe.steps + 1 - len(values), *values.shape[1:])
            self.metrics[name] = torch.cat([values, to_come]).to(self.device)


def solved(stack: Stack) -> Fitted:
    """Returns the result of a training that is integrated, such as the walk model's reduced form."""
    began, recipe, count = time.perf_counter(), stack.workload.recipe, len(stack.members)
    frozen, checkpoints, metrics = recipe.model.solution(
        recipe.source, recipe.optimiser.lr, recipe.objective.eps, stack.workload.checkpoints
    )
    stacked = {
        step: {name: tensor.expand(count, *tensor.shape) for name, tensor in states.items()}
        for step, states in checkpoints.items()
    }
    values = {name: value[:, None].expand(-1, count) for name, value in metrics.items()}
    seconds = time.perf_counter() - began
    return Fitted(stack.members, stacked, frozen, values, seconds, "cpu", "an integrated flow")
