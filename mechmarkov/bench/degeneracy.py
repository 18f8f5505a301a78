"""Claims about degeneracy: the learning coefficient of a model at its trained parameters."""

from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechmarkov.bench.case import Case
from mechmarkov.bench.method import Method
from mechmarkov.curvature.learning_coefficient import learning_coefficient
from mechmarkov.curvature.loss_surface import LossSurface, loss_surface
from mechmarkov.curvature.population import population_of
from mechmarkov.curvature.trainable_vector import Coordinates
from mechmarkov.probing import Subject
from mechmarkov.probing.probe import load_probe
from mechmarkov.runs import Run

NO_COEFFICIENT = "no learning coefficient is derived in this case"
N_BETA = 3000.0  # predictions times inverse temperature
SHORT = {"chains": 4, "burn_in": 200, "draws": 400}
POSITIVE = 1e-6  # of the largest eigenvalue of the Hessian, in float64
# devinterp has no default step; its chains and draws are its defaults.
SEQUENCES, CHAINS, DRAWS, RATE = 2048, 4, 200, 1e-3


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
    run = Run.from_model(case.model, source=case.source, objective=case.objective)
    run = replace(run, trainable=dict.fromkeys(case.coefficient[0]))
    subject = Subject.of(run, find=load_probe)
    return loss_surface(subject, population_of(subject), Coordinates.of(run))


def sampled(case: Case) -> float | str:
    """The estimate of the probe `degeneracy`: Langevin chains with a Metropolis test, on the exact loss."""
    if case.coefficient is None:
        return NO_COEFFICIENT
    surface = surface_of(case)
    chains = learning_coefficient(surface.losses, surface.thetas[-1], n_beta=N_BETA, seed=0, **SHORT)
    return float(chains.mean())


def hessian_rank(case: Case) -> float | str:
    """Half the rank of the Hessian: exact of a minimum whose flat directions are flat to every order."""
    if case.coefficient is None:
        return NO_COEFFICIENT
    eigenvalues = torch.linalg.eigvalsh(surface_of(case).hessian_at(-1).dense())
    return float((eigenvalues > POSITIVE * eigenvalues.abs().max()).sum()) / 2


def half_the_parameters(case: Case) -> float | str:
    """What a model without degeneracy has."""
    if case.coefficient is None:
        return NO_COEFFICIENT
    return surface_of(case).coordinates.size / 2


class _Bare(nn.Module):
    """A model without its `cfg`, by which devinterp would take it for a HookedTransformer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Int[Tensor, "batch position"]) -> Float[Tensor, "batch position state"]:
        scores: Tensor = self.model(tokens)
        return scores


def devinterp(case: Case) -> float | str:
    """Devinterp's own estimate, by its defaults, of sequences of the source and their exact laws."""
    if case.coefficient is None:
        return NO_COEFFICIENT
    if find_spec("devinterp") is None:
        return "devinterp is not installed"
    llc, datasets = import_module("devinterp.slt.llc").llc, import_module("datasets")
    model = type(case.model)(case.model.config)
    model.load_state_dict(case.model.state_dict())
    generator = torch.Generator().manual_seed(0)
    tokens = case.source.sample(SEQUENCES, case.clean.shape[1], generator=generator)
    source: Any = case.source
    P = torch.tensor(source.P).float()

    def losses(model: nn.Module, tokens: Tensor) -> Float[Tensor, "batch position-1"]:
        return -(P[tokens] * model(tokens).log_softmax(-1)).sum(-1)[:, :-1]  # devinterp has no last law

    data = datasets.Dataset.from_dict({"input_ids": tokens.numpy()}).with_format("torch")
    masks = {f"model.{name}": None for name in case.coefficient[0]}
    options = {"num_chains": CHAINS, "num_draws": DRAWS, "batch_size": 256, "device": "cpu"}
    found = llc(_Bare(model), data, {}, lr=RATE, n_beta=N_BETA, param_masks=masks, loss_fn=losses, **options)
    return _possible(float(np.mean(found["llc_mean"])), surface_of(case).coordinates.size)


def _possible(estimate: float, parameters: int) -> float | str:
    """The estimate, if it is not larger than any model's: half the parameters (Watanabe 2009), twice over."""
    if abs(estimate) <= parameters:
        return estimate
    return "the chains diverged: more than a coefficient can be"


LAU = "Lau et al. 2023 (arXiv 2308.12108)"
degeneracy_probe = Method("degeneracy-probe", "coefficients", sampled, f"the probe `degeneracy`; {LAU}", "λ")
hessian_method = Method("hessian-rank", "coefficients", hessian_rank, "Watanabe 2009: regular models", "λ")
devinterp_method = Method("devinterp", "coefficients", devinterp, f"devinterp's; {LAU}", "λ")
parameters = Method("half-the-parameters", "coefficients", half_the_parameters, "what chance gives", "λ")
