"""Which exact predictor does the model imitate, to how many nats?"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import xarray as xr

from mechmarkov.probing import Probe
from mechmarkov.probing.dataset import MIN_GAP_NATS, last_model, normal_interval, score_with_null
from mechmarkov.probing.score import DIVERGENCE, EXCESS, Score

from . import figures, measure
from .claims import claims, headline
from .places import nearest


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The nearest predictor, KLs, and what the model loses to the best predictor."""
    last = last_model(data)

    def score(
        quantity: Callable[[xr.Dataset], xr.DataArray],
        error: xr.DataArray,
        unit: str = "nats",
        least: float = -np.inf,
        most: float = np.inf,
    ) -> Score:
        low, high = normal_interval(float(quantity(last)), float(error), least)
        return score_with_null(quantity, data, null, unit, interval=(low, min(most, high)))

    def kl_score(name: str) -> Score:
        return score(lambda d: d["kl"].sel(predictor=name), last["kl_error"].sel(predictor=name), least=0.0)

    if "best" not in data.attrs:
        missing = Score(None, "nats", reason=data.attrs["no_best"])
        lost = {"kl_best": missing, "excess_loss": missing}
        optimal = replace(missing, unit="probability")
    else:
        excess = score(lambda d: d["loss"] - d["best_loss"], last["excess_loss_error"])
        lost = {"kl_best": kl_score(data.attrs["best"]), "excess_loss": excess}
        optimal = Score(float(data["optimal_accuracy"]), "probability")
    progress = score(lambda d: 1 - d["left"], last["left_error"], "share of the way")
    if float(data["gap"]) < MIN_GAP_NATS:
        why = f"the unigram is within {MIN_GAP_NATS:g} nats of the best predictor"
        progress = Score(None, progress.unit, reason=why)
    accuracy = score(lambda d: d["accuracy"], last["accuracy_error"], "probability", least=0.0, most=1.0)
    of_symbols = {}
    if "loss_per_symbol" in data:
        unit, unknown = str(data["loss_per_symbol"].attrs["unit"]), "the entropy rate has no closed form"
        of_symbols = {
            "loss_per_symbol": score(lambda d: d["loss_per_symbol"], last["loss_per_symbol_error"], unit),
            "least_per_symbol": _known(float(data["least_per_symbol"]), unit, unknown),
        }
    # The first three stand open in the report: they decide.
    return (
        {"nearest_predictor": Score(nearest(data)[0], "")}
        | lost
        | {"progress": progress}
        | {f"kl_{name}": kl_score(data.attrs[name]) for name in ("unigram", "bigram")}
        | {"kl_uniform": kl_score("uniform"), "accuracy": accuracy, "optimal_accuracy": optimal}
        | of_symbols
    )


def _known(value: float, unit: str, reason: str) -> Score:
    """An exact value, or why there is none."""
    return Score(value, unit) if np.isfinite(value) else Score(None, unit, reason=reason)


probe = Probe(
    name="behaviour",
    question="Which exact predictor does the model imitate, and to how many nats?",
    cites="Predictors and KL over positions: Edelman et al. 2024 (arXiv 2402.11004), section 3",
    measure=measure.measure, scores=scores, claims=claims, headline=headline, figures=figures.draw,
    formula="KL from a predictor = E[Σⱼ p(j | context) log(p(j | context) / q(j | context))], p exact, q "
    "the model\n"
    "bigram p = P(current, ·) · unigram p = π · where each sequence has its own chain: (count of "
    "the transition + 1) / (count of the state + K)",
    ranges={"kl_*": DIVERGENCE, "excess_loss": EXCESS},
    formulas={
        "nearest_predictor": "the exact predictor with the smallest KL",
        "kl_uniform": "E[KL(1/K ‖ q)], q the model",
        "kl_unigram": "E[KL(unigram ‖ q)], q the model",
        "kl_bigram": "E[KL(bigram ‖ q)], q the model",
        "kl_best": "E[KL(p ‖ q)], p the Bayes-optimal prediction, q the model",
        "excess_loss": "E[−log q(next)] − E[−log p(next)], p the Bayes-optimal prediction",
        "progress": "1 − E[KL(p ‖ q)] / E[KL(p ‖ unigram)]: from the unigram's loss to the best",
        "accuracy": "how often the model's likeliest state comes next",
        "optimal_accuracy": "accuracy of the Bayes-optimal prediction",
        "loss_per_symbol": "E[−log q(next token)] / E[symbols of the next token]",
        "least_per_symbol": "the entropy rate of the source",
    },
    with_bos=True,
)  # fmt: skip
