"""The ends of a Hessian's spectrum outside the symmetric subspace."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from mechmarkov.curvature.loss_surface import Hessian
from mechmarkov.curvature.trainable_vector import Symmetry

# Up to so many trainable parameters the Hessian is written out; beyond, Lanczos finds its ends.
DENSE = 300
# Largest residual, as a share of the largest eigenvalue.
LANCZOS_TOLERANCE = 1e-4
# Below this share of the largest, eigenvalues crowd at zero: the smallest alone is sought, for the next ones
# would take hundreds of products and tell nothing.
CROWDED = 1e-3


@dataclass(frozen=True, eq=False)
class Ends:
    """Eigenvalues (nats a squared unit of weight) outside the symmetric subspace.

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


def hessian_ends(
    hessian: Hessian, symmetry: Symmetry, *, low: int, high: int = 1, dense: int = DENSE
) -> Ends:
    """The smallest and largest eigenvalues of a Hessian outside the symmetric subspace.

    Args:
        hessian: At one model.
        symmetry: Says what is inside; where it is trivial, everything is judged.
        low: How many of the smallest; by Lanczos one, where it is zero or nearly so.
        high: How many of the largest.
        dense: The most trainable parameters for which the Hessian is written out.

    Raises:
        ValueError: If Lanczos does not converge (the message says how far it came).
    """
    if hessian.size <= dense:
        basis = outside_basis(symmetry, hessian.size)
        values, vectors = np.linalg.eigh(basis.T @ hessian.dense().numpy() @ basis)
        kept = slice(max(0, len(values) - high), None)
        vectors = basis @ vectors
        return Ends(values[:low], values[kept], vectors[:, :low], vectors[:, kept], values, "dense")
    high_values, high_vectors = _lanczos(hessian, symmetry, "LA", high, shift=0.0)
    # ARPACK's tolerance is a share of the eigenvalue sought, and the smallest may be zero: it is sought as
    # that of the Hessian less its largest, which also takes what is inside out of the way.
    top = abs(float(high_values[-1]))
    low_values, low_vectors = _lanczos(hessian, symmetry, "SA", 1, shift=top)
    if low > 1 and abs(low_values[0] + top) > CROWDED * top:
        low_values, low_vectors = _lanczos(hessian, symmetry, "SA", low, shift=top)
    return Ends(low_values + top, high_values, low_vectors, high_vectors, None, "Lanczos")


def _lanczos(
    hessian: Hessian, symmetry: Symmetry, which: str, k: int, shift: float
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "coordinate k"]]:
    """Ends of the spectrum of the Hessian less a shift outside the symmetric subspace, and of 0 inside."""
    n = hessian.size
    start = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def apply(vector: np.ndarray) -> np.ndarray:
        out = symmetry.outside(torch.from_numpy(np.ascontiguousarray(vector.ravel())))
        product: np.ndarray = (symmetry.outside(hessian.times(out)) - shift * out).numpy()
        return product

    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    try:
        values, vectors = eigsh(
            operator,
            k=k,
            which=which,
            v0=symmetry.outside(start).numpy(),
            tol=LANCZOS_TOLERANCE,
            ncv=min(n, max(20, 4 * k)),
        )
    except ArpackNoConvergence as error:
        raise ValueError(
            f"Lanczos found {len(error.eigenvalues)} of {k} eigenvalues of a Hessian of {n} numbers"
        ) from None
    ascending = np.argsort(values)
    return values[ascending], vectors[:, ascending]


def outside_basis(symmetry: Symmetry, n: int) -> Float[np.ndarray, "coordinate outside"]:
    """An orthonormal basis of what is outside the symmetric subspace."""
    projector = symmetry.outside(torch.eye(n, dtype=torch.float64)).numpy()
    if symmetry.trivial:
        return projector
    values, vectors = np.linalg.eigh((projector + projector.T) / 2)
    return vectors[:, values > 0.5]


def outside_size(symmetry: Symmetry, n: int) -> int:
    """How many directions of `n` are outside the symmetric subspace."""
    if symmetry.trivial:
        return n
    inside = len(set(symmetry.orbit.tolist()))
    return n - inside + (0 if symmetry.positions is None else len(symmetry.positions) - 1)
