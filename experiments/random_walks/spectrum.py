"""The Hessian at the trap of theorem 4.1, against its closed form."""

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.autograd.functional import hessian

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured, trained
from experiments.random_walks.common import FIGURES, value_matrix
from mechmarkov.models.constructions.walk import attend, position_table
from mechmarkov.theory.walk.trap_spectrum import trap_spectrum

EPS = 0.1


@exactly
def spectrum(quick: bool) -> Measured:
    """The Hessian at the trap against its closed form."""
    claims = []
    for family, figure in FIGURES.items():
        if quick and family == "walk-k20":
            continue
        ((run,),) = trained([mm.load_recipe(f"{family}-trap")], [0])
        worst, lowest = 0.0, []
        for step in (1,) if quick else (1, 10, 50):
            off, low = _hessian(run, step)
            worst = max(worst, off)
            lowest.append(low)
        claims.append(
            Finding(
                "trap_hessian",
                f"every predicted eigenvalue is one of the Hessian's, to {worst:.0e} of the largest; "
                "the lowest "
                f"{', '.join(f'{low:.4g}' for low in lowest)} at steps 1, 10, 50",
                holds(worst < 1e-6 and max(lowest) < 0),
                "dense float64 Hessian over all walks, by autograd, at weights of the reduced system, "
                "against "
                "theory/walk/trap_spectrum.py; largest distance of the best pairing of eigenvalues",
                "computed exactly",
                number=f"off by {worst:.0e} of the largest",
                case=figure,
            )
        )
    return Measured(claims)


def _hessian(run: mm.Run, step: int) -> tuple[float, float]:
    """How far predicted eigenvalues are from those of the Hessian, as a share of the largest; the lowest."""
    K = run.source.n_states
    shape = mm.load_recipe(f"walk-k{K}-trap").model.shape(K)
    N, table = shape.n_ctx, position_table(shape).double()
    walks = (torch.arange(K)[:, None] + torch.arange(N)) % K
    x = F.one_hot(walks[:, :-1], K).double()
    V = torch.from_numpy(value_matrix(run, step))
    index = run.steps.tolist().index(step)
    u = run.states["blocks.0.attn.W_K"][index, 0, :, 0].double()

    def loss(flat: Tensor) -> Tensor:
        seen = attend(x, shape.norm * flat[K * K :], table)
        scores = torch.einsum("bn,bnk->bk", seen[:, :-1], x) @ flat[: K * K].reshape(K, K).T
        return -(scores.gather(1, walks[:, -1:]) + EPS).log().mean()

    start = torch.cat([V.flatten(), u])
    found = torch.linalg.eigvalsh(hessian(loss, start)).numpy()
    with torch.no_grad():
        query = float(attend(x, shape.norm * u, table)[0, -1])
    alpha = float(V.mean())
    predicted = trap_spectrum(
        n_states=K,
        length=N,
        position_norm=shape.norm,
        alpha=alpha,
        query_mass=query,
        slope=-1 / (alpha * (1 - query) + EPS),
    ).eigenvalues
    cost = np.abs(predicted[:, None] - found)
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].max() / np.abs(found).max()), float(found[0])
