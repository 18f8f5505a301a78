"""Which path holds the chain: by weights, its value circuit against the target the loss gives it."""

import numpy as np
import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import last_model, score_with_null
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.preconditions import why_no_table, why_no_value_circuit
from mechmarkov.probing.score import DIVERGENCE, Score
from mechmarkov.report.figures import matched
from mechmarkov.report.probe_figures import fitted_target, over_training
from mechmarkov.theory import kernel as k

from . import measure
from .claims import best_path, claims, headline, of_best_path, target_of

ABSORBED = 1e-9  # of the time, up to which a state is never there


def applies(subject: Subject) -> str | None:
    """Only where one process is behind all sequences, and some value circuit is one table."""
    why = why_no_table(subject.source) or why_no_value_circuit(subject.decoder)
    pi = np.array(getattr(subject.source, "pi", ()))  # of one process there is one
    if why is None and np.count_nonzero(pi > ABSORBED) < 2:
        return "the chain ends in one state and stays: there is no other row to hold"
    return why


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The best path at the last step; nulls take their best path too."""
    paths = {id(d): best_path(d) for d in (data, null) if d is not None}
    best = last_model(data).isel(path=int(paths[id(data)][-1]))
    target, _ = target_of(best)

    def score(name: str, unit: str, reason: str | None = None) -> Score:
        return score_with_null(lambda d: d[name].isel(path=paths[id(d)]), data, null, unit, reason=reason)

    if data.attrs["objective"] != "cross_entropy":
        no_slope = "only a softmax gives the scale of a circuit a meaning"
    elif target == "P":
        no_slope = "P has zeros, so log P is not finite: probabilities are compared"
    else:
        no_slope = "all rows of the target are equal: there is nothing to have a slope on"
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
    """Returns what the law of m steps is called: of a first-order chain it is a power of P."""
    return "P" if m == 1 else f"P^{m}" if data.attrs["first_order"] else f"the {m}-step law"


def figures(data: xr.Dataset) -> list[Figure]:
    """The best path's circuit next to its target, and alignment over training."""
    labels = [str(label) for label in data.attrs["labels"]]
    best = of_best_path(data)
    path, m = str(best["path"].item()), int(best["attended_lag"])
    name, target = target_of(best)
    shown = "kernel_cosine" if data.attrs["n_states"] > 2 else "kernel_kl"
    circuit, aim = (
        k.double_centred(best["circuit"].values),
        name + (f" of {_law_name(data, m)}" if m > 1 else ""),
    )
    target, caption = fitted_target(circuit, k.double_centred(target), aim)
    pair = matched(circuit, target, labels, row_title="state read", column_title="next state", diverging=True)
    title = f"Value circuit of {path} next to {aim}"
    return [
        Figure(title, f"Double-centred. {caption}", "plotly", pair, key="value circuit"),
        *over_training(
            "Alignment over training",
            "Every path against its target.",
            data,
            dict(zip(data["path"].values.tolist(), data[shown].values.T, strict=True)),
            shown.replace("_", " "),
            score=shown,
        ),
    ]


probe = Probe(
    name="alignment",
    question="Which path holds the transition matrix in its weights, and how well?",
    cites="Shi & Cao 2025 (arXiv 2511.23239), theorem 3.1, with the target corrected to sqrt(P) for raw log "
    "scores; recall: Bietti et al. 2023 (arXiv 2306.00802)",
    applies=applies, measure=measure.measure, scores=scores, claims=claims, headline=headline,
    figures=figures,
    formula="C = W_E W_V W_O W_U, rows: state read, columns: next state (Elhage et al. 2021)\n"
    "target T = log P under cross-entropy, √P under −log(score + ε), P under squared error\n"
    "kernel cosine = ⟨C, T⟩ / (|C| |T|), both double-centred · kernel KL = Σᵢ πᵢ KL(Pᵢ ‖ prediction of C "
    "only C for i)",
    ranges={"kernel_kl": DIVERGENCE},
    formulas={
        "path": "the path whose C by itself predicts best",
        "kernel_slope": "least-squares slope of C on log P, both double-centred",
        "kernel_cosine": "⟨C, T⟩ / (|C| |T|), both double-centred; of predictions where log P is infinite",
        "kernel_kl": "Σᵢ πᵢ KL(Pᵢ ‖ prediction of only C for i)",
        "best_lag": "the m whose law of m steps C is nearest to",
        "recall": "share of states i with argmax Cᵢ = argmax Pᵢ",
        "circulant_share": "|projection of C on circulant matrices|² / |C|², C centred by row under a "
        "softmax",
    },
    with_bos=True,
)  # fmt: skip
