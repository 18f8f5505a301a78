"""The trainer: all seeds of a recipe as one stack, one forward, one backward, one optimiser step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from mechmarkov.training.data import Batches, inputs_and_targets, sequence_length
from mechmarkov.training.learner import DecoderLearner, Learner
from mechmarkov.training.optimiser import (
    build,
    learning_rate,
    optimiser_state,
    restore_optimiser,
    set_learning_rate,
)
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.sections import WalkSection
from mechmarkov.training.walk_fit import WalkLearner, reduced_trajectory

Snapshot = Callable[[], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What training gave, on the CPU.

    Attributes:
        recipe: What was trained.
        seeds: One a member of the stack.
        checkpoints: Step to tensors `[stack, ...]` under HookedTransformer's names.
        frozen: The decoder's other tensors, the same for all members at all steps, without those axes.
        metrics: Name to `[recorded step, stack]`; entry i is of the weights after i steps.
        seconds: Wall time, of this session alone where training was resumed.
        device: Where it was trained.
    """

    recipe: Recipe
    seeds: tuple[int, ...]
    checkpoints: dict[int, dict[str, Tensor]]
    frozen: dict[str, Tensor]
    metrics: dict[str, Tensor]
    seconds: float
    device: str

    def member(self, index: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """One seed's states, `[checkpoint, ...]` or `[1, ...]` where they never change, and its metrics."""
        states = {name: tensor[None].clone() for name, tensor in self.frozen.items()}
        steps = sorted(self.checkpoints)
        for name in self.checkpoints[steps[0]]:
            tensors = [self.checkpoints[step][name][index] for step in steps]
            changes = any(not torch.equal(tensor, tensors[0]) for tensor in tensors)
            states[name] = torch.stack(tensors if changes else tensors[:1])
        return states, {name: values[:, index].clone() for name, values in self.metrics.items()}

    def diverged(self, index: int) -> bool:
        """Whether a member's weights or metrics are no longer finite."""
        last = self.checkpoints[max(self.checkpoints)]
        finite = all(bool(tensor[index].isfinite().all()) for tensor in last.values())
        return not finite or not all(bool(v[:, index].isfinite().all()) for v in self.metrics.values())


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is any, else the CPU.

    Raises:
        ValueError: For a name that is no device, or CUDA where there is none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {name!r}, expected 'auto', 'cpu' or 'cuda'")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no CUDA device here")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def fit(
    recipe: Recipe,
    seeds: Sequence[int],
    device: str = "cpu",
    *,
    resume_from: dict[str, Any] | None = None,
    on_step: Callable[[int, Snapshot], None] | None = None,
    progress: bool = False,
) -> Fitted:
    """Train one model a seed, all of them as one stack.

    A member starts from the same weights and sees the same data, bit for bit, as when it is trained alone;
    afterwards the two differ by the rounding of a different order of summation, which grows near a saddle.

    Args:
        recipe: What to train.
        seeds: One a member.
        device: `auto`, `cpu` or `cuda`.
        resume_from: What a snapshot returned; training goes on from there and gives the same bits as if it
            had not been interrupted.
        on_step: Called after every step with its number and a function that takes a snapshot: plain values
            and tensors only.
        progress: Whether to draw a progress bar, once two seconds have passed.

    Raises:
        ValueError: If there are no seeds, or a seed is no integer from 0 to 2^63 - 1.
    """
    whole = all(type(seed) is int and 0 <= seed < 1 << 63 for seed in seeds)
    if not seeds or not whole or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds are {list(seeds)}, expected different integers from 0 to 2^63 - 1")
    began, place = time.perf_counter(), pick_device(device)
    if isinstance(recipe.model, WalkSection) and recipe.model.form == "reduced":
        return _fit_reduced(recipe, seeds, began)
    loop = _Loop(recipe, seeds, place)
    if resume_from is not None:
        loop.restore(resume_from)
    bar = tqdm(total=recipe.steps, initial=loop.step, desc=recipe.name, delay=2.0, disable=not progress)
    with bar:
        loop.keep_checkpoint()
        while loop.step < recipe.steps:
            loop.advance()
            bar.update()
            if on_step is not None:
                on_step(loop.step, loop.snapshot)
    return Fitted(
        recipe,
        tuple(seeds),
        loop.checkpoints,
        loop.learner.frozen,
        loop.all_metrics(),
        time.perf_counter() - began,
        str(place),
    )


class _Loop:
    """Everything that changes while a stack trains."""

    def __init__(self, recipe: Recipe, seeds: Sequence[int], device: torch.device) -> None:
        self.recipe, self.device, self.step = recipe, device, 0
        self.learner = _learner(recipe, seeds, device)
        self.start = {name: self.learner.parameters[name].detach().clone() for name in self.learner.masks}
        self.optimiser = build(recipe.optimiser, self.learner.parameters)
        n_ctx = recipe.decoder_config.n_ctx
        self.batches = Batches(
            recipe.source, recipe.data, sequence_length(recipe.objective, n_ctx), seeds, device
        )
        self.fixed = None if self.batches.fixed is None else self._split(self.batches.fixed)
        self.keep_at = set(recipe.checkpoint_steps)
        self.checkpoints: dict[int, dict[str, Tensor]] = {}
        self.metrics: dict[str, list[Tensor]] = {}

    def _split(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return inputs_and_targets(states, self.recipe.objective, self.recipe.source.n_states)

    def advance(self) -> None:
        """One step."""
        tokens, targets = self.fixed or self._split(self.batches.at(self.step))
        measures = self.learner.measure(tokens, targets)
        self._record(measures)
        self.optimiser.zero_grad(set_to_none=True)
        measures["loss"].sum().backward()  # type: ignore[no-untyped-call]
        set_learning_rate(self.optimiser, learning_rate(self.recipe.optimiser, self.step, self.recipe.steps))
        self.optimiser.step()
        with torch.no_grad():
            for name, mask in self.learner.masks.items():
                parameter = self.learner.parameters[name]
                parameter.copy_(torch.where(mask, parameter, self.start[name]))
        self.step += 1
        self.keep_checkpoint()

    def _record(self, measures: dict[str, Tensor]) -> None:
        for name, value in measures.items():
            self.metrics.setdefault(name, []).append(value.detach().clone())

    def keep_checkpoint(self) -> None:
        """Copy the weights if this is a step to keep them at."""
        if self.step in self.keep_at and self.step not in self.checkpoints:
            exported = self.learner.export()
            self.checkpoints[self.step] = {name: value.cpu().clone() for name, value in exported.items()}

    def all_metrics(self) -> dict[str, Tensor]:
        """Metrics `[step, stack]`; on a fixed training set, those of the last weights too."""
        if self.fixed is not None:
            with torch.no_grad():
                self._record(self.learner.measure(*self.fixed))
        return {name: torch.stack(values).cpu() for name, values in self.metrics.items()}

    def snapshot(self) -> dict[str, Any]:
        """All that is needed to go on from here, as plain values and CPU tensors."""
        parameters = self.learner.parameters
        return {
            "step": self.step,
            "parameters": {name: value.detach().cpu().clone() for name, value in parameters.items()},
            "optimiser": optimiser_state(self.optimiser, parameters),
            "generators": self.batches.state(self.step),
            "checkpoints": {str(step): dict(states) for step, states in self.checkpoints.items()},
            "metrics": {name: torch.stack(values).cpu() for name, values in self.metrics.items()},
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Undo `snapshot`."""
        self.step = snapshot["step"]
        with torch.no_grad():
            for name, parameter in self.learner.parameters.items():
                parameter.copy_(snapshot["parameters"][name])
        restore_optimiser(self.optimiser, self.learner.parameters, snapshot["optimiser"])
        self.batches.restore(snapshot["generators"])
        self.checkpoints = {int(step): states for step, states in snapshot["checkpoints"].items()}
        self.metrics = {name: list(values.to(self.device)) for name, values in snapshot["metrics"].items()}


def _learner(recipe: Recipe, seeds: Sequence[int], device: torch.device) -> Learner:
    if isinstance(recipe.model, WalkSection):
        return WalkLearner(recipe.walk_shape, recipe.model, recipe.objective, recipe.init, seeds, device)
    return DecoderLearner(
        recipe.decoder_config, recipe.objective, recipe.init, seeds, recipe.trainable, device
    )


def _fit_reduced(recipe: Recipe, seeds: Sequence[int], began: float) -> Fitted:
    frozen, checkpoints, metrics = reduced_trajectory(recipe)
    stack = len(seeds)
    stacked = {
        step: {name: tensor.expand(stack, *tensor.shape) for name, tensor in states.items()}
        for step, states in checkpoints.items()
    }
    values = {name: value[:, None].expand(-1, stack) for name, value in metrics.items()}
    return Fitted(recipe, tuple(seeds), stacked, frozen, values, time.perf_counter() - began, "cpu")
