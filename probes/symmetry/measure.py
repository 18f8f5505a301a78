"""The symmetries of source, model and gradient, and how far a model is from the symmetric trap."""

from dataclasses import replace

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from mechmarkov.curvature.loss_surface import SOLVED_NATS, LossSurface, loss_surface
from mechmarkov.curvature.population import Population, population_of
from mechmarkov.curvature.trainable_vector import Symmetry, symmetry_of
from mechmarkov.curvature.walk_parts import walk_parts
from mechmarkov.probing.dataset import Variables, variables
from mechmarkov.probing.rare_states import unseen_nats
from mechmarkov.probing.recording import ATTENTION
from mechmarkov.probing.subject import Subject
from mechmarkov.probing.value_circuits import path_tables
from mechmarkov.sources import FixedChain
from mechmarkov.theory.symmetry import commutant_share, orbitals
from mechmarkov.theory.walk.first_step import first_step_gradient, first_step_information
from mechmarkov.theory.walk.token_mean import token_mean_variance

from .equivariance import equivariance_error
from .reduced_run import RANDOM_STARTS, reduced_run, start_of
from .token_mean import token_mean_accuracy

# A first step whose information is below this is flat: float64 leaves about 1e-30 of a flat one.
FLAT_INFORMATION = 1e-9

# Attention is flat, and the rows of the circuit are constant, up to this share of their size.
FLAT_SHARE = 0.01

# What is left of a gradient that stays in a subspace, as a share: positions are stored in float32.
FLAT_GRADIENT = 1e-5

MAX_AUTOMORPHISMS = 256  # of which all are tried; of more, the generators


def measure(subject: Subject) -> xr.Dataset:
    """The symmetries of source, model and gradient, and how far the model is from the symmetric trap.

    Returns, over [axis]:
        `equivariance_error` (share; NaN without symmetries or for zero scores);
        `symmetric_share` (share of squared norm; NaN for a zero circuit): of all token-to-logit circuits;
        `gradient_norm` (loss / weight) and `gradient_outside`, the share of its squared norm outside
        what the symmetries leave unchanged (trainable parameters only; NaN where that is not defined);
        `attention_spread`: max S - min S over tokens of any head, in units of a token's mean share;
        `circuit_variation`: the share of the circuits' norm that depends on the state read;
        `excess` (nats): KL from the exact law of the next state to the predictions;
        `trapped`: the premises of theorem 4.1 hold (attrs `does_not_apply` is empty, the start is not random,
        the first gradient is flat and no gradient leaves the subspace), attention is flat, the rows of the
        circuit are constant, and there is something left to learn;
        `reduced_spread`, `reduced_gap`: of the reduced walk next to the run, where there is one.
    And of the source: `first_step` [state_to, state_from] (tokens), the exact first gradient of V up to its
    factor; `first_step_information` (share); `one_step_accuracy`, `token_mean_accuracy` and `chance`
    (probability; intervals in attrs); `between_class`, `token_mean_variance` (squared probability).

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("trap"), sequences=8))
        >>> bool(data.trapped[-1]), data.circuit_variation.round(2).values.tolist()
        (True, [0.0])
    """
    axis = subject.axis
    population = population_of(subject)
    surface = loss_surface(subject, population)
    symmetry = symmetry_of(subject.run)
    circuits = np.stack(list(path_tables(subject).values()), axis=1)
    if subject.objective.kind == "cross_entropy":  # what no softmax can see
        circuits = circuits - circuits.mean(-1, keepdims=True)
    spread, variation = _attention_spread(subject), _circuit_variation(circuits)
    known = _of_source(subject, population)
    excess = np.array([surface.excess(member) for member in range(len(subject.coordinates))])
    excess = excess + (0.0 if population.exact else unseen_nats(subject))
    trapped = (spread < FLAT_SHARE) & (variation < FLAT_SHARE) & (excess > SOLVED_NATS)
    trapped &= surface.walk is not None and _is_flat(known["first_step"].values)
    trapped &= _leaves(surface, symmetry) < FLAT_GRADIENT
    attributes = _attributes(subject, symmetry)
    trapped &= attributes["start"] not in RANDOM_STARTS
    data = xr.Dataset(
        _of_scores(subject, population, symmetry, circuits)
        | _of_gradient(subject.axis, surface, symmetry)
        | variables("nats", axis, excess=excess)
        | variables("share of uniform", axis, attention_spread=spread)
        | variables("share", axis, circuit_variation=variation)
        | variables("yes or no", axis, trapped=trapped.astype(int)),
        coords={axis: subject.coordinates},
        attrs=attributes | {"population": population.describe()},
    )
    return xr.merge([data, known, reduced_run(subject, population)], combine_attrs="no_conflicts")


def _attention_spread(subject: Subject) -> np.ndarray:
    """Max S - min S over tokens of any head, in units of a token's mean share, [axis]."""
    attention = subject.recorded(ATTENTION)
    seen = subject.batch.seen(subject.config.window)
    uniform = attention.last_mass[..., seen].mean(-1)  # 0 where a query sees only itself
    return np.asarray((attention.spread / np.where(uniform > 0, uniform, 1)).max((1, 2)))


def _circuit_variation(circuits: Float[np.ndarray, "axis path state_from state_to"]) -> np.ndarray:
    """The share of the circuits' norm that depends on the state read, [axis]."""
    varying = circuits - circuits.mean(-2, keepdims=True)
    size, varies = (np.sqrt((x**2).sum((1, 2, 3))) for x in (circuits, varying))
    return np.asarray(varies / np.where(size > 0, size, 1))


def _of_scores(
    subject: Subject,
    population: Population,
    symmetry: Symmetry,
    circuits: Float[np.ndarray, "axis path state_from state_to"],
) -> Variables:
    """Returns how equally relabelled states are treated, by the scores and by the circuits."""
    axis, source = subject.axis, subject.source
    assert isinstance(source, FixedChain)
    shares = commutant_share(circuits, orbitals(symmetry.generators, source.n_states))
    weight = (circuits**2).sum((-2, -1))
    error = share = np.full(len(subject.coordinates), np.nan)
    if symmetry.order > 1:
        group = population.relabellings
        if population.images == 1:  # all where they are few, so that no choice of generators matters
            few = symmetry.order <= MAX_AUTOMORPHISMS
            group = source.automorphisms() if few else source.automorphism_generators()
        error = equivariance_error(subject, population, group)
        with np.errstate(invalid="ignore"):
            share = np.nansum(shares * weight, axis=1) / weight.sum(1)
    return variables("share", axis, equivariance_error=error, symmetric_share=share)


def _is_flat(first_step: Float[np.ndarray, "state_to state_from"]) -> bool:
    """Returns whether the first gradient of V has constant rows: all states the same, whatever the label."""
    varying = first_step - first_step.mean(1, keepdims=True)
    return float((varying**2).sum()) < FLAT_INFORMATION * float((first_step**2).sum())


def _leaves(surface: LossSurface, symmetry: Symmetry) -> np.ndarray:
    """The share of the gradient that leaves the subspace of the shifts, at the nearest point in it, [axis].

    Over all that is trained. 0 without shifts: then only the closed form of the first gradient is known.
    """
    if not symmetry.shifts:
        return np.zeros(len(surface.thetas))
    inside = replace(surface, thetas=symmetry.inside(surface.thetas))
    gradient = inside.gradients().mean(1)
    leaving, whole = symmetry.outside(gradient).norm(dim=-1), gradient.norm(dim=-1)
    return np.asarray((leaving / torch.where(whole > 0, whole, 1)).numpy())


def _of_gradient(axis: str, surface: LossSurface, symmetry: Symmetry) -> Variables:
    """The size of the gradient, and how much of it is outside what the symmetries leave unchanged."""
    gradient = surface.gradients().mean(1)
    total, outside = (g.square().sum(-1) for g in (gradient, symmetry.outside(gradient)))
    share = torch.full_like(total, torch.nan) if symmetry.trivial else outside / total
    norms = variables(f"{surface.objective.unit} / weight", axis, gradient_norm=total.sqrt().numpy())
    return norms | variables("share", axis, gradient_outside=share.numpy())


def _of_source(subject: Subject, population: Population) -> xr.Dataset:
    """Returns what the source says: its first gradient, and what the token mean tells of the label."""
    source, length = subject.source, _length(subject)
    assert isinstance(source, FixedChain)
    pi = np.array(source.pi)
    first_step = first_step_gradient(source.P, pi, length)
    between, variance = token_mean_variance(source.P, pi, length)
    data = xr.Dataset(
        variables("tokens", ("state_to", "state_from"), first_step=first_step)
        | variables("share", (), first_step_information=first_step_information(first_step))
        | variables("squared probability", (), between_class=between, token_mean_variance=variance)
        | variables("probability", (), chance=float(np.max(source.pi)))
    )
    for name, (value, *interval) in token_mean_accuracy(subject, population, first_step).items():
        data[name] = ((), value, {"unit": "probability", "interval": interval})
    return data


def _length(subject: Subject) -> int:
    """N: the states of a sequence, its label among them."""
    return subject.batch.history.shape[1] + 1


def _why_not_the_walk(subject: Subject) -> str | None:
    """Returns why the walk model's symmetric trap says nothing of a model; None where it does."""
    if walk_parts(subject.run) is not None:
        return None
    if not subject.objective.query:
        return "each token can also reach the output past the token mean, by its own residual stream"
    return "it is not the walk model of one-hot tokens, of which only the token mean reaches the output"


def _attributes(subject: Subject, symmetry: Symmetry) -> dict[str, object]:
    source = subject.source
    assert isinstance(source, FixedChain)
    deterministic = bool(np.isin(source.P, (0.0, 1.0)).all()) and source.period == source.n_states
    init, optimiser = ((subject.run.recipe or {}).get(name) or {} for name in ("init", "optimiser"))
    parts = walk_parts(subject.run)
    # AdamW scales each coordinate by itself: that keeps the symmetry only where shifts permute coordinates.
    one_hot = parts is not None and bool((np.count_nonzero(parts.positions, axis=1) == 1).all())
    return {
        "source": source.title(),
        "labels": list(source.labels),
        "n_states": source.n_states,
        "length": _length(subject),
        "automorphisms": str(symmetry.order),  # may be larger than any integer of a file format
        "deterministic": deterministic,
        "shifts": symmetry.shifts,
        "acts": symmetry.acts,
        "stays": one_hot or optimiser.get("kind") == "gd",
        "does_not_apply": _why_not_the_walk(subject) or "",
        "start": start_of(init),
        "start_std": float(init.get("std") or 0.0),
    }
