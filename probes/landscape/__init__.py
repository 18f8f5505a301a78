"""What kind of point is it at: a minimum, a saddle or neither, and when would it leave?

The null of the whole probe would be the Hessians of 24 models: too dear for what it says. Fresh models give
`grad_norm` a null; eigenvalues stand beside exact predictions where theory knows the point.
"""

import dataclasses

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.curvature.hessian_spectrum import DENSE, hessian_ends, outside_size
from mechmarkov.curvature.loss_surface import loss_surface
from mechmarkov.curvature.population import population_of
from mechmarkov.curvature.trainable_vector import Coordinates, symmetry_of
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.preconditions import why_no_chain
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import lines

from .canonical_fit import CanonicalFit, binary_probabilities, canonical_fit
from .escape import LEFT, escape, step_size
from .figures import canonical_figure, slice_figure
from .loss_slice import LossSlice, loss_slice
from .measure import (
    CURVATURE,
    RATE,
    beside_theory,
    canonical,
    course,
    curvature,
    plane,
)
from .predicted_modes import predict, unigram_criterion
from .stationarity import judge, limit, sampling_error

# Eigenvalues kept at the lower end: more than the growing modes of most chains.
LOW_DENSE, LOW_LANCZOS = 20, 4

# Beyond, one product with the Hessian takes seconds.
MOST_NUMBERS = 200_000

# A loss of order one nat in float64 resolves no less; smaller distances differ between machines.
ROUNDING = 1e-12


def applies(subject: Subject) -> str | None:
    """Only where one chain is behind all sequences, for models of a size whose Hessian can be asked."""
    why = why_no_chain(subject.source, "its loss has no symmetric sample")
    if why is not None:
        return why
    if subject.source.n_states > 256:
        return f"{subject.source.n_states} states are more than the 256 whose symmetries are sought"
    size = Coordinates.of(subject.run).size
    if size > MOST_NUMBERS:
        return f"the model has {size} trainable numbers, and the Hessian of at most {MOST_NUMBERS} is asked"
    return None


def measure(subject: Subject) -> xr.Dataset:
    """Gradient and curvature of the loss over the population, in float64.

    Returns, over [axis]:
        `grad_norm`, `grad_outside`, `drift` (nats a unit of weight): norms of the gradient and of its parts
        outside and inside the symmetric subspace; `grad_error`: sampling error of `grad_outside`.
    And of the last model, unless it is a null's:
        `eigenvalue` [low] and `hessian_max` (nats a squared unit of weight): ends of the Hessian's spectrum
        outside the symmetric subspace; `eigenvector` [low, coordinate]; `spectrum` [rank] where it was
        written out; `nats_away`, `sampling_nats` (nats): how far the loss is from the stationary point
        of its quadratic model, and what sampling alone makes of it; `least_curvature`;
        `predicted_spectrum` [rank], `growth` [mode], `overlap` (share of the lowest eigenvectors in the
        predicted modes) where theory knows the point;
        `amplitude`, `predicted_amplitude` [kept_step] of a run under plain gradient descent;
        `unigram_curvature` [pattern]: the Hessian along embeddings that the unigram point of this model has,
        inside the symmetric subspace too;
        `slice` [across, along] (nats): the loss over the plane through run, unigram and bigram point.
    And of binary tied one-layer models, over [axis]: `canonical_e`, `canonical_w`, `canonical_slope`,
        `fit_error`, `log_odds_sd`, `rank_one`, `energy`, `basin` (mechmarkov.probes.landscape.canonical_fit).
    """
    axis = subject.axis
    population, coordinates = population_of(subject), Coordinates.of(subject.run)
    surface = loss_surface(subject, population, coordinates)
    symmetry = symmetry_of(subject.run, coordinates).at(surface.thetas[-1])
    gradients = surface.gradients()
    outside = symmetry.outside(gradients)
    mean, mean_outside = gradients.mean(1), outside.mean(1)
    unit = {"unit": "nats a unit of weight"}
    data = xr.Dataset(
        {
            "grad_norm": (axis, mean.norm(dim=-1).numpy(), unit),
            "grad_outside": (axis, mean_outside.norm(dim=-1).numpy(), unit),
            "drift": (axis, (mean - mean_outside).norm(dim=-1).numpy(), unit),
            "grad_error": (axis, np.array([sampling_error(g, population.exact) for g in outside]), unit),
        },
        coords={axis: subject.coordinates},
        attrs={
            "source": subject.source.title(),
            "population": population.describe(),
            "numbers": coordinates.size,
            "outside": outside_size(symmetry, coordinates.size),
            "projected": not symmetry.trivial,
        },
    )
    if axis != "step":
        return data
    last = len(subject.coordinates) - 1
    hessian = surface.hessian_at(last)
    low = LOW_DENSE if coordinates.size <= DENSE else LOW_LANCZOS
    ends = hessian_ends(hessian, symmetry, low=min(low, coordinates.size - 2))
    judged = judge(surface, last, gradients[last], ends, hessian, symmetry)
    data = data.merge(curvature(ends)).assign_attrs(
        **data.attrs, kind=judged.kind, method=ends.method, **_step_size(subject)
    )
    data["nats_away"] = ((), judged.nats_away, {"unit": "nats"})
    data["sampling_nats"] = ((), judged.noise, {"unit": "nats"})
    data["least_curvature"] = ((), judged.least_curvature, {"unit": CURVATURE})
    found = []
    predicted = predict(subject, surface, symmetry, last)
    if predicted is not None:
        found.append(beside_theory(predicted, ends))
    # Of the whole model: a mode that the symmetries leave alone is a way out too.
    criterion = unigram_criterion(subject, dataclasses.replace(symmetry, acts=False))
    if criterion is not None:
        attrs = {"unigram_growth": criterion.growth, "tied": subject.config.tied}
        unit = {"unit": CURVATURE}
        found.append(xr.Dataset({"unigram_curvature": ("pattern", criterion.embedding, unit)}, attrs=attrs))
    way_out = escape(subject, surface, symmetry_of(subject.run, coordinates))
    if way_out is not None:
        found.append(course(way_out))
    fit = canonical_fit(subject)
    if isinstance(fit, CanonicalFit):
        found.append(canonical(fit, axis, *binary_probabilities(subject)))
    cut = loss_slice(subject, surface, last)
    found.append(plane(cut) if isinstance(cut, LossSlice) else xr.Dataset(attrs={"no_slice": cut}))
    return xr.merge([data, *found], combine_attrs="no_conflicts")


def _step_size(subject: Subject) -> dict[str, object]:
    eta = step_size(subject)
    return {"no_rate": eta} if isinstance(eta, str) else {"step_size": eta}


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The gradient, the ends of the Hessian and the kind of point, at the last step."""
    last = {str(data["grad_norm"].dims[0]): -1}
    band = None if null is None else null_band(null["grad_norm"])
    lowest = float(data["eigenvalue"][0])
    found = {
        "grad_norm": Score(
            float(data["grad_norm"].isel(last)), "nats a unit of weight", band, null_kind=NULL_KIND
        ),
        "hessian_min": _beside_theory(lowest, data),
        "hessian_max": Score(float(data["hessian_max"]), CURVATURE),
        "kind": Score(str(data.attrs["kind"]), ""),
        "drift": Score(
            float(data["drift"].isel(last)),
            "nats a unit of weight",
            null_band(null["drift"]) if null is not None and data.attrs["projected"] else None,
            null_kind=NULL_KIND,
        ),
    }
    if "unigram_curvature" in data:
        found["unigram_point"] = Score(_unigram_kind(data), "")
    if "step_size" not in data.attrs:
        found["escape_rate"] = Score(None, RATE, reason=str(data.attrs["no_rate"]))
    elif data.attrs["kind"] == "not stationary":
        found["escape_rate"] = Score(None, RATE, reason="it is at no stationary point that it could escape")
    else:
        rate = -lowest if data.attrs["kind"] == "saddle" else 0.0
        found["escape_rate"] = Score(rate, RATE)
    if "observed_rate" in data:
        why = "the run is not seen to grow from the saddle for three steps"
        found["observed_rate"] = _if_any(data["observed_rate"], RATE, data["predicted_rate"], why)
        if float(data["amplitude"][0]) >= LEFT:
            found["escape_step"] = Score(None, "step", reason=_STARTED_AWAY)
        else:
            why = "the run has not left the saddle"
            found["escape_step"] = _if_any(data["observed_step"], "step", data["predicted_step"], why)
    return found


_STARTED_AWAY = "the first kept step is already away from the saddle"


def _if_any(value: xr.DataArray, unit: str, theory: xr.DataArray, why: str) -> Score:
    beside = float(theory) if np.isfinite(float(theory)) else None
    if not np.isfinite(float(value)):
        return Score(None, unit, beside, null_kind="predicted by linear theory", reason=why)
    return Score(float(value), unit, beside, null_kind="predicted by linear theory")


def _beside_theory(lowest: float, data: xr.Dataset) -> Score:
    if "predicted_min" not in data:
        return Score(lowest, CURVATURE)
    kind = f"predicted at {data.attrs['point']}"
    return Score(lowest, CURVATURE, float(data["predicted_min"]), null_kind=kind)


def verdict(data: xr.Dataset) -> str:
    """The kind of point, its curvature against theory, and when it would be left, in one sentence."""
    a = data.attrs
    now = data.isel({str(data["grad_norm"].dims[0]): -1})
    where = "outside the symmetric subspace " if a["projected"] else ""
    drift = f"; inside it the weights drift (gradient {float(now['drift']):.2g})" if a["projected"] else ""
    low, high = float(data["eigenvalue"][0]), float(data["hessian_max"])
    if a["kind"] == "not stationary":
        below = limit(float(data["sampling_nats"]))
        return (
            f"Not at a stationary point: {where}the gradient is {float(now['grad_outside']):.2g}, which the "
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
    near = f"{away:.1g}" if away >= ROUNDING else f"under {ROUNDING:.0g}"
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
    return {
        str(name): float(rate) for name, rate in zip(data["mode"].values, data["growth"].values, strict=True)
    }


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
    if float(data["amplitude"][0]) >= LEFT:
        return f"; {_STARTED_AWAY}, so when it left cannot be seen"
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
    now = data.isel({str(data["grad_norm"].dims[0]): -1})
    if str(now["basin"].item()) in ("unknown", "independent"):
        return ""
    e, w, error = (float(now[name]) for name in ("canonical_e", "canonical_w", "fit_error"))
    return (
        f"; its canonical coordinates (e, w) = ({e:.2g}, {w:.2g}) lie in the basin of the "
        f"{now['basin'].item()} (they miss its log-odds by {error:.1g})"
    )


def figures(data: xr.Dataset) -> list[Figure]:
    """The spectrum beside its prediction, the gradient over training, and the way out."""
    axis = str(data["grad_norm"].dims[0])
    found = [_spectrum_figure(data)]
    if "slice" in data:
        found.append(slice_figure(data))
    if "canonical_e" in data and np.isfinite(data["canonical_w"]).any():
        found.append(canonical_figure(data))
    if "amplitude" in data:
        steps = data["kept_step"].values.astype(float)
        series = {"run": data["amplitude"].values, "linear theory": data["predicted_amplitude"].values}
        found.append(
            Figure(
                "Leaving the saddle",
                "Distance from the symmetric subspace along the growing modes, and what the predicted rates "
                "make of the first amplitude that is seen.",
                "plotly",
                lines(steps, series, x_title="step", y_title="amplitude", log_y=True),
            )
        )
    x = data[axis].values.astype(float)
    series = {"outside": data["grad_outside"].values, "inside (drift)": data["drift"].values}
    found.append(
        Figure(
            "Gradient",
            "Norm of the gradient outside and inside the symmetric subspace.",
            "plotly",
            lines(x, series, x_title=axis, y_title="nats a unit of weight", log_y=len(x) > 1),
        )
    )
    return found


def _spectrum_figure(data: xr.Dataset) -> Figure:
    full = "spectrum" in data
    values = data["spectrum" if full else "eigenvalue"].values
    series = {"measured": values}
    if "predicted_spectrum" in data and full:
        series["predicted"] = data["predicted_spectrum"].values
    figure: go.Figure = lines(
        np.arange(1, len(values) + 1, dtype=float), series, x_title="rank", y_title="eigenvalue"
    )
    return Figure(
        "Hessian eigenvalues" if full else "The smallest Hessian eigenvalues",
        "Outside the symmetric subspace; below zero the loss falls, and gradient descent grows at that rate.",
        "plotly",
        figure,
    )


probe = Probe(
    name="landscape",
    question="What kind of point is it at: a minimum, a saddle or neither, and when would it leave?",
    cites="Shi & Cao 2025 (arXiv 2511.23239); Makkuva et al. 2025 (arXiv 2402.04161), theorems 2 and 3",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="∇L = 0 and the signs of the Hessian's eigenvalues λ, on directions outside the symmetric "
    "subspace: all λ ≥ 0 minimum, any λ < 0 saddle\n"
    "escape rate = −λ_min: along that direction gradient descent grows as exp(−λ_min · step size "
    "· steps)\n"
    "drift = |∇L| inside the symmetric subspace",
)
