"""Is a point stationary, and if so of what kind: in nats, with the sampling error taken out.

The eigenvector of the smallest eigenvalue is chosen among thousands of directions, so that the eigenvalue on
the sequences that chose it is too low. Its curvature is therefore measured again on sequences of their own.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import eigh_tridiagonal
from scipy.optimize import minimize
from scipy.special import stdtrit
from torch import Tensor

from mechmarkov.curvature.loss_surface import Hessian, LossSurface
from mechmarkov.curvature.trainable_vector import Symmetry

from .hessian_spectrum import LANCZOS_TOLERANCE, Ends

Kind = Literal["minimum", "saddle", "undecided", "not stationary"]
Why = Literal["", "descent", "zeros", "kink", "unseen"]

# A point counts as stationary if the quadratic model puts the stationary point's loss within these nats: a
# fifth of what counts as something to explain elsewhere, and less than training on a thousand sequences
# leaves.
STATIONARY_NATS = 2e-3
# Curvature below this share of the largest is flat.
FLAT_CURVATURE = 1e-2
# A larger share would call anything flat: then nothing is decided.
MAX_FLAT_CURVATURE = 0.1
# Eigenvalues of a Hessian that is written out in float64 are rounded at this share of the largest.
DENSE_TOLERANCE = 1e-9
# Steps of Lanczos from the gradient; its Gauss quadrature is exact for polynomials of twice that degree.
LANCZOS_STEPS = 8
# Fewer, once a step changes it by less than this share.
SAME_NATS = 3e-3
NO_SIGN = 1e-4  # of the largest: sequences that are not a population, and weights in float32, leave as much
DESCENT_STEPS = 20  # of L-BFGS, from what looks like a minimum with flat directions
DESCENT = {"maxiter": DESCENT_STEPS, "gtol": 0.0, "ftol": 0.0}
# What sampling makes of that is the mean of this many draws; up to this many times it may be noise.
NOISE_DRAWS = 4
MAX_NOISES = 4
# Step of the central difference that gives a curvature on a part of the sequences.
DIFFERENCE = 1e-4


class End(NamedTuple):
    """An end of the Hessian's spectrum over the population, with its 95 % interval.

    Attributes:
        value: The curvature along the eigenvector on sequences that did not choose it.
        low, high: The interval.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Judgement:
    """The kind of point that a model is at, outside the symmetric subspace.

    Attributes:
        kind: "minimum" (perhaps with flat directions), "saddle", "undecided" or "not stationary".
        nats_away: How far the loss is from that of the stationary point of the quadratic model there.
        noise: The part that sampling by itself makes of that; 0 for a whole population.
        min: The smallest eigenvalue.
        max: The largest.
        resolution: Eigenvalues of less than this size are zero up to rounding.
        least_curvature: A direction grows if its curvature is clearly below minus this: what is left of the
            gradient bends directions by as much that are flat at the stationary point itself.
        flat_limit: A minimum has no curvature below minus this.
        why: What decided against the curvature: a few steps lower the loss by `descent`; the law has zeros,
            which no softmax reaches, and they halve all that is missing; a ReLU is exactly at its kink.
        descent: By how much they do, nats; 0 where it was not asked.
        kink: Whether a ReLU at its kink leaves no curvature; at the best predictions its bend has no weight.
        excess: KL from the exact law of the next state, nats.
    """

    kind: Kind
    nats_away: float
    noise: float
    min: End
    max: End
    resolution: float
    least_curvature: float
    flat_limit: float
    why: Why = ""
    descent: float = 0.0
    kink: bool = False
    excess: float = 0.0


def judge(
    surface: LossSurface,
    member: int,
    gradients: Float[Tensor, "group coordinate"],
    ends: Ends,
    hessian: Hessian,
    symmetry: Symmetry,
    fresh: LossSurface | None,
    *,
    at_kink: bool = False,
    unseen: float = 0.0,
) -> Judgement:
    """The kind of point that a model is at.

    A saddle has a direction whose curvature is clearly negative, on sequences that did not choose it. A
    minimum has none, and none that could be far below zero. All else is undecided, a spectrum that is zero
    or a gradient that sampling hides among it.

    Args:
        surface: The loss.
        member: Which model.
        gradients: Its gradient over each group of sequences.
        ends: The ends of its Hessian's spectrum.
        hessian: The Hessian itself.
        symmetry: What is inside, and not judged.
        fresh: The loss over other sequences; None where `surface` has all there are.
        at_kink: Whether the loss has no second derivative there.
        unseen: What states that the sequences hardly show add to KL from the exact law (nats). Where that is
            more than a stationary point may be off, the sequences say nothing of the population's.
    """
    outside = symmetry.outside(gradients)
    scale = max(abs(float(ends.low[0])), abs(float(ends.high[-1])))
    away = nats_away(hessian, symmetry, outside.mean(0), scale)
    noise = 0.0
    if not surface.population.exact:
        noise = float(np.mean([nats_away(hessian, symmetry, row, scale) for row in _as_noisy(outside)]))
    resolution = scale * (DENSE_TOLERANCE if ends.method == "dense" else LANCZOS_TOLERANCE)
    least, greatest = ends_of_population(surface, fresh, member, ends, resolution)
    # Probabilities that are this many nats from where they should be are off by sqrt(2 nats) (Pinsker), and
    # the part of the Hessian that they multiply by as large a share. Weights that were fitted to these very
    # sequences are still as far off as sampling makes them.
    bent = float(np.sqrt(2 * max(away, noise)))
    growing, flat = resolution + bent * scale, (FLAT_CURVATURE + bent) * scale
    excess = surface.excess(member) + unseen
    best = surface.objective.kind == "cross_entropy" and excess <= STATIONARY_NATS
    unreached = best and excess > 0 and bool((surface.population.law == 0).any())
    kind: Kind = "undecided"
    why: Why = ""
    descent = 0.0
    told = scale > 0 and flat <= MAX_FLAT_CURVATURE * scale
    if at_kink and not best:  # gradient and curvature are those of one side
        descent = _descends(surface, fresh or surface, member, symmetry)
        kind, why = ("not stationary", "descent") if descent > limit(noise) else ("undecided", "kink")
    elif away > limit(noise):
        kind = "not stationary"
    elif unreached and _descends(surface, surface, member, symmetry) > excess / 2:
        kind, why = "not stationary", "zeros"
    elif told and least.high < -growing and not best:
        kind = "saddle"
    elif told and least.low >= -flat and least.high >= -NO_SIGN * scale:
        kind = "minimum"
        if not best and least.value <= flat:
            descent = _descends(surface, fresh or surface, member, symmetry)
        if descent > limit(noise):
            kind, why = "not stationary", "descent"
    if unseen > STATIONARY_NATS:
        kind, why = "undecided", "unseen"
    at_kink = at_kink and not best
    return Judgement(
        kind, away, noise, least, greatest, resolution, growing, flat, why, descent, at_kink, excess
    )


def _descends(surface: LossSurface, fresh: LossSurface, member: int, symmetry: Symmetry) -> float:
    """By how many nats a few steps of L-BFGS lower the loss on other sequences; 0 where they only raise it.

    The quadratic model is too short-sighted where curvature is floored: a long way down a gentle slope.
    """
    start = surface.thetas[member].numpy()

    def value(theta: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.from_numpy(theta)[None].requires_grad_()
        loss = surface.losses(at).sum()
        (slope,) = torch.autograd.grad(loss, at)
        return loss.item(), symmetry.outside(slope[0]).numpy()

    descent = minimize(value, start, jac=True, method="L-BFGS-B", options=DESCENT)
    with torch.no_grad():
        before, after = fresh.losses(torch.from_numpy(np.stack([start, descent.x])))
    return max(0.0, float(before - after))


def limit(noise: float) -> float:
    """Returns up to how many nats from the stationary point a point counts as stationary.

    Args:
        noise: The part (nats) that sampling by itself makes of that: four times it is allowed on top.

    Example:
        >>> limit(noise=0.0), limit(noise=0.001)
        (0.002, 0.006)
    """
    return STATIONARY_NATS + MAX_NOISES * noise


def _as_noisy(gradients: Float[Tensor, "group coordinate"]) -> Float[Tensor, "draw coordinate"]:
    """Vectors as noisy as the mean of the groups' gradients, and nothing but noise: random signs to each."""
    groups = len(gradients)
    generator = torch.Generator().manual_seed(0)
    signs = 2.0 * torch.randint(2, (NOISE_DRAWS, groups), generator=generator).to(gradients.dtype) - 1
    return signs @ (gradients - gradients.mean(0)) / np.sqrt(groups * (groups - 1))


def nats_away(
    hessian: Hessian, symmetry: Symmetry, gradient: Float[Tensor, " coordinate"], scale: float
) -> float:
    """`g^T |H|^-1 g / 2` outside the symmetric subspace, curvature floored at a share of its scale.

    Along each eigenvector the quadratic model has its stationary point `|g_i| / |lambda_i|` away, and
    `g_i² / 2 |lambda_i|` nats lower or (at a saddle) higher. By Lanczos from the gradient: the eigenvalues
    and weights of the small tridiagonal matrix are a Gauss quadrature of such a form.

    Args:
        hessian: At the model: `surface.hessian_at(member)`.
        symmetry: Says what is inside, and not judged.
        gradient: The part of the model's gradient that is outside.
        scale: The largest absolute eigenvalue.
    """
    size = float(gradient.norm())
    if size == 0 or scale == 0:
        return 0.0 if size == 0 else np.inf
    basis = [gradient / size]
    diagonal, off = list[float](), list[float]()
    nats = np.inf
    for _ in range(min(LANCZOS_STEPS, len(gradient))):
        product = symmetry.outside(hessian.times(basis[-1]))
        diagonal.append(float(product @ basis[-1]))
        values, vectors = eigh_tridiagonal(diagonal, off)
        before, weights = nats, vectors[0] ** 2 * size**2
        nats = float((weights / (2 * np.maximum(np.abs(values), FLAT_CURVATURE * scale))).sum())
        for vector in basis:  # all of them: rounding would bring them back
            product = product - (product @ vector) * vector
        rest = float(product.norm())
        if rest < 1e-10 * scale or abs(nats - before) < SAME_NATS * nats:
            break
        off.append(rest)
        basis.append(product / rest)
    return nats


def ends_of_population(
    surface: LossSurface, fresh: LossSurface | None, member: int, ends: Ends, resolution: float
) -> tuple[End, ...]:
    """The smallest and the largest eigenvalue of the population's Hessian, from those of a sample.

    The smallest of a sample's Hessian is on average too low, for it is a minimum of means (Jensen). The
    curvature along its eigenvector on other sequences is on average too high, for no direction has less than
    the smallest. These two, each with its sampling error, enclose the smallest; the largest is their mirror
    image.

    Args:
        surface: The loss over the sample.
        fresh: That over other sequences; None where `surface` has all there are, and the ends are exact.
        member: The index of the model.
        ends: The ends of the sample's Hessian.
        resolution: The size below which eigenvalues are zero up to rounding.
    """
    own_ends = float(ends.low[0]), float(ends.high[-1])
    if fresh is None:
        return tuple(End(value, value - resolution, value + resolution) for value in own_ends)
    vectors = torch.from_numpy(np.stack([ends.low_vectors[:, 0], ends.high_vectors[:, -1]]))
    _, own = _curvature(surface, member, vectors)
    value, error = _curvature(fresh, member, vectors)
    lower = min(value[0], own_ends[0] - own[0]) - resolution, value[1] - error[1] - resolution
    upper = value[0] + error[0] + resolution, max(value[1], own_ends[1] + own[1]) + resolution
    return tuple(End(*map(float, end)) for end in zip(value, lower, upper, strict=True))


def _curvature(
    surface: LossSurface, member: int, vectors: Float[Tensor, "direction coordinate"]
) -> tuple[Float[np.ndarray, " direction"], Float[np.ndarray, " direction"]]:
    """The curvature along unit vectors, and half of its 95 % interval from groups of sequences."""
    steps = DIFFERENCE * torch.cat([vectors, -vectors])
    thetas = (surface.thetas[member] + steps).requires_grad_()
    curvatures = []
    groups = len(surface.population.tokens)
    for group in range(groups):
        (slopes,) = torch.autograd.grad(surface.group_losses(thetas, group).sum(), thetas)
        up, down = slopes.chunk(2)
        curvatures.append(((up - down) * vectors).sum(-1).numpy() / (2 * DIFFERENCE))
    error = np.std(curvatures, axis=0, ddof=1) / np.sqrt(groups)
    return np.mean(curvatures, axis=0), float(stdtrit(groups - 1, 0.975)) * error
