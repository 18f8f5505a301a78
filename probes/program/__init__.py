"""How much of the model does a program explain that reads tokens and counts, and looks them up in tables?"""

import numpy as np
import xarray as xr

from mechmarkov.probing import Probe
from mechmarkov.probing.dataset import last_model, normal_interval, score_with_null
from mechmarkov.probing.score import DIVERGENCE, Score

from . import figures, measure
from .claims import claims, nearest_predictor
from .match_mass import MATCH_MASS
from .measure import CONSTANT_NATS


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Returns what the best program, exact predictors and the weights' tables leave, and its size."""
    last = last_model(data)
    nats, kl_mean = float(last["kl"]), float(last["kl_mean"])
    interval = normal_interval(nats, float(last["kl_error"]), least=0.0)
    mean_program = "a program that always says the model's mean prediction"
    why = "the model's predictions are constant: there is nothing to explain"
    shares = None if kl_mean <= CONSTANT_NATS else (1 - interval[1] / kl_mean, 1 - interval[0] / kl_mean)
    name, of_predictor = nearest_predictor(last)
    return {
        "kl_model_program": Score(nats, "nats", kl_mean, interval, mean_program),
        "explained": Score(float(last["explained"]), "share", 0.0, shares, mean_program)
        if np.isfinite(last["explained"])
        else Score(None, "share", reason=why),
        "program": Score(" + ".join(map(str, last["term"].values)), ""),
        "program_numbers": Score(int(last["numbers"]), "numbers"),
        "program_predictor": Score(name, ""),
        "kl_model_predictor": Score(of_predictor, "nats", kl_mean, null_kind=mean_program),
        "explained_by_weights": score_with_null(
            lambda d: d["explained_by_weights"], data, null, "share", reason=why
        ),
        "kl_by_weights": Score(float(last["kl_by_weights"]), "nats", kl_mean, null_kind=mean_program),
    }


probe = Probe(
    name="program",
    question="How much of the model does a small program explain that reads tokens and counts?",
    cites="A transformer as a program: Friedman et al. 2023 (arXiv 2306.01128); tables: Elhage et al. 2021",
    measure=measure.measure, scores=scores, claims=claims, figures=figures.draw,
    formula="best program: score = bias + Σ of at most 5 terms, each a table of one or two tokens, counts in "
    "the context, a head over lags, tokens or matches, or a bias by position\n"
    "by weights: score = base + direct[parent] + Σ over MLPs of table[parent] + Σ over heads, lags m of aₘ · "
    "table[token at lag m], aₘ fitted to the attention\n"
    "explained = 1 − KL(model ‖ program) / KL(model ‖ the model's mean prediction)",
    ranges={"kl_*": DIVERGENCE},
    formulas={
        "kl_model_program": "E[KL(model ‖ best program found)], on fresh sequences; its interval is only "
        "theirs",
        "program": "the terms of the best program found, one after the other; other sequences may choose "
        "others",
        "program_numbers": "fitted numbers of the best program found",
        "program_predictor": "the exact predictor nearest to the model",
        "kl_model_predictor": "E[KL(model ‖ that predictor)]",
        "explained_by_weights": "1 − KL(model ‖ program by weights) / KL(model ‖ its mean prediction)",
        "kl_by_weights": "E[KL(model ‖ program by weights)]",
    },
    records=(MATCH_MASS,),
    with_bos=True,
)  # fmt: skip
