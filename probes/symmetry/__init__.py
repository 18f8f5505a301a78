"""Why is it stuck, or why is it not: the symmetries of the data, and what they let a first gradient see.

The symmetric trap is the walk model's (Shi & Cao 2025): there the state reaches the output through the token
mean only. A model with any other path for it learns where the walk model does not, so that of other models
`trapped` has no value.
"""

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import last_model, score_with_null
from mechmarkov.probing.preconditions import why_no_chain, why_no_value_circuit
from mechmarkov.probing.score import Score

from . import figures, measure
from .claims import claims, headline


def applies(subject: Subject) -> str | None:
    """Returns one line why not, or None: one chain must be behind all sequences."""
    why = why_no_chain(subject.source, "there is no one chain to be symmetric")
    return why or why_no_value_circuit(subject.decoder)


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Returns whether the last model is trapped, and the numbers that say so, by name."""

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
    trapped = Score(bool(last_model(data)["trapped"]), "")
    if why := data.attrs["does_not_apply"]:
        trapped = Score(None, "", reason=f"does not apply: {why}")
    return {
        "trapped": trapped,
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


probe = Probe(
    name="symmetry",
    question="Why is it stuck, or not: what do the symmetries of the data let a first gradient see?",
    cites="Shi & Cao 2025 (arXiv 2511.23239), theorem 4.1; the first step in closed form",
    applies=applies, measure=measure.measure, scores=scores, claims=claims, headline=headline,
    figures=figures.draw,
    formula="first step from zero: ∂L/∂V ∝ G = Σₘ (Pᵐ)ᵀ diag(μ Pᴺ⁻¹⁻ᵐ), m = 1 … N − 1\n"
    "first-step information = |G − product of its margins|² / |G|²; 0 for p = 0 or 1 and K | N − "
    "1 (theorem 4.1)\n"
    "trapped = a walk model without such information, attention flat, rows of V constant, and no gradient "
    "leaves that subspace",
    formulas={
        "equivariance_error": "E|f(gX) − P_g f(X)| / E|f|, g over the generators of the chain's "
        "automorphisms",
        "symmetric_share": "|circuit averaged over the automorphisms|² / |circuit|²",
        "gradient_outside": "|∇L outside the symmetric subspace|² / |∇L|²",
        "attention_spread": "(max S − min S) over tokens, over a token's mean share",
        "circuit_variation": "share of the circuits' norm that depends on the state read",
        "token_mean_accuracy": "share of last labels y whose E[token mean | y], a row of G, is the nearest",
    },
)  # fmt: skip
