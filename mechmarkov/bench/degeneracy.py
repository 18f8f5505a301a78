"""Claims about degeneracy: the learning coefficient of a model at its trained parameters."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch

from mechmarkov.bench.case import Case
from mechmarkov.bench.method import Method
from mechmarkov.curvature.devinterp import devinterp_coefficient
from mechmarkov.curvature.learning_coefficient import learning_coefficient
from mechmarkov.curvature.loss_surface import LossSurface, loss_surface
from mechmarkov.probing import Subject
from mechmarkov.probing.probe import load_probe

NO_COEFFICIENT = "no learning coefficient is derived in this case"
N_BETA = 3000.0  # predictions times inverse temperature
SHORT = {"chains": 4, "burn_in": 200, "draws": 400}
POSITIVE = 1e-6  # of the largest eigenvalue of the Hessian, in float64


def score_coefficient(case: Case, claim: float | str) -> dict[str, float]:
    """`llc_error`, the distance from the exact learning coefficient over that."""
    if case.coefficient is None or isinstance(claim, str):
        return {}
    exact = case.coefficient[1]
    return {"llc_error": abs(float(claim) - exact) / exact}


@lru_cache(maxsize=1)  # all methods are scored on one case before the next is built
def surface_of(case: Case) -> LossSurface:
    """The exact loss of the case's model as a function of the parameters that count as trained."""
    assert case.coefficient is not None
    run = replace(case.as_run(), trainable=dict.fromkeys(case.coefficient[0]))
    subject = Subject.of(run, find=load_probe)
    return loss_surface(subject)


def sampled(case: Case) -> float | str:
    """The estimate of the probe `degeneracy`: Langevin chains with a Metropolis test, on the exact loss."""
    if case.coefficient is None:
        return NO_COEFFICIENT
    surface = surface_of(case)
    chains = learning_coefficient(surface.losses, surface.thetas[-1], n_beta=N_BETA, seed=0, **SHORT)
    return float(chains.estimates.mean())


def hessian_rank(case: Case) -> float | str:
    """Half the rank of the Hessian: exact of a minimum whose flat directions are flat to every order."""
    if case.coefficient is None:
        return NO_COEFFICIENT
    eigenvalues = torch.linalg.eigvalsh(surface_of(case).hessian_at(-1).dense())
    return float((eigenvalues > POSITIVE * eigenvalues.abs().max()).sum()) / 2


def half_the_parameters(case: Case) -> float | str:
    """Returns what a model without degeneracy has."""
    if case.coefficient is None:
        return NO_COEFFICIENT
    return surface_of(case).coordinates.size / 2


def devinterp(case: Case) -> float | str:
    """Devinterp's own estimate, by its defaults, of sequences of the source and their exact laws."""
    if case.coefficient is None:
        return NO_COEFFICIENT
    return devinterp_coefficient(
        case.model, cast(Any, case.source), dict.fromkeys(case.coefficient[0]), n_beta=N_BETA
    )


LAU = "Lau et al. 2023 (arXiv 2308.12108)"
degeneracy_probe = Method("degeneracy-probe", "coefficients", sampled, f"the probe `degeneracy`; {LAU}")
hessian_method = Method("hessian-rank", "coefficients", hessian_rank, "Watanabe 2009: regular models")
devinterp_method = Method("devinterp", "coefficients", devinterp, f"devinterp's; {LAU}")
parameters = Method("half-the-parameters", "coefficients", half_the_parameters, "what chance gives")
