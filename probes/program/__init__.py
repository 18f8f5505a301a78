"""How much of the model does a program explain that selects tokens and looks them up in a table?"""

import numpy as np
import xarray as xr

from mechmarkov.models.components import head_index
from mechmarkov.probing import Probe
from mechmarkov.probing.dataset import last_model, normal_interval, score_with_null
from mechmarkov.probing.probe import always
from mechmarkov.probing.score import Score

from . import figures, measure
from .match_mass import MATCH_MASS
from .measure import CONSTANT_NATS

# Under this many nats what is left of a model is not worth a word.
NEAR_NATS = 0.01

# A path is needed if without it this share of what there is to explain is lost.
MIN_PATH_SHARE = 0.1


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """What the program leaves unexplained, in nats and as a share."""
    last = last_model(data)
    nats, kl_mean = float(last["kl"]), float(last["kl_mean"])
    interval = normal_interval(nats, float(last["kl_error"]), least=0.0)
    mean_program = "a program that always says the model's mean prediction"
    why = "the model's predictions are constant: there is nothing to explain"
    return {
        "kl_model_program": Score(nats, "nats", kl_mean, interval, mean_program),
        "explained": score_with_null(lambda d: d["explained"], data, null, "share", reason=why),
    }


def _needed_paths(last: xr.Dataset) -> list[str]:
    """The paths without which the program would be worse, by a tenth of what there is to explain or more."""
    worth = last["kl_without"] - last["kl"]
    order = np.argsort(-worth.values, kind="stable")
    least = max(CONSTANT_NATS, MIN_PATH_SHARE * float(last["kl_mean"]))
    return [str(last["path"].values[i]) for i in order if float(worth[i]) > least]


def _in_words(last: xr.Dataset, path: str) -> str:
    """A path of the program in words."""
    before, _, name = path.rpartition("→")
    head = head_index(name)
    if head is None:
        return f"look up the parent in {'the direct table' if path == 'direct' else f'the table of {path}'}"
    weight, bonus = last["lag_weight"][head], float(last["match_bonus"][head])
    if bonus > np.log(2):
        what = (
            f"the tokens after earlier copies of the current one (favoured {np.exp(min(bonus, 40)):.3g} to 1)"
        )
    else:
        lag = int(weight.values.argmax())
        what = f"the token at lag {lag}" if lag != 1 else "the parent"
        share = float(weight[lag])
        what += f" with weight {share:.3f}" if share > 0.5 else f" most, with weight {share:.3f}, of many"
    through = f" what {before} selects at" if before else ""
    return f"look up{through} {what} in the table of {path}"


def _failures(last: xr.Dataset) -> str:
    """Where the program fails, in words."""
    labels = [str(label) for label in last.attrs["labels"]]
    after, by_position = last["kl_after"], last["kl_at"]
    state = int(np.nanargmax(after.values))
    said = f"most after state {labels[state]} ({float(after[state]):.3g} nats)"
    if by_position.size > 1:
        worst = by_position[int(by_position.values.argmax())]
        said += f" and at position {int(worst['position'])} ({float(worst):.3g} nats)"
    return said


def verdict(data: xr.Dataset) -> str:
    """The program in words, and how much of the model it is."""
    last = last_model(data)
    left, kl_mean, explained = (float(last[name]) for name in ("kl", "kl_mean", "explained"))
    if not np.isfinite(explained):
        return "The model's predictions are constant: a program that always says their mean is all of it."
    program = ", and ".join(_in_words(last, path) for path in _needed_paths(last))
    amounts = f"{left:.3g} nats of {kl_mean:.3g} are left"
    if left < NEAR_NATS and explained > 0.5:
        what = program or "add up every path, none of which matters alone"
        return f"A program explains {explained:.2%} of the model on fresh sequences: {what} ({amounts})."
    what = f"'{program}'" if program else "of lags, matches and tables"
    share = f"{max(0.0, explained):.0%}"
    return f"The program {what} explains {share} of the model: {amounts}, {_failures(last)}."


probe = Probe(
    name="program",
    question="How much of the model does a program explain that selects tokens and looks them up in a table?",
    cites="A transformer as a program: Friedman et al. 2023 (arXiv 2306.01128); tables: Elhage et al. 2021",
    applies=always,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures.draw,
    formula="score = base + direct[parent] + Σ over MLPs of table[parent] + Σ over heads, lags m of aₘ · "
    "table[token at lag m], aₘ fitted to the attention\n"
    "explained = 1 − KL(model ‖ program) / KL(model ‖ the model's mean prediction)",
    records=(MATCH_MASS,),
)
