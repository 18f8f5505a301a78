"""Why is it stuck, or why is it not: the symmetries of the data, and what they let a first gradient see."""

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import last_model, score_with_null
from mechmarkov.probing.preconditions import why_no_chain
from mechmarkov.probing.score import Score

from . import figures, measure
from .measure import FLAT_INFORMATION, FLAT_SHARE, MAX_STATES


def applies(subject: Subject) -> str | None:
    """Only where one chain is behind all sequences."""
    why = why_no_chain(subject.source, "there is no one chain to be symmetric")
    if why is not None:
        return why
    if subject.source.n_states > MAX_STATES:
        return f"{subject.source.n_states} states are more than the {MAX_STATES} whose symmetries are sought"
    return None


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Trapped or not, and the numbers that say so."""

    def score(name: str, reason: str | None = None) -> Score:
        unit = data[name].attrs["unit"]
        return score_with_null(lambda d: d[name], data, null, unit, reason=reason)

    no_scores, no_circuit, no_gradient = "the scores are zero", "the circuit is zero", "the gradient is zero"
    if not data.attrs["acts"]:
        no_gradient = "relabelling does not act on what is trained"
    if data.attrs["automorphisms"] == "1":
        no_scores = no_circuit = no_gradient = "only the identity is an automorphism of the chain"
    accuracy = data["token_mean_accuracy"]
    low, high = accuracy.attrs["interval"]
    return {
        "trapped": Score(bool(last_model(data)["trapped"]), ""),
        "first_step_information": Score(float(data["first_step_information"]), "share"),
        "equivariance_error": score("equivariance_error", no_scores),
        "symmetric_share": score("symmetric_share", no_circuit),
        "gradient_outside": score("gradient_outside", no_gradient),
        "attention_spread": score("attention_spread"),
        "circuit_variation": score("circuit_variation"),
        "token_mean_accuracy": Score(
            float(accuracy), "probability", float(data["chance"]), (low, high), "the likeliest state"
        ),
    }


def verdict(data: xr.Dataset) -> str:
    """Why it is trapped, or why it is not, in one sentence."""
    last = last_model(data)
    a, information = data.attrs, float(data["first_step_information"])
    K, N = int(a["n_states"]), int(a["length"])
    spread, variation = float(last["attention_spread"]), float(last["circuit_variation"])
    measured = (
        f"the most and the least attended token differ by {spread:.2g} of a token's mean share, and "
        f"{variation:.2g} of the circuits' size depends on the state read"
    )
    tells = _token_mean(data)
    if bool(last["trapped"]) and a["shifts"]:
        return (
            f"Trapped by symmetry: {K} divides N - 1 = {N - 1}, so every state is read {(N - 1) // K} times "
            "whatever the label, shifting tokens and positions along the cycle leaves every sequence as it "
            f"is, and the first gradient is flat (information {information:.0e}); so gradient descent keeps "
            f"the rows of V constant (here up to {variation:.1e} of its size) and attention flat (up to "
            f"{spread:.1e} of uniform){_reduced(last)}."
        )
    if bool(last["trapped"]):
        return (
            f"Trapped: {tells}, attention is flat (up to {spread:.1e} of uniform) and no circuit depends on "
            f"the state it reads (up to {variation:.1e} of its size)."
        )
    if not a["walk"]:
        return (
            f"Not the symmetric trap of the walk model: {tells}, and here a state that predicts also reaches "
            f"the output by other ways than that mean; {measured}; if it is stuck, the Hessian must say why."
        )
    if a["shifts"]:
        return (
            f"Not trapped, though {K} divides N - 1 = {N - 1} and the first step from zero is flat "
            f"(information {information:.0e}): {_why_it_left(last)}, and the trap is a saddle; {measured}."
        )
    if a["deterministic"]:
        return (
            f"Not trapped: the walk is deterministic, but {K} does not divide N - 1 = {N - 1}, so some "
            f"states are read once more than others and {tells}; one step from zero already predicts with "
            f"accuracy {float(data['one_step_accuracy']):.2f}."
        )
    flat = spread < FLAT_SHARE and variation < FLAT_SHARE
    return (
        f"Not trapped: {tells}, so {'the next' if flat else 'the first'} step tells states apart; {measured}"
        f"{_reduced(last)}."
    )


def _token_mean(data: xr.Dataset) -> str:
    information = float(data["first_step_information"])
    if information < FLAT_INFORMATION:
        flat = f"(information of the first gradient {information:.0e})"
        return f"the token mean tells nothing of the label {flat}"
    low, high = data["token_mean_accuracy"].attrs["interval"]
    between = f", {low:.3f} to {high:.3f}" if high > low else ""
    return (
        f"the token mean tells of the label (information of the first gradient {information:.2g}; the "
        f"nearest class mean is right {float(data['token_mean_accuracy']):.3f} of the time{between}, the "
        f"likeliest state {float(data['chance']):.3f})"
    )


def _reduced(last: xr.Dataset) -> str:
    if "reduced_gap" not in last:
        return ""
    K, N = int(last.attrs["n_states"]), int(last.attrs["length"])
    return (
        f"; the reduced system of K + N = {K + N} numbers, integrated beside the run, has V within "
        f"{float(last['reduced_gap']):.1e} of its size and a spread of {float(last['reduced_spread']):.1e}"
    )


def _why_it_left(last: xr.Dataset) -> str:
    start = str(last.attrs["start"])
    if start == "zero":
        exact = ""
        if "reduced_gap" in last:
            exact = f" (the reduced system's spread is {float(last['reduced_spread']):.0e})"
        return f"it started from zero, where exact arithmetic stays{exact}, so rounding took it out"
    if start in ("normal", "gpt2"):
        return f"it started at random (sd {float(last.attrs['start_std']):g}), which breaks the symmetry"
    return "its start is unknown, and must have broken the symmetry"


probe = Probe(
    name="symmetry",
    question="Why is it stuck, or not: what do the symmetries of the data let a first gradient see?",
    cites="Shi & Cao 2025 (arXiv 2511.23239), theorem 4.1; the first step in closed form",
    applies=applies,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures.draw,
    formula="first step from zero: ∂L/∂V ∝ G = Σₘ (Pᵐ)ᵀ diag(μ Pᴺ⁻¹⁻ᵐ), m = 1 … N − 1\n"
    "first-step information = |G − product of its margins|² / |G|²; 0 for p = 0 or 1 and K | N − "
    "1 (theorem 4.1)\n"
    "trapped = no such information, and attention flat, and rows of the circuit constant",
)
