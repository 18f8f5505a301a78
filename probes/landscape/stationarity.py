"""Is a point stationary, and if so of what kind: in nats, with the sampling error taken out."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.curvature.loss_surface import Hessian, LossSurface
from mechmarkov.curvature.trainable_vector import Symmetry

from .hessian_spectrum import Ends

Kind = Literal["minimum", "saddle", "not stationary"]

# A point counts as stationary if the quadratic model puts the stationary point's loss within so many nats: a
# fifth of what counts as something to explain elsewhere, and less than training on a thousand sequences
# leaves.
STATIONARY_NATS = 2e-3
# Curvature below this share of the largest is flat: so near to a stationary point, and no nearer, what is
# left of the gradient bends directions by about as much that are flat at the point itself.
FLAT_CURVATURE = 1e-2
# Steps of Lanczos from the gradient; its Gauss quadrature is exact for polynomials of twice that degree.
LANCZOS_STEPS = 8
# What sampling makes of that is the mean of so many draws; up to so many times it may be noise.
NOISE_DRAWS = 4
MAX_NOISES = 4
# Step of the central difference that gives a curvature on a part of the sequences.
DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Judgement:
    """What kind of point a model is at, outside the symmetric subspace.

    Attributes:
        kind: "minimum" (perhaps with flat directions), "saddle" or "not stationary".
        nats_away: How far the loss is from that of the stationary point of the quadratic model there.
        noise: What sampling alone makes of that; 0 for a whole population.
        least_curvature: The smallest eigenvalue that is called negative has at least this size.
    """

    kind: Kind
    nats_away: float
    noise: float
    least_curvature: float


def judge(
    surface: LossSurface,
    member: int,
    gradients: Float[Tensor, "group coordinate"],
    ends: Ends,
    hessian: Hessian,
    symmetry: Symmetry,
) -> Judgement:
    """The kind of point that a model is at.

    Args:
        surface: The loss.
        member: Which model.
        gradients: Its gradient over each group of sequences.
        ends: Of its Hessian's spectrum.
        hessian: The Hessian itself.
        symmetry: What is inside, and not judged.
    """
    outside = symmetry.outside(gradients)
    scale = max(abs(float(ends.low[0])), abs(float(ends.high[-1])))
    away = nats_away(hessian, symmetry, outside.mean(0), scale)
    noise = 0.0
    if not surface.population.exact and len(outside) > 1:
        noise = float(np.mean([nats_away(hessian, symmetry, row, scale) for row in _as_noisy(outside)]))
    error = _curvature_error(surface, member, torch.from_numpy(ends.low_vectors[:, 0].copy()))
    least = max(FLAT_CURVATURE * scale, 3 * error)
    kind: Kind = "saddle" if ends.low[0] < -least else "minimum"
    stationary = away <= limit(noise)
    return Judgement(kind if stationary else "not stationary", away, noise, least)


def limit(noise: float) -> float:
    """Up to how many nats from the stationary point a point counts as stationary."""
    return STATIONARY_NATS + MAX_NOISES * noise


def _as_noisy(gradients: Float[Tensor, "group coordinate"]) -> Float[Tensor, "draw coordinate"]:
    """Vectors as noisy as the mean of the groups' gradients, and nothing but noise: random signs to each."""
    groups = len(gradients)
    generator = torch.Generator().manual_seed(0)
    signs = 2.0 * torch.randint(2, (NOISE_DRAWS, groups), generator=generator).to(gradients.dtype) - 1
    return signs @ (gradients - gradients.mean(0)) / np.sqrt(groups * (groups - 1))


def sampling_error(gradients: Float[Tensor, "group coordinate"], exact: bool) -> float:
    """Standard error of the mean of groups' gradients, all directions together; 0 for a whole population."""
    groups = len(gradients)
    if exact or groups < 2:
        return 0.0
    spread = (gradients - gradients.mean(0)).square().sum()
    return float((spread / (groups * (groups - 1))).sqrt())


def nats_away(
    hessian: Hessian, symmetry: Symmetry, gradient: Float[Tensor, " coordinate"], scale: float
) -> float:
    """`g^T |H|^-1 g / 2` outside the symmetric subspace, curvature floored at a share of its scale.

    Along each eigenvector the quadratic model has its stationary point `|g_i| / |lambda_i|` away, and
    `g_i² / 2 |lambda_i|` nats lower or (at a saddle) higher. By Lanczos from the gradient: the eigenvalues
    and weights of the small tridiagonal matrix are a Gauss quadrature of such a form.
    """
    size = float(gradient.norm())
    if size == 0 or scale == 0:
        return 0.0 if size == 0 else np.inf
    basis = [gradient / size]
    diagonal, off = [], []
    for _ in range(min(LANCZOS_STEPS, len(gradient))):
        product = symmetry.outside(hessian.times(basis[-1]))
        diagonal.append(float(product @ basis[-1]))
        for vector in basis:  # all of them: rounding would bring them back
            product = product - (product @ vector) * vector
        rest = float(product.norm())
        if rest < 1e-10 * scale:
            break
        off.append(rest)
        basis.append(product / rest)
    inner = off[: len(diagonal) - 1]
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(inner, 1) + np.diag(inner, -1))
    weights = vectors[0] ** 2
    return float((weights * size**2 / (2 * np.maximum(np.abs(values), FLAT_CURVATURE * scale))).sum())


def _curvature_error(surface: LossSurface, member: int, vector: Float[Tensor, " coordinate"]) -> float:
    """Sampling error of the curvature along a unit vector, from its spread over groups of sequences."""
    groups = len(surface.population.tokens)
    if surface.population.exact or groups < 2:
        return 0.0
    theta = surface.thetas[member]
    ends = torch.stack([theta + DIFFERENCE * vector, theta - DIFFERENCE * vector]).requires_grad_()
    curvatures = []
    for group in range(groups):
        (slopes,) = torch.autograd.grad(surface.group_losses(ends, group).sum(), ends)
        curvatures.append(float((slopes[0] - slopes[1]) @ vector) / (2 * DIFFERENCE))
    return float(np.std(curvatures, ddof=1)) / float(np.sqrt(groups))
