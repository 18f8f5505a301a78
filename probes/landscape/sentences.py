"""What the landscape probe says: the kind of point, its curvature against theory, and when it is left."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from mechmarkov.curvature.loss_surface import SOLVED_NATS
from mechmarkov.probing.dataset import last_model
from mechmarkov.utils.text import format_share

from .escape import ESCAPED
from .stationarity import DESCENT_STEPS, limit

# A loss of order one nat in float64 resolves no less; smaller distances differ between machines.
ROUNDING_NATS = 1e-12

# A spectrum that is farther from the predicted one, as a share of its largest eigenvalue, is another.
AS_PREDICTED = 0.1

STARTED_AWAY = "the first kept step is already away from the saddle"


def verdict(data: xr.Dataset) -> str:
    """The kind of point, its curvature against theory, and when it would be left; one idea a sentence."""
    said = [_solved, _kind, _curvature, _nearness, _theory, _unigram, _leaving, _canonical, _drift]
    return " ".join(sentence for part in said for sentence in part(data))


def _nats(nats: float, digits: int = 1) -> str:
    return f"{nats:.{digits}g}" if nats >= ROUNDING_NATS else f"under {ROUNDING_NATS:.0g}"


def _solved(data: xr.Dataset) -> Iterator[str]:
    excess = float(data["excess"])
    if excess <= SOLVED_NATS:
        yield f"Not stuck: its predictions are {_nats(excess, 2)} nats from the best possible."


def _kind(data: xr.Dataset) -> Iterator[str]:
    where = " outside the symmetric subspace" if data.attrs["projected"] else ""
    kind = str(data.attrs["kind"])
    why = str(data.attrs["why"])
    if why == "zeros":
        yield f"Not at a stationary point{where}: the law has zeros, which no softmax reaches."
        yield f"{DESCENT_STEPS} steps of L-BFGS halve what the loss is above the best possible."
    elif why == "descent":
        falls = f"{float(data['descent']):.2g} {data.attrs['loss_unit']}"
        steps = f"{DESCENT_STEPS} steps of L-BFGS"
        yield f"Not at a stationary point{where}: {steps} lower the loss by {falls}."
    elif why == "kink":
        yield f"Undecided{where}: {NO_CURVATURE}."
    elif kind == "not stationary":
        slope, away = float(last_model(data)["grad_outside"]), float(data["nats_away"])
        yield f"Not at a stationary point{where}: the gradient is {slope:.2g}."
        below = limit(float(data["sampling_nats"]))
        unit = data.attrs["loss_unit"]
        yield f"The nearest one is {away:.2g} {unit} away by the curvature (stationary: below {below:.1g})."
    elif kind == "saddle":
        yield f"At a saddle{where}: {_growing(data)}."
    elif kind == "minimum":
        if not is_flat(data):
            yield f"At a minimum{where}."
        elif float(data["excess"]) <= SOLVED_NATS:  # nothing is lower, in any direction
            yield f"At a minimum with flat directions{where}."
        else:
            yield f"At a minimum to second order{where}: along its flat directions higher orders decide."
    else:
        yield f"Undecided{where}: at a minimum or at a saddle."


def _growing(data: xr.Dataset) -> str:
    values = data["spectrum"] if "spectrum" in data else data["eigenvalue"]
    count = max(1, int((values < -float(data["least_curvature"])).sum()))
    more = "" if "spectrum" in data or count < data.sizes["low"] else " or more"
    return f"{count}{more} growing direction{'s' * (count != 1)} of {int(data.attrs['outside'])}"


def is_flat(data: xr.Dataset) -> bool:
    """Whether the smallest eigenvalue of a minimum may be zero."""
    return float(data["smallest"].sel(end="value")) <= float(data["flat_limit"])


def is_sampled(data: xr.Dataset) -> bool:
    """Whether sequences are a sample, so that eigenvalues have intervals; else they are all there are."""
    return bool(data.attrs["sampled"])


NO_CURVATURE = "a ReLU is exactly at zero, where the loss has no second derivative"


def _curvature(data: xr.Dataset) -> Iterator[str]:
    if data.attrs["kink"]:
        if data.attrs["why"] != "kink":
            yield f"{NO_CURVATURE[0].upper()}{NO_CURVATURE[1:]}."
        return
    smallest, largest = (_eigenvalue(data, name) for name in ("smallest", "largest"))
    yield f"The smallest Hessian eigenvalue is {smallest}, the largest {largest}."
    value, low, high = (float(x) for x in data["smallest"])
    bent, flat = (float(data[name]) for name in ("least_curvature", "flat_limit"))
    if data.attrs["why"]:
        return
    if data.attrs["kind"] == "minimum" and value < -float(data["resolution"]):
        yield f"Within ±{flat:.2g} an eigenvalue counts as zero."
    elif data.attrs["kind"] != "undecided":
        return
    elif low < -bent < high:
        yield f"A growing direction has its whole interval below {-bent:.2g}, and this one has not."
    else:
        yield f"Its sign is open: within ±{flat:.2g} an eigenvalue counts as zero."


def _eigenvalue(data: xr.Dataset, name: str) -> str:
    value, low, high = (float(x) for x in data[name])
    if abs(value) <= float(data["resolution"]):
        return "zero within tolerance"
    return f"{value:.4g}" + (f" ({low:.3g} to {high:.3g})" if is_sampled(data) else "")


def _nearness(data: xr.Dataset) -> Iterator[str]:
    if data.attrs["kind"] == "not stationary":
        return
    alone = float(data["sampling_nats"])
    sampling = f" (sampling alone: {_nats(alone)})" if alone else ""
    away, unit = _nats(float(data["nats_away"])), data.attrs["loss_unit"]
    yield f"It is {away} {unit} from the stationary point{sampling}."


def _theory(data: xr.Dataset) -> Iterator[str]:
    if "point" not in data.attrs:
        return
    if "other_paths" in data.attrs:
        share = format_share(float(data.attrs["other_paths"]))
        yield f"It is at {data.attrs['point']}, of which theory knows the straight path alone."
        yield f"Attention or an MLP adds up to {share} of what it reads, so that theory does not apply."
        return
    rates = {str(name): float(data["growth"].sel(mode=name)) for name in data["mode"].values}
    grows = " and ".join(f"{rate:.4g} ({name})" for name, rate in rates.items() if rate)
    least = f"a smallest eigenvalue of {float(data['predicted_min']):.3g}"
    what = f"growth rates {grows}" if grows else least
    apart = float(data["disagreement"])
    compared = "spectrum" if "predicted_spectrum" in data else "smallest eigenvalue"
    _, low, high = (float(x) for x in data["smallest"])
    is_held = low <= float(data["predicted_min"]) <= high and compared == "smallest eigenvalue"
    if apart > AS_PREDICTED and is_sampled(data) and is_held:
        yield f"That interval holds what theory predicts at {data.attrs['point']}: {what}."
    else:
        said = "This is as predicted" if apart <= AS_PREDICTED else "Theory predicts otherwise"
        yield f"{said} at {data.attrs['point']}: {what}."
        agrees = "agrees to" if apart <= AS_PREDICTED else "is off by"
        yield f"The {compared} {agrees} {apart:.0e} of the largest predicted."
    if "overlap" in data:
        yield f"The lowest eigenvectors lie in the predicted modes to {float(data['overlap']):.4f}."
    inside = float(data.attrs.get("unigram_growth", 0.0))
    if "unigram" in rates and inside > 1.001 * rates["unigram"]:
        yield f"Inside the symmetric subspace gradient descent leaves it, at rate {inside:.4g}."


def unigram_kind(data: xr.Dataset) -> str:
    """What the point is where embeddings say nothing and the bias says pi, by theory."""
    if float(data.attrs["unigram_growth"]):
        return "saddle"
    return "minimum" if float(data["unigram_curvature"].min()) > 0 else "flat"


def _unigram(data: xr.Dataset) -> Iterator[str]:
    """What the unigram point of this model would be, where the run is not there."""
    if "unigram_curvature" not in data or "point" in data.attrs:
        return
    growth = float(data.attrs["unigram_growth"])
    said = {
        "saddle": f"a saddle, which gradient descent leaves at rate {growth:.3g}",
        "minimum": "a minimum, and so a trap",
        "flat": "no saddle, but a direction that is flat",
    }
    kind = said[unigram_kind(data)]
    yield f"The model is not at the unigram point, which is, with no attention and no MLP, {kind}."


def _leaving(data: xr.Dataset) -> Iterator[str]:
    if "amplitude" not in data:
        return
    predicted, left = float(data["predicted_step"]), float(data["observed_step"])
    if not data["amplitude"].any():
        if "unigram_growth" in data.attrs:
            yield "Its embeddings are zero along the growing patterns, where by linear theory nothing grows."
        else:
            yield "The run has been on the symmetric subspace to the last bit, where nothing ever grows."
        return
    if float(data["amplitude"][0]) >= ESCAPED:
        yield f"{STARTED_AWAY[0].upper()}{STARTED_AWAY[1:]}, so when it left cannot be seen."
        return
    if np.isfinite(float(data["observed_rate"])):
        rates = (float(data[f"{who}_rate"]) for who in ("observed", "predicted"))
        yield "On its way out it grew at rate {:.3g}; linear theory says {:.3g}.".format(*rates)
    if np.isfinite(left):
        also = f" (predicted: {predicted:.0f})" if np.isfinite(predicted) else ""
        yield f"It left the saddle by step {left:.0f}{also}."
    elif predicted > float(data["kept_step"][-1]):
        yield f"By linear theory it will leave by step {predicted:.0f}."
    elif np.isfinite(predicted):
        yield f"Linear theory had it leave by step {predicted:.0f}; its amplitude is {still_small(data)}."


def still_small(data: xr.Dataset) -> str:
    """How small the amplitude of a run that has not left is, and since when it is followed."""
    return f"below {ESCAPED:g} at every kept step from {int(data['kept_step'][0])} on"


def _canonical(data: xr.Dataset) -> Iterator[str]:
    if "basin" not in data:
        return
    last = last_model(data)
    basin = str(last["basin"].item())
    if basin in ("unknown", "independent"):
        return
    e, w, error = (float(last[name]) for name in ("canonical_e", "canonical_w", "fit_error"))
    yield f"Its canonical coordinates (e, w) = ({e:.2g}, {w:.2g}) lie in the basin of the {basin}."
    yield f"They miss its log-odds by {error:.1g}."


def _drift(data: xr.Dataset) -> Iterator[str]:
    if data.attrs["projected"]:
        drift = float(last_model(data)["drift"])
        yield f"Inside the symmetric subspace the gradient is {drift:.2g}."
