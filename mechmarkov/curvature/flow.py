"""Gradient flow of the walk model on the exact population loss, beside gradient descent."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import solve_ivp
from torch import Tensor

from mechmarkov.objectives import inputs_and_targets
from mechmarkov.training.data import Batches
from mechmarkov.training.members import Member
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.walk import WalkLearner


@dataclass(frozen=True, eq=False)
class Flow:
    """A solution of `dtheta/dt = -dL/dtheta`.

    Attributes:
        times: When; gradient descent of step size eta is at time `eta n` after n steps.
        states: The trained tensors, by the walk model's names, float64.
        losses: The population loss, in nats.
    """

    times: Float[np.ndarray, " time"]
    states: dict[str, Float[np.ndarray, "time ..."]]
    losses: Float[np.ndarray, " time"]


def gradient_flow(
    recipe: Recipe, times: Sequence[float], seed: int = 0, *, rtol: float = 1e-9, atol: float = 1e-12
) -> Flow:
    """Integrate the flow from a recipe's start, by scipy's `LSODA`, which meets stiffness.

    Args:
        recipe: Of the walk model in float64, with `data.population = true`; its optimiser is not read.
        times: Ascending, from 0 or later.
        seed: What the start is drawn from.
        rtol: Of the solver, a step.
        atol: Of the solver, a step, in units of the weights.

    Raises:
        ValueError: Another recipe, times that do not ascend, or a solver that gives up.
    """
    at = np.asarray(times, dtype=float)
    _check(recipe, at)
    member, cpu = Member(recipe, seed), torch.device("cpu")
    learner, batches = WalkLearner([member], cpu), Batches([member], recipe.model.n_ctx, cpu)
    assert batches.fixed is not None
    tokens, targets = inputs_and_targets(batches.fixed, recipe.objective, recipe.source.n_states)
    parameters = list(learner.parameters.values())

    def loss_at(theta: Float[np.ndarray, " parameter"]) -> Tensor:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(torch.from_numpy(theta), parameters)
        return learner.measure(tokens, targets, batches.weights)["loss"].sum()

    def velocity(_: float, theta: Float[np.ndarray, " parameter"]) -> Float[np.ndarray, " parameter"]:
        gradients = torch.autograd.grad(loss_at(theta.copy()), parameters)
        return -torch.cat([gradient.flatten() for gradient in gradients]).numpy()

    start = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    solved = solve_ivp(velocity, (0.0, at[-1]), start, "LSODA", at, rtol=rtol, atol=atol)
    if not solved.success:
        raise ValueError(f"gradient flow to time {at[-1]:g} failed: {solved.message}")
    thetas = solved.y.T.copy()
    losses = np.array([float(loss_at(theta).detach()) for theta in thetas])
    pieces = np.split(thetas, np.cumsum([p.numel() for p in parameters])[:-1], 1)
    named = zip(learner.parameters.items(), pieces, strict=True)
    return Flow(at, {n: piece.reshape(-1, *p.shape[1:]) for (n, p), piece in named}, losses)


def _check(recipe: Recipe, times: Float[np.ndarray, " time"]) -> None:
    wanted = {"model.kind": "walk", "model.dtype": "float64", "data.population": True}
    for key, value in wanted.items():
        found = attrgetter(key)(recipe)
        if found != value:
            raise ValueError(f"{key} is {found!r}, expected {value!r} for gradient flow")
    if attrgetter("model.form")(recipe) == "reduced":
        raise ValueError("model.form is 'reduced', expected 'small' or 'full' for gradient flow")
    if not len(times) or times[0] < 0 or times[-1] <= 0 or (np.diff(times) <= 0).any():
        raise ValueError(f"times are {times.tolist()}, expected them ascending from 0 or later")
