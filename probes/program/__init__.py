"""How much of the model does a program explain that reads tokens and counts, and looks them up in tables?"""

import numpy as np
import xarray as xr

from mechmarkov.models.components import head_index
from mechmarkov.probing import Probe
from mechmarkov.probing.dataset import NORMAL_95, last_model, normal_interval, score_with_null
from mechmarkov.probing.preconditions import in_words, token_in_words
from mechmarkov.probing.probe import always
from mechmarkov.probing.score import Score
from mechmarkov.utils.text import counted, format_range, format_share, listed

from . import figures, measure
from .match_mass import MATCH_MASS
from .measure import CONSTANT_NATS

# Under this many nats what is left of a model is not worth a word.
NEAR_NATS = 0.01

# A path is needed if without it this share of what there is to explain is lost.
MIN_PATH_SHARE = 0.1
MAX_NAMED = 2  # terms, and likewise tables
ALIKE = 0.99  # of the largest weight: which lag has it is rounding
MIN_REACH = 0.5  # a lag that fewer predictions reach is told with their share


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """What the best program leaves, its size, and what exact predictors and the weights' tables leave."""
    last = last_model(data)
    nats, kl_mean = float(last["kl"]), float(last["kl_mean"])
    interval = normal_interval(nats, float(last["kl_error"]), least=0.0)
    mean_program = "a program that always says the model's mean prediction"
    why = "the model's predictions are constant: there is nothing to explain"
    shares = None if kl_mean <= CONSTANT_NATS else (1 - interval[1] / kl_mean, 1 - interval[0] / kl_mean)
    name, of_predictor = _nearest_predictor(last)
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


def _nearest_predictor(last: xr.Dataset) -> tuple[str, float]:
    """The exact predictor that leaves least of one model, and how much."""
    values = last["kl_predictor"]
    nearest = int(values.argmin("predictor"))
    return str(values["predictor"].values[nearest]), float(values[nearest])


def _needed_paths(last: xr.Dataset) -> list[str]:
    """The paths without which the program would be worse, by a tenth of what there is to explain or more."""
    worth = last["kl_without"] - last["kl_by_weights"]
    order = np.argsort(-worth.values, kind="stable")
    least = max(CONSTANT_NATS, MIN_PATH_SHARE * float(last["kl_mean"]))
    return [str(last["path"].values[i]) for i in order if float(worth[i]) > least]


def _in_words(last: xr.Dataset, path: str) -> str:
    """A path of the program in words."""
    before, _, name = path.rpartition("→")
    head = head_index(name)
    if head is None:
        known = token_in_words(1, int(last.attrs["query_shift"]), int(last.attrs["source_lag"])).split(",")[0]
        return f"look up {known} in {'the direct table' if path == 'direct' else f'the table of {path}'}"
    weight, bonus = last["lag_weight"][head], float(last["match_bonus"][head])
    if bonus > np.log(2):
        odds = np.exp(min(bonus, 40))
        what = f"the tokens after earlier copies of the current one (favoured {odds:.3g} to 1)"
    else:
        lag = int(weight.values.argmax())
        what = token_in_words(lag, int(last.attrs["query_shift"]), int(last.attrs["source_lag"]))
        what, share = what.removesuffix(","), float(weight[lag])
        farthest = last["position"].values - int(last.attrs["query_shift"]) + 1
        reach = float((farthest >= lag).mean())
        first = float((weight.values[farthest] / weight.values.cumsum()[farthest]).mean())
        if reach < MIN_REACH and first > 0.5:  # what is farthest, however far
            what, share, reach = "the first token", first, 1.0
        what += f" with weight {share:.3f}" if share > 0.5 else f" most, with weight {share:.3f}, of many"
        if reach < MIN_REACH:
            what += f", in the {format_share(reach)} of predictions that reach so far,"
        alike = int((weight.values[1:] > ALIKE * share).sum()) if lag else 1
        if alike > 1:
            what = f"{alike} tokens alike, with weight {float(weight[lag]):.3f} each,"
    through = f" what {before} selects at" if before else ""
    return f"look up{through} {what} in the table of {path}"


def _failures(last: xr.Dataset) -> str:
    """Where the program fails, in words: where it surely leaves more than anywhere else."""
    labels, said = [str(label) for label in last.attrs["labels"]], []
    after, at = last["kl_after"].values, last["kl_at"].values
    if (state := _stands_out(after, last["kl_after_error"].values)) is not None:
        said.append(f"after state {labels[state]} ({after[state]:.3g} nats)")
    if (i := _stands_out(at, last["kl_at_error"].values)) is not None:
        said.append(f"at position {int(last['position'][i])} ({at[i]:.3g} nats)")
    if said:
        return f"What is left is most {' and '.join(said)}."
    nats = format_range(np.nanmin(after), np.nanmax(after), 3)
    return f"Where most is left is open: after each state it is {nats} nats."


def _stands_out(nats: np.ndarray, error: np.ndarray) -> int | None:
    """The one whose interval is above all others'; None where there is none, or no other."""
    known = np.flatnonzero(np.isfinite(nats))
    if len(known) < 2:
        return None
    first = known[nats[known].argmax()]
    others = known[known != first]
    low, high = nats[first] - NORMAL_95 * error[first], (nats + NORMAL_95 * error)[others].max()
    return int(first) if low > high else None


def _term_in_words(last: xr.Dataset, term: str) -> str:
    """A term of the fitted program in words."""
    shift, source = int(last.attrs["query_shift"]), int(last.attrs["source_lag"])
    kind, _, lags = term.partition(" ")
    if kind in ("lag", "lags"):
        tokens = [token_in_words(int(lag), shift, source).split(",")[0] for lag in lags.split(", ")]
        return f"a table of {listed(tokens)}"
    grams = {"1": "tokens", "2": "pairs", "3": "triples"}
    words = {
        "position": "a bias by position",
        "counts times a row": "counts of tokens times the row of the current one",
        "head over lags": "a head that mixes lags",
        "head by tokens": "a head that looks by token",
        "head on matches of 1": "an induction head",
        "head on matches of 2": "an induction head that matches two tokens",
    }
    return words.get(term) or f"counts of {grams[term.split()[-1]]} in the context"


def verdict(data: xr.Dataset) -> str:
    """The best program in words, how much of the model it is, and what the weights' own tables explain."""
    last = last_model(data)
    left, kl_mean, explained = (float(last[name]) for name in ("kl", "kl_mean", "explained"))
    if not np.isfinite(explained):
        return "The model's predictions are constant: a program that always says their mean is all of it."
    terms = [_term_in_words(last, str(term)) for term in last["term"].values[1:]] or ["the mean prediction"]
    most = normal_interval(left, float(last["kl_error"]))[1]
    name, of_predictor = _nearest_predictor(last)
    said = [
        f"The best program found explains {format_share(max(0.0, explained), 1)} of the model.",
        f"It is {listed(terms[:MAX_NAMED])}.",
        *_more(len(terms) - MAX_NAMED, "term"),
        f"It has {int(last['numbers'])} numbers and leaves {left:.3g} of {kl_mean:.3g} nats on fresh "
        f"sequences, at most {most:.3g}.",
        f"By the same measure, KL from the model, the nearest exact predictor is the {in_words(name)}: it "
        f"leaves {of_predictor:.3g}.",
    ]
    if left >= NEAR_NATS:
        said.append(_failures(last))
    program = [_in_words(last, path) for path in _needed_paths(last)]
    share = max(0.0, float(last["explained_by_weights"]))
    said.append(f"Tables read from the weights explain {format_share(share, 1)}.")
    said += [f"They {'also ' * (i > 0)}{step}." for i, step in enumerate(program[:MAX_NAMED])]
    said += _more(len(program) - MAX_NAMED, "table")
    return " ".join(said)


def _more(number: int, noun: str) -> list[str]:
    """Those that are not named."""
    return [f"{counted(number, f'more {noun}')} add{'s' * (number == 1)} to it."] * (number > 0)


FORMULAS = {
    "kl_model_program": "E[KL(model ‖ best program found)], on fresh sequences; its interval is theirs alone",
    "program": "the terms of the best program found, one after the other; other sequences may choose others",
    "program_numbers": "fitted numbers of the best program found",
    "program_predictor": "the exact predictor nearest to the model",
    "kl_model_predictor": "E[KL(model ‖ that predictor)]",
    "explained_by_weights": "1 − KL(model ‖ program by weights) / KL(model ‖ its mean prediction)",
    "kl_by_weights": "E[KL(model ‖ program by weights)]",
}

probe = Probe(
    name="program",
    question="How much of the model does a small program explain that reads tokens and counts?",
    cites="A transformer as a program: Friedman et al. 2023 (arXiv 2306.01128); tables: Elhage et al. 2021",
    applies=always,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures.draw,
    formulas=FORMULAS,
    formula="best program: score = bias + Σ of at most 5 terms, each a table of one or two tokens, counts in "
    "the context, a head over lags, tokens or matches, or a bias by position\n"
    "by weights: score = base + direct[parent] + Σ over MLPs of table[parent] + Σ over heads, lags m of aₘ · "
    "table[token at lag m], aₘ fitted to the attention\n"
    "explained = 1 − KL(model ‖ program) / KL(model ‖ the model's mean prediction)",
    records=(MATCH_MASS,),
    in_verdict=("explained_by_weights",),
)
