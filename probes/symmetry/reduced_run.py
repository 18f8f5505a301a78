"""The reduced walk integrated next to a run: what gradient descent does where symmetry is exact."""

from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from mechmarkov.curvature.population import Population
from mechmarkov.curvature.walk_parts import WalkParts, walk_parts
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.walk import reduced_walk

MAX_STEPS = 400
RANDOM_STARTS = ("normal", "gpt2")  # what is left of one grows, however flat attention is


def reduced_run(subject: Subject, population: Population) -> xr.Dataset:
    """Integrate the reduced system with a run's step size, from zero, on the population's displacements.

    Args:
        subject: The run: `Subject.of(run)`.
        population: The sequences: `population_of(subject)`.

    Returns:
        Of the reduced system at the subject's steps: `reduced_spread` [axis] (probability), max S - min S
        over tokens; `reduced_gap` [axis] (share), `|V - V_reduced| / |V_reduced|` of the run, 0 where both
        are zero. Where there is none to compare with, only `no_reduced`, one line why, in attrs.
    """
    recipe = subject.run.recipe or {}
    optimiser, parts = recipe.get("optimiser") or {}, walk_parts(subject.run)
    source = subject.source
    if subject.axis == "seed":
        return _without("a null starts at random")
    if parts is None or source.kind != "circle":
        return _without("only the walk model on a circle reduces to K + N numbers")
    if subject.objective.kind != "raw_log" or optimiser.get("kind") != "gd":
        return _without("the reduced system is that of plain gradient descent on -log(score + eps)")
    if optimiser.get("lr") is None:
        return _without("the run's step size is unknown")
    if start_of(recipe.get("init") or {}) != "zero":
        return _without("the run did not start from zero, and only from there does it stay reduced")
    last = max(subject.coordinates)
    if last > MAX_STEPS:
        return _without(f"step {last} is further than the {MAX_STEPS} that are integrated")
    if population.exact:
        history, label = population.history.flatten(0, 1), population.targets.flatten(0, 1)
    else:  # a sample, as large as there is
        history, label = subject.batch.history, subject.batch.targets
    paths = np.concatenate([history.numpy(), label.numpy()[:, -1:]], axis=1)
    ahead, count = np.unique(reduced_walk.displacements(paths, source.n_states), axis=0, return_counts=True)
    weights = count / count.sum()
    try:
        states = reduced_walk.descend(
            ahead,
            weights,
            n_states=source.n_states,
            position_norm_sq=parts.norm**2,
            eta=float(optimiser["lr"]),
            eps=subject.objective.eps,
            steps=last,
        )
    except ValueError as error:
        return _without(f"the reduced system cannot be integrated: {error}")
    V = value_matrices(parts, subject.decoder.get_parameter("blocks.0.attn.W_O"))
    spread, gap = [], []
    for member, step in enumerate(subject.coordinates):
        state = states[step]
        reduced = reduced_walk.value_matrix(state.profile)
        attention = reduced_walk.forward(state, ahead).attention
        spread.append(float(np.ptp(attention[:-1])))
        gap.append(float(np.linalg.norm(V[member] - reduced)) / max(float(np.linalg.norm(reduced)), 1e-30))
    return xr.Dataset(
        variables("probability", subject.axis, reduced_spread=spread)
        | variables("share", subject.axis, reduced_gap=gap)
    )


def start_of(init: dict[str, Any]) -> str:
    """The scheme of a run's start: random weights whose standard deviation is zero are zero.

    >>> start_of({"scheme": "normal", "std": 0.0}), start_of({"scheme": "normal", "std": 0.1}), start_of({})
    ('zero', 'normal', 'unknown')
    """
    scheme = str(init.get("scheme", "unknown"))
    return "zero" if scheme in RANDOM_STARTS and init.get("std") == 0 else scheme


def _without(why: str) -> xr.Dataset:
    return xr.Dataset(attrs={"no_reduced": why})


def value_matrices(parts: WalkParts, W_O: torch.Tensor) -> Float[np.ndarray, "member state_to state_from"]:
    """`V` of each model of a stack, the walk model's table of what a token read adds to the scores.

    Args:
        parts: Where V stands in the weights: `surface.walk`.
        W_O: The output weights `[member, 1, K, d_model]`.
    """
    rows = W_O.detach().double().numpy()[:, 0]
    return rows[:, parts.read_at][:, :, parts.written_at].swapaxes(1, 2)
