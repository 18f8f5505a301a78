"""The ends of a Hessian's spectrum outside the symmetric subspace."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import eigh_tridiagonal

from mechmarkov.curvature.loss_surface import Hessian
from mechmarkov.curvature.trainable_vector import Symmetry

# Up to this many trainable parameters the Hessian is written out; beyond, Lanczos finds its ends.
DENSE = 300
# Largest residual, as a share of the largest eigenvalue.
LANCZOS_TOLERANCE = 1e-4
# Products with the Hessian: fewer could miss an end that the random start hardly has.
MIN_PRODUCTS, MAX_PRODUCTS = 12, 400
# What is left of a product below this share of the largest eigenvalue is rounding: the space is exhausted.
ROUNDING = 1e-10
# Below this share of the largest, eigenvalues crowd at zero: only the smallest is sought, for the next ones
# would take hundreds of products and tell nothing.
CROWDED = 1e-3


@dataclass(frozen=True, eq=False)
class Ends:
    """Eigenvalues (nats / weight²) outside the symmetric subspace.

    Attributes:
        low: The smallest, ascending.
        high: The largest, ascending.
        low_vectors: Unit vectors of the smallest, one a column.
        high_vectors: Unit vectors of the largest, one a column.
        spectrum: All of them, ascending, where the Hessian was written out; else None.
        method: "dense" or "Lanczos".
    """

    low: Float[np.ndarray, " low"]
    high: Float[np.ndarray, " high"]
    low_vectors: Float[np.ndarray, "coordinate low"]
    high_vectors: Float[np.ndarray, "coordinate high"]
    spectrum: Float[np.ndarray, " mode"] | None
    method: str


def hessian_ends(hessian: Hessian, symmetry: Symmetry, *, low: int, dense: int = DENSE) -> Ends:
    """The smallest eigenvalues and the largest one of a Hessian outside the symmetric subspace.

    Args:
        hessian: At one model: `surface.hessian_at(member)`.
        symmetry: Says what is inside; where it is trivial, everything is judged.
        low: How many of the smallest; by Lanczos one, where it is zero or nearly so.
        dense: The most trainable parameters for which the Hessian is written out.

    Raises:
        ValueError: If Lanczos does not converge (the message says how far it came).

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.curvature.loss_surface import loss_surface
        >>> from mechmarkov.curvature.trainable_vector import symmetry_of
        >>> subject = mm.Subject.of(mm.example("trap"), sequences=8)
        >>> ends = hessian_ends(loss_surface(subject).hessian_at(0), symmetry_of(subject.run), low=2)
        >>> ends.low.round(1).tolist(), ends.method
        ([-5.0, -5.0], 'dense')
    """
    if hessian.size <= dense:
        basis = outside_basis(symmetry, hessian.size)
        values, vectors = np.linalg.eigh(basis.T @ hessian.dense().numpy() @ basis)
        vectors = basis @ vectors
        return Ends(values[:low], values[-1:], vectors[:, :low], vectors[:, -1:], values, "dense")
    return _lanczos(hessian, symmetry, low)


def _lanczos(hessian: Hessian, symmetry: Symmetry, low: int) -> Ends:
    """Both ends of the spectrum outside the symmetric subspace, from one Krylov space, and their vectors.

    The vectors are orthogonalised twice, so that none comes back. Of equal eigenvalues one is found. Where
    the smallest is not near zero, the next are sought from a new start, apart from what has been found.
    """
    values, vectors = _krylov_ends(hessian, symmetry, 1, [])
    pairs = [(values[0], vectors[:, 0])]
    scale = float(np.abs(values).max())
    low = min(low, outside_size(symmetry, hessian.size))
    while len(pairs) < low and abs(pairs[0][0]) > CROWDED * scale:
        more, vector = _krylov_ends(hessian, symmetry, 0, [v for _, v in pairs], scale)
        pairs.append((more[0], vector[:, 0]))
    pairs.sort(key=lambda pair: pair[0])
    lowest, low_vectors = (np.stack(part, axis=-1) for part in zip(*pairs, strict=True))
    return Ends(lowest, values[1:], low_vectors, vectors[:, 1:], None, "Lanczos")


def _krylov_ends(
    hessian: Hessian,
    symmetry: Symmetry,
    high: int,
    without: list[Float[np.ndarray, " coordinate"]],
    scale: float = 0.0,
) -> tuple[Float[np.ndarray, " end"], Float[np.ndarray, "coordinate end"]]:
    """The smallest eigenvalue and the `high` largest of what is outside the symmetries and some eigenvectors.

    Raises:
        ValueError: If the residuals stay above the tolerance (the message says by how much).
    """
    n, apart = hessian.size, torch.from_numpy(np.array(without).reshape(-1, hessian.size))
    start = torch.randn(n, generator=torch.Generator().manual_seed(len(without)), dtype=torch.float64)
    basis = symmetry.outside(start)[None]
    basis = basis - basis @ apart.mT @ apart
    basis = basis / basis.norm()
    diagonal, off = list[float](), list[float]()
    for step in range(1, min(n, MAX_PRODUCTS) + 1):
        product = symmetry.outside(hessian.times(basis[-1]))
        diagonal.append(float(product @ basis[-1]))
        for _ in range(2):
            product = symmetry.outside(product - (product @ apart.mT) @ apart)
            product = product - (product @ basis.mT) @ basis
        rest = float(product.norm())
        ritz, weights = eigh_tridiagonal(diagonal, off)
        chosen = [0, *range(max(0, step - high), step)]
        residual = rest * float(np.abs(weights[-1, chosen]).max())
        size = max(scale, float(np.abs(ritz).max()))
        if residual <= LANCZOS_TOLERANCE * size and (step >= min(n, MIN_PRODUCTS) or rest <= ROUNDING * size):
            vectors = (basis.mT @ torch.from_numpy(weights[:, chosen])).numpy()
            return ritz[chosen], vectors / np.linalg.norm(vectors, axis=0)
        off.append(rest)
        basis = torch.cat([basis, product[None] / rest])
    raise ValueError(
        f"Lanczos: after {step} products with a Hessian of {n} numbers a residual is {residual / size:.1e} "
        f"of the largest eigenvalue, expected at most {LANCZOS_TOLERANCE:g}"
    )


def outside_basis(symmetry: Symmetry, n: int) -> Float[np.ndarray, "coordinate outside"]:
    """An orthonormal basis of what is outside the symmetric subspace, one vector a column.

    Args:
        symmetry: The symmetries of source and model: `symmetry_of(run)`.
        n: The number of trainable parameters.
    """
    projector = symmetry.outside(torch.eye(n, dtype=torch.float64)).numpy()
    if symmetry.trivial:
        return projector
    values, vectors = np.linalg.eigh((projector + projector.T) / 2)
    return vectors[:, values > 0.5]


def outside_size(symmetry: Symmetry, n: int) -> int:
    """Returns how many directions of `n` are outside the symmetric subspace.

    Args:
        symmetry: The symmetries of source and model: `symmetry_of(run)`.
        n: The number of trainable parameters.
    """
    if symmetry.trivial:
        return n
    inside = len(set(symmetry.orbit.tolist()))
    return n - inside + (0 if symmetry.positions is None else len(symmetry.positions) - 1)
