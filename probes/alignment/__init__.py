"""Which path holds the chain: by weights, its value circuit against the target the loss gives it."""

import numpy as np
import xarray as xr

from mechmarkov.models.components import head_index, mlp_index
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import last_model, score_with_null
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.preconditions import token_in_words, why_no_table, why_no_value_circuit
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import matched
from mechmarkov.report.probe_figures import fitted_target, over_training
from mechmarkov.theory import kernel as k
from mechmarkov.utils.text import format_share, listed

from . import measure
from .measure import TIE

# A path that takes off less than this share of what the unigram is away holds nothing of the kernel.
MIN_GAIN_SHARE = 0.05

# Of a head with less of its attention at its lag, most of the output is left at its mean.
MIN_ATTENDED_MASS = 0.5


def applies(subject: Subject) -> str | None:
    """Only where one process is behind all sequences, and some value circuit is one table."""
    return why_no_table(subject.source) or why_no_value_circuit(subject.decoder)


def _best_path(data: xr.Dataset) -> xr.DataArray:
    """For each model the path that alone predicts the chain best: by the most nats better than the unigram.

    Not by the smallest KL: far lags are near the unigram whatever the weights, and would win with nothing.
    """
    # A path that is constant is nobody's answer while there is one that says something.
    gain = data["gain"].where(data["constant"] == 0, -np.inf)
    return (gain >= gain.max("path") - TIE).argmax("path")  # the first of equals, whatever their rounding


def _of_best_path(data: xr.Dataset) -> xr.Dataset:
    """The last model's best path."""
    last = last_model(data)
    return last.isel(path=int(_best_path(last)))


def _alike(data: xr.Dataset) -> list[str]:
    """The last model's best path, and those that predict as well as it at the same lag."""
    last, best = last_model(data), _of_best_path(data)
    found = (abs(last["gain"] - best["gain"]) <= TIE) & (last["attended_lag"] == best["attended_lag"])
    return [str(path) for path in last["path"].values[(found & (last["constant"] == 0)).values]]


def _target_of(best: xr.Dataset) -> tuple[str, np.ndarray]:
    """What the best path's circuit should be under the objective: its name, and the matrix."""
    return k.target_for(best.attrs["objective"], best["law"].values)


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The best path at the last step; nulls take their best path too."""
    paths = {id(d): _best_path(d) for d in (data, null) if d is not None}
    best = last_model(data).isel(path=int(paths[id(data)][-1]))
    target, _ = _target_of(best)

    def score(name: str, unit: str, reason: str | None = None) -> Score:
        return score_with_null(lambda d: d[name].isel(path=paths[id(d)]), data, null, unit, reason=reason)

    if data.attrs["objective"] != "cross_entropy":
        no_slope = "only a softmax gives the scale of a circuit a meaning"
    elif target == "P":
        no_slope = "P has zeros, so log P is not finite: probabilities are compared"
    else:
        no_slope = "all rows of the target are alike: there is nothing to have a slope on"
    constant = "the circuit is constant: it says nothing of the state, whatever the lag"
    result = {"path": Score(str(best["path"].item()), "")}
    if data.attrs["n_states"] > 2:  # at two states a double-centred table has one degree of freedom: ±1
        result["kernel_cosine"] = score("kernel_cosine", "cosine")
    result |= {
        "kernel_slope": score("kernel_slope", "1 is exact", no_slope),
        "kernel_kl": score("kernel_kl", "nats"),
        "best_lag": score("best_lag", "lag", constant),
        "recall": score("recall", "probability"),
        "target": Score(target, ""),
    }
    if "circulant_share" in data:
        result["circulant_share"] = score("circulant_share", "share", "the circuit says nothing")
    return result


def _law_name(data: xr.Dataset, m: int) -> str:
    """What the law of m steps is called: of a first-order chain it is a power of P."""
    return "P" if m == 1 else f"P^{m}" if data.attrs["first_order"] else f"the {m}-step law"


def verdict(data: xr.Dataset) -> str:
    """Which path holds the kernel, and how well, in one sentence."""
    best = _of_best_path(data)
    path, m = str(best["path"].item()), int(best["attended_lag"])
    name, _ = _target_of(best)
    nats, gain, power = float(best["kernel_kl"]), float(best["gain"]), _law_name(data, m)
    if bool(best["constant"]):
        # Where the parent is further back, the law of this lag has nothing to be told.
        away = f" ({nats:.3g} nats from {power})" if m == (data.attrs["source_lag"] or m) else ""
        return (
            f"No single part holds the kernel: the value circuit of {path} is constant over states. It "
            f"cannot tell one state's successors from another's{away}."
        )
    of = "" if name == "P" or power.startswith("P") else "of "
    target = name.replace("P", of + power)
    names = _alike(data)
    several = len(names) > 1
    circuit = f"The value circuit of {path}" if several else "Its value circuit"
    if data.attrs["n_states"] > 2:
        if name == "P" and data.attrs["objective"] == "cross_entropy":
            circuit = f"What {path if several else 'it'} predicts alone"  # log P is infinite
        circuit += f" has cosine {float(best['kernel_cosine']):.4f} with {target}"
    elif np.isfinite(float(best["kernel_slope"])):
        circuit += f" has slope {float(best['kernel_slope']):.3f} on {target} (1 is exact)"
    else:
        share = format_share(float(best["recall"]))
        circuit += f" has its largest entries where {power} has in {share} of the rows"
    if head_index(path) is not None:
        words = token_in_words(m, int(data.attrs["query_shift"]), int(data.attrs["source_lag"])).rstrip(",")
        alike = " and lags alike" if int(best["lags_alike"]) > 1 else ""
        mass = format_share(float(best["attended_mass"]), 1)
        circuit += (
            f". {path if several else 'It'} reads with {mass} of its attention at lag {m} ({words}){alike}"
        )
    alone = _alone_in_words(data, best, power)
    if gain < MIN_GAIN_SHARE * float(data["unigram_kl"]):
        nearest = f"{listed(names)} come nearest, alike" if several else f"{path} comes nearest"
        return f"No single part holds the kernel: {nearest}. {alone} {circuit}."
    nearest = "are nearest to the kernel, alike" if several else "is nearest to the kernel"
    return f"{listed(names)} {nearest}. {circuit}. {alone}"


def _alone_in_words(data: xr.Dataset, best: xr.Dataset, power: str) -> str:
    """What the best path predicts by itself, and of how much of its attention that is."""
    path, mass = str(best["path"].item()), float(best["attended_mass"])
    nats, gain = float(best["kernel_kl"]), float(best["gain"])
    by = "its weights" if mlp_index(path) is None else "its mean output after each state"
    by += ", at the norms' mean scale," if data.attrs["has_norm"] else ""
    to = f"{power} to {nats:.3g} nats, where the unigram is {nats + gain:.3g} away"
    if head_index(path) is None or mass >= MIN_ATTENDED_MASS:
        return f"By {by} it predicts {to}."
    return (
        f"By {by}, what it writes from lag {int(best['attended_lag'])} alone, {format_share(mass, 1)} of its "
        f"attention, would predict {to}; the rest is left at its mean."
    )


def figures(data: xr.Dataset) -> list[Figure]:
    """The best path's circuit beside its target, and alignment over training."""
    labels = [str(label) for label in data.attrs["labels"]]
    best = _of_best_path(data)
    path, m = str(best["path"].item()), int(best["attended_lag"])
    name, target = _target_of(best)
    shown = "kernel_cosine" if data.attrs["n_states"] > 2 else "kernel_kl"
    circuit, aim = (
        k.double_centred(best["circuit"].values),
        name + (f" of {_law_name(data, m)}" if m > 1 else ""),
    )
    target, said = fitted_target(circuit, k.double_centred(target), aim)
    pair = matched(circuit, target, labels, row_title="state read", column_title="next state", diverging=True)
    title = f"Value circuit of {path} beside {aim}"
    return [
        Figure(title, f"Double-centred. {said}", "plotly", pair, key="value circuit"),
        *over_training(
            "Alignment over training",
            "Every path against its target.",
            data,
            dict(zip(data["path"].values.tolist(), data[shown].values.T, strict=True)),
            shown.replace("_", " "),
            score=shown,
        ),
    ]


FORMULAS = {
    "path": "the path whose C alone predicts best",
    "kernel_slope": "least-squares slope of C on log P, both double-centred",
    "kernel_cosine": "⟨C, T⟩ / (|C| |T|), both double-centred; of predictions where log P is infinite",
    "kernel_kl": "Σᵢ πᵢ KL(Pᵢ ‖ prediction of C alone for i)",
    "best_lag": "the m whose law of m steps C is nearest to",
    "recall": "share of states i with argmax Cᵢ = argmax Pᵢ",
    "circulant_share": "|projection of C on circulant matrices|² / |C|², C centred by row under a softmax",
}

probe = Probe(
    name="alignment",
    question="Which path holds the transition matrix in its weights, and how well?",
    cites="Shi & Cao 2025 (arXiv 2511.23239), theorem 3.1, with the target corrected to sqrt(P) for raw log "
    "scores; recall: Bietti et al. 2023 (arXiv 2306.00802)",
    applies=applies,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formulas=FORMULAS,
    formula="C = W_E W_V W_O W_U, rows: state read, columns: next state (Elhage et al. 2021)\n"
    "target T = log P under cross-entropy, √P under −log(score + ε), P under squared error\n"
    "kernel cosine = ⟨C, T⟩ / (|C| |T|), both double-centred · kernel KL = Σᵢ πᵢ KL(Pᵢ ‖ prediction of C "
    "alone for i)",
)
