"""The landscape probe's results as labelled arrays."""

import numpy as np
import xarray as xr

from mechmarkov.curvature.hessian_spectrum import Ends

from .canonical_fit import CanonicalFit
from .escape import Escape
from .loss_slice import LossSlice
from .predicted_modes import Predicted

CURVATURE = "nats a squared unit of weight"
RATE = "1 / (step size times steps)"


def curvature(ends: Ends) -> xr.Dataset:
    """The ends of the Hessian's spectrum, and all of it where it was written out."""
    unit = {"unit": CURVATURE}
    found = xr.Dataset(
        {
            "eigenvalue": ("low", ends.low, unit),
            "eigenvector": (("low", "coordinate"), ends.low_vectors.T, {"unit": "weight"}),
            "hessian_max": ((), float(ends.high[-1]), unit),
        }
    )
    if ends.spectrum is not None:
        found["spectrum"] = ("rank", ends.spectrum, unit)
    return found


def beside_theory(predicted: Predicted, ends: Ends) -> xr.Dataset:
    """What theory says of the spectrum, and how far the measured one is from it."""
    unit = {"unit": CURVATURE}
    data = xr.Dataset({"predicted_min": ((), predicted.low, unit)}, attrs={"point": predicted.point})
    if predicted.spectrum is not None and ends.spectrum is not None:
        data["predicted_spectrum"] = ("rank", predicted.spectrum, unit)
        apart = float(np.abs(predicted.spectrum - ends.spectrum).max())
    else:
        apart = abs(predicted.low - float(ends.low[0]))
    share = apart / predicted.size if predicted.size else apart
    data["disagreement"] = ((), share, {"unit": "share of the largest predicted"})
    modes = predicted.modes
    if modes.shape[1]:
        # As many of the lowest eigenvectors as theory gives this eigenvalue, or as there are.
        measured = ends.low_vectors[:, : modes.shape[1]]
        shared = float(((modes.T @ measured) ** 2).sum()) / measured.shape[1]
        data["overlap"] = ((), shared, {"unit": "share"})
    data["growth"] = ("mode", list(predicted.rates.values()), {"unit": RATE})
    return data.assign_coords(mode=list(predicted.rates))


def course(escape: Escape) -> xr.Dataset:
    """A run's way out of its saddle, over the steps it has kept."""
    unit = {"unit": "share of uniform, or weight"}
    found = xr.Dataset(
        {
            "amplitude": ("kept_step", escape.amplitude, unit),
            "predicted_amplitude": ("kept_step", escape.predicted, unit),
        },
        coords={"kept_step": escape.steps},
    )
    for name in ("observed_rate", "predicted_rate"):
        found[name] = ((), getattr(escape, name), {"unit": RATE})
    for name in ("observed_step", "predicted_step"):
        found[name] = ((), getattr(escape, name), {"unit": "step"})
    return found


def canonical(fit: CanonicalFit, axis: str, p: float, q: float) -> xr.Dataset:
    """Canonical coordinates of each model, and what they leave out."""
    units = {"slope": "log-odds", "fit_error": "log-odds", "log_odds_sd": "log-odds", "rank_one": "share"}
    names = {"e": "canonical_e", "w": "canonical_w", "slope": "canonical_slope", "energy": "energy"}
    fields = ("e", "w", "slope", "fit_error", "log_odds_sd", "rank_one", "energy")
    data = xr.Dataset(
        {names.get(f, f): (axis, getattr(fit, f), {"unit": units.get(f, "canonical unit")}) for f in fields}
    )
    data["basin"] = (axis, np.array(fit.basin), {"unit": ""})
    return data.assign_attrs(p=p, q=q)


def plane(cut: LossSlice) -> xr.Dataset:
    """The loss over the plane through the run, the unigram and the bigram point."""
    data = xr.Dataset(
        {"slice": (("across", "along"), cut.loss, {"unit": "nats"})},
        coords={"along": cut.x, "across": cut.y},
    )
    return data.assign_attrs(run_at=list(cut.run), loss_at=list(cut.at))
