"""What kind of point is it at: a minimum, a saddle or neither, and when would it leave?

The chain is known, so the loss is the expected one under the exact law of each next state. The curvature
along the direction of the smallest eigenvalue is measured on sequences that did not choose that direction.

The null of the whole probe would be the Hessians of 24 models: too dear for what it says. Fresh models give
`grad_norm` a null; eigenvalues stand next to exact predictions where theory knows the point.
"""

import numpy as np
import xarray as xr

from mechmarkov.curvature.trainable_vector import Coordinates
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import score_with_null
from mechmarkov.probing.preconditions import why_no_chain
from mechmarkov.probing.score import Score

from . import figures, measure
from .claims import NO_CURVATURE, STARTED_AWAY, claims, headline, is_sampled, still_small, unigram_kind
from .escape import ESCAPED, RATE

# Beyond, one product with the Hessian takes seconds.
MAX_PARAMETERS = 200_000

LINEAR_THEORY = "predicted by linear theory"
GROWN = "amplitude along the growing modes"

NO_ESCAPE = {
    "not stationary": "it is at no stationary point that it could escape",
    "undecided": "whether it is at a saddle is undecided",
}


def applies(subject: Subject) -> str | None:
    """Returns one line why not, or None: one chain behind all sequences, a Hessian to multiply with."""
    why = why_no_chain(subject.source, "its loss has no symmetric sample")
    if why is not None:
        return why
    size = Coordinates.of(subject.run).size
    if size > MAX_PARAMETERS:
        return f"too many trainable parameters: {size:,} > {MAX_PARAMETERS:,}"
    return None


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The gradient, the ends of the Hessian and the kind of point, at the last step, by name.

    Eigenvalues are those of the population's Hessian, with 95 % intervals; 0 is one that rounding hides.
    """
    kind, slope, curvature = (
        str(data.attrs["kind"]),
        data["grad_norm"].attrs["unit"],
        data["smallest"].attrs["unit"],
    )
    lowest, interval = _eigenvalue(data, "smallest")
    highest, interval_of_highest = _eigenvalue(data, "largest")
    of_theory = float(data["predicted_min"]) if "predicted_min" in data else None
    point = f"predicted at {data.attrs['point']}" if of_theory is not None else None
    of_drift = null if data.attrs["projected"] else None
    scored = {
        "grad_norm": score_with_null(lambda d: d["grad_norm"], data, null, slope),
        "hessian_min": Score(lowest, curvature, of_theory, interval, point),
        "hessian_max": Score(highest, curvature, interval=interval_of_highest),
        "kind": Score(kind, ""),
        "drift": score_with_null(lambda d: d["drift"], data, of_drift, slope),
    }
    if data.attrs["kink"]:
        scored |= {f"hessian_{end}": Score(None, curvature, reason=NO_CURVATURE) for end in ("min", "max")}
    if "unigram_curvature" in data:
        scored["unigram_point"] = Score(unigram_kind(data), "")
    no_rate = data.attrs.get("no_rate") or NO_ESCAPE.get(kind)
    if no_rate is not None:
        scored["escape_rate"] = Score(None, RATE, reason=str(no_rate))
    elif kind == "saddle":
        scored["escape_rate"] = Score(-lowest, RATE, interval=interval and (-interval[1], -interval[0]))
    else:
        scored["escape_rate"] = Score(0.0, RATE)
    if "observed_rate" in data:
        why = "the run is not seen to grow from the saddle for three steps"
        scored["observed_rate"] = _with_theory(data, "rate", RATE, why)
        why = f"the {GROWN} is {still_small(data)}"
        scored["escape_step"] = _with_theory(data, "step", "step", why)
        if float(data["amplitude"][0]) >= ESCAPED:
            scored["escape_step"] = Score(None, "step", reason=STARTED_AWAY)
    return scored


def _eigenvalue(data: xr.Dataset, name: str) -> tuple[float, tuple[float, float] | None]:
    """An end of the spectrum, 0 where rounding hides it, and its interval where sequences are a sample."""
    value, low, high = (float(x) for x in data[name])
    value = 0.0 if abs(value) <= float(data["resolution"]) else value
    return value, (low, high) if is_sampled(data) else None


def _with_theory(data: xr.Dataset, name: str, unit: str, why: str) -> Score:
    """An observed value next to what linear theory predicts of it."""
    observed, predicted = (float(data[f"{who}_{name}"]) for who in ("observed", "predicted"))
    reason = None if np.isfinite(observed) else why
    return Score(observed, unit, predicted, null_kind=LINEAR_THEORY, reason=reason)


probe = Probe(
    name="landscape",
    question="What kind of point is it at: a minimum, a saddle or neither, and when would it leave?",
    cites="Shi & Cao 2025 (arXiv 2511.23239); Makkuva et al. 2025 (arXiv 2402.04161), theorems 2 and 3",
    applies=applies, measure=measure.measure, scores=scores, claims=claims, headline=headline,
    figures=figures.draw,
    formula="∇L = 0 and the signs of the Hessian's eigenvalues λ, on directions outside the symmetric "
    "subspace: all λ ≥ 0 minimum, any λ < 0 saddle, undecided where intervals leave it open\n"
    "L = E[−Σ_y P[x, y] log f_y]: expected under the exact law of the next state; only histories are drawn\n"
    "escape rate = −λ_min: along that direction gradient descent grows as exp(−λ_min · step size "
    "· steps)\n"
    "drift = |∇L| inside the symmetric subspace",
    formulas={
        "grad_norm": "|∇L|",
        "hessian_min": "λ_min of ∇²L outside the symmetric subspace",
        "hessian_max": "λ_max of ∇²L outside the symmetric subspace",
        "kind": "minimum, saddle, not stationary or undecided, by ∇L, λ_min and their intervals",
        "escape_rate": "−λ_min: gradient descent grows as exp(−λ_min · step size · steps)",
        "observed_rate": "r of amplitude · (1 + step size · r)^steps, the growth outside the symmetric "
        "subspace",
        "escape_step": f"first kept step at which the {GROWN} is {ESCAPED:g} or more",
        "unigram_point": "the sign of ∇²L along the embedding, at the unigram point without attention and "
        "MLP",
    },
)  # fmt: skip
