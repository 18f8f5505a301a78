"""What kind of point is it at: a minimum, a saddle or neither, and when would it leave?

The null of the whole probe would be the Hessians of 24 models: too dear for what it says. Fresh models give
`grad_norm` a null; eigenvalues stand beside exact predictions where theory knows the point.
"""

import numpy as np
import xarray as xr

from mechmarkov.curvature.trainable_vector import Coordinates
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import last_model, score_with_null
from mechmarkov.probing.preconditions import why_no_chain
from mechmarkov.probing.score import Score

from . import figures, measure
from .escape import ESCAPED, RATE
from .measure import CURVATURE, SLOPE
from .stationarity import limit

# Beyond, the automorphisms of P take minutes.
MAX_STATES = 256

# Beyond, one product with the Hessian takes seconds.
MAX_PARAMETERS = 200_000

# A loss of order one nat in float64 resolves no less; smaller distances differ between machines.
ROUNDING_NATS = 1e-12

LINEAR_THEORY = "predicted by linear theory"
STARTED_AWAY = "the first kept step is already away from the saddle"


def applies(subject: Subject) -> str | None:
    """Only where one chain is behind all sequences, for models whose Hessian can be multiplied with."""
    why = why_no_chain(subject.source, "its loss has no symmetric sample")
    if why is not None:
        return why
    if subject.source.n_states > MAX_STATES:
        return f"{subject.source.n_states} states are more than the {MAX_STATES} whose symmetries are sought"
    size = Coordinates.of(subject.run).size
    if size > MAX_PARAMETERS:
        return f"too many trainable parameters: {size:,} > {MAX_PARAMETERS:,}"
    return None


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The gradient, the ends of the Hessian and the kind of point, at the last step."""
    kind, lowest = str(data.attrs["kind"]), float(data["eigenvalue"][0])
    of_theory = float(data["predicted_min"]) if "predicted_min" in data else None
    point = f"predicted at {data.attrs['point']}" if "point" in data.attrs else None
    found = {
        "grad_norm": score_with_null(lambda d: d["grad_norm"], data, null, SLOPE),
        "hessian_min": Score(lowest, CURVATURE, of_theory, null_kind=point),
        "hessian_max": Score(float(data["hessian_max"]), CURVATURE),
        "kind": Score(kind, ""),
        "drift": score_with_null(
            lambda d: d["drift"], data, null if data.attrs["projected"] else None, SLOPE
        ),
    }
    if "unigram_curvature" in data:
        found["unigram_point"] = Score(_unigram_kind(data), "")
    if "step_size" not in data.attrs:
        found["escape_rate"] = Score(None, RATE, reason=str(data.attrs["no_rate"]))
    elif kind == "not stationary":
        found["escape_rate"] = Score(None, RATE, reason="it is at no stationary point that it could escape")
    else:
        found["escape_rate"] = Score(-lowest if kind == "saddle" else 0.0, RATE)
    if "observed_rate" in data:
        why = "the run is not seen to grow from the saddle for three steps"
        found["observed_rate"] = _with_theory(data, "rate", RATE, why)
        found["escape_step"] = _with_theory(data, "step", "step", "the run has not left the saddle")
        if float(data["amplitude"][0]) >= ESCAPED:
            found["escape_step"] = Score(None, "step", reason=STARTED_AWAY)
    return found


def _with_theory(data: xr.Dataset, name: str, unit: str, why: str) -> Score:
    """An observed value beside what linear theory predicts of it."""
    observed, predicted = (float(data[f"{who}_{name}"]) for who in ("observed", "predicted"))
    reason = None if np.isfinite(observed) else why
    return Score(observed, unit, predicted, null_kind=LINEAR_THEORY, reason=reason)


def verdict(data: xr.Dataset) -> str:
    """The kind of point, its curvature against theory, and when it would be left, in one sentence."""
    a = data.attrs
    last = last_model(data)
    where = "outside the symmetric subspace " if a["projected"] else ""
    drift = f"; inside it the weights drift (gradient {float(last['drift']):.2g})" if a["projected"] else ""
    low, high = float(data["eigenvalue"][0]), float(data["hessian_max"])
    if a["kind"] == "not stationary":
        below = limit(float(data["sampling_nats"]))
        return (
            f"Not at a stationary point: {where}the gradient is {float(last['grad_outside']):.2g}, which the "
            f"curvature there puts {float(data['nats_away']):.2g} nats from one (stationary: below "
            f"{below:.1g}); Hessian eigenvalues from {low:.3g} to {high:.3g}"
            f"{_unigram_criterion(data)}{_leaving(data)}{_canonically(data)}{drift}."
        )
    kind = "a saddle" if a["kind"] == "saddle" else "a minimum"
    flat = abs(low) <= float(data["least_curvature"])
    kind += " with flat directions" if flat and a["kind"] == "minimum" else ""
    if a["kind"] == "saddle":
        curved = f"{_growing(data)}, the smallest {low:.4g}"
    else:
        curved = f"Hessian eigenvalues from {low:.3g} to {high:.3g}"
        if flat:
            curved += f" (flat: within {float(data['least_curvature']):.1g} of zero)"
    away = float(data["nats_away"])
    near = f"{away:.1g}" if away >= ROUNDING_NATS else f"under {ROUNDING_NATS:.0g}"
    near += " nats from the stationary point"
    if float(data["sampling_nats"]):
        near += f", sampling alone {float(data['sampling_nats']):.1g}"
    told = f"{_agreement(data)}{_leaving(data)}{_canonically(data)}{drift}"
    return f"At {kind} {where}({near}): {curved}{told}."


def _growing(data: xr.Dataset) -> str:
    values = data["spectrum"] if "spectrum" in data else data["eigenvalue"]
    count = int((values < -float(data["least_curvature"])).sum())
    more = "" if "spectrum" in data or count < data.sizes["low"] else " or more"
    return f"{count}{more} growing direction{'s' * (count != 1)} of {int(data.attrs['outside'])}"


def _agreement(data: xr.Dataset) -> str:
    if "point" not in data.attrs:
        return _unigram_criterion(data)
    grows = " and ".join(f"{rate:.4g} ({name})" for name, rate in _rates(data).items() if rate)
    said = f", as predicted at {data.attrs['point']}"
    said += f" with growth rates {grows}" if grows else f" from {float(data['predicted_min']):.3g}"
    what = "spectrum" if "predicted_spectrum" in data else "smallest"
    said += f" (the {what} agrees to {float(data['disagreement']):.0e} of the largest predicted"
    if "overlap" in data:
        said += f"; the lowest eigenvectors lie in the predicted modes to {float(data['overlap']):.4f}"
    inside = float(data.attrs.get("unigram_growth", 0.0))
    if "unigram" in _rates(data) and inside > 1.001 * _rates(data)["unigram"]:
        said += f"; inside the symmetric subspace gradient descent leaves it, at rate {inside:.4g}"
    return said + ")"


def _rates(data: xr.Dataset) -> dict[str, float]:
    """The predicted growth rate of each kind of mode."""
    return {str(name): float(data["growth"].sel(mode=name)) for name in data["mode"].values}


def _unigram_kind(data: xr.Dataset) -> str:
    """What the point is where embeddings say nothing and the bias says pi, by theory."""
    if float(data.attrs["unigram_growth"]):
        return "saddle"
    return "minimum" if float(data["unigram_curvature"].min()) > 0 else "flat"


def _unigram_criterion(data: xr.Dataset) -> str:
    """What the unigram point of this model would be, where the run is not there."""
    if "unigram_curvature" not in data:
        return ""
    kind, growth = _unigram_kind(data), float(data.attrs["unigram_growth"])
    said = {
        "saddle": f"a saddle, which gradient descent leaves at rate {growth:.3g}",
        "minimum": "a minimum, and so a trap",
        "flat": "no saddle, but flat along some embeddings",
    }
    return f"; the unigram point, at which it is not, is {said[kind]}"


def _leaving(data: xr.Dataset) -> str:
    if "amplitude" not in data:
        return ""
    predicted, left = float(data["predicted_step"]), float(data["observed_step"])
    if not data["amplitude"].any():
        return "; the run has been on the symmetric subspace to the last bit, where nothing ever grows"
    if float(data["amplitude"][0]) >= ESCAPED:
        return f"; {STARTED_AWAY}, so when it left cannot be seen"
    said = ""
    if np.isfinite(float(data["observed_rate"])):
        said = (
            f"; on its way out it grew at rate {float(data['observed_rate']):.3g}, where linear theory says "
            f"{float(data['predicted_rate']):.3g}"
        )
    if np.isfinite(left):
        also = f" (predicted: {predicted:.0f})" if np.isfinite(predicted) else ""
        return f"{said}; it left the saddle by step {left:.0f}{also}"
    return f"{said}; it will leave by step {predicted:.0f}" if np.isfinite(predicted) else said


def _canonically(data: xr.Dataset) -> str:
    if "basin" not in data:
        return ""
    last = last_model(data)
    if str(last["basin"].item()) in ("unknown", "independent"):
        return ""
    e, w, error = (float(last[name]) for name in ("canonical_e", "canonical_w", "fit_error"))
    return (
        f"; its canonical coordinates (e, w) = ({e:.2g}, {w:.2g}) lie in the basin of the "
        f"{last['basin'].item()} (they miss its log-odds by {error:.1g})"
    )


probe = Probe(
    name="landscape",
    question="What kind of point is it at: a minimum, a saddle or neither, and when would it leave?",
    cites="Shi & Cao 2025 (arXiv 2511.23239); Makkuva et al. 2025 (arXiv 2402.04161), theorems 2 and 3",
    applies=applies,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures.draw,
    formula="∇L = 0 and the signs of the Hessian's eigenvalues λ, on directions outside the symmetric "
    "subspace: all λ ≥ 0 minimum, any λ < 0 saddle\n"
    "escape rate = −λ_min: along that direction gradient descent grows as exp(−λ_min · step size "
    "· steps)\n"
    "drift = |∇L| inside the symmetric subspace",
)
