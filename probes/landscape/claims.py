"""Claims of the loss surface: the kind of point, its curvature against theory, when it is left."""

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import MODEL, Claim, Claims, Condition, Evidence, Status
from mechmarkov.claims.tile import CAME, STUCK, Tile
from mechmarkov.curvature.loss_surface import SOLVED_NATS
from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.score import Score

from .escape import ESCAPED
from .stationarity import DESCENT_STEPS, NO_SIGN, STATIONARY_NATS, limit

# A spectrum that is farther from the predicted one, as a share of its largest eigenvalue, is another.
AS_PREDICTED = 0.1
# Changes that were measured on binary chains with p + q > 1, and in how many runs: all of them left
# (docs/verdicts.md).
REMEDIES = {"untied embeddings": 24, "two layers or more": 12}

STARTED_AWAY = "the first kept step is already away from the saddle"
NO_CURVATURE = "a ReLU is exactly at zero, where the loss has no second derivative"
BEYOND = "beyond the best possible"  # the quadratic model's stationary point
LAW: Evidence = "law"


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """The kind of point, its curvature against theory, and when it is left."""
    return [_point(data, scores), *_remedies(data), *_leaving(data), *_canonical(data)]


def _point(data: xr.Dataset, scores: dict[str, Score]) -> Claim:
    kind, why = str(data.attrs["kind"]), str(data.attrs["why"])
    score = scores["hessian_min"]
    value = score.value if isinstance(score.value, float) else None
    premises = (*_where(data), *_theory(data), *_unigram(data), *_drift(data))
    if kind == "not stationary":
        nats = float(data["descent"]) if why == "descent" else float(data["nats_away"])
        beyond = () if why == "descent" else tuple(_beyond(data, nats))  # a step that was made is a fact
        moving = (*_moving(data, why), *beyond, *premises)
        return Claim(
            (MODEL,), "moves", (), None if beyond else nats,
            unit=str(data.attrs["loss_unit"]), evidence=LAW, because=moving,
        )  # fmt: skip
    names: tuple[str, ...] = (kind,) if kind in ("minimum", "saddle") else ("minimum", "saddle")
    if len(names) > 1 and float(data["nats_away"]) > STATIONARY_NATS:
        names = (*names, "neither")  # only sampling may have made the gradient
        if _is_bent_down(data):
            names = names[1:]
    status: Status = "shown" if len(names) == 1 else "open"
    unit = score.unit if value is not None else ""
    value, interval = _without_rounding(
        value, score.interval, NO_SIGN * abs(float(data["largest"].sel(end="value")))
    )
    return Claim(
        (MODEL,), "is_at", names, value, interval, score.null, unit, status, LAW,
        because=(*_of_kind(data, kind, why), *premises),
    )  # fmt: skip


def _is_bent_down(data: xr.Dataset) -> bool:
    """Returns whether curvature is negative beyond what the gradient left may make: there is no minimum."""
    return float(data["smallest"].sel(end="high")) < -float(data["least_curvature"])


def _without_rounding(
    value: float | None, interval: tuple[float, float] | None, least: float
) -> tuple[float | None, tuple[float, float] | None]:
    """Returns 0 for an eigenvalue whose size rounding and sampling can make, and which has no sign."""
    ends = interval or (value or 0.0, value or 0.0)
    if value is None or max(map(abs, (value, *ends))) > least:
        return value, interval
    return 0.0, None


def _where(data: xr.Dataset) -> Iterator[Condition]:
    if data.attrs["projected"]:
        yield Condition("outside the symmetric subspace")
    yield Condition("near the best", float(data["excess"]) <= SOLVED_NATS, float(data["excess"]), "nats")
    if data.attrs["kink"]:
        yield Condition("at a kink")
    if float(data["unseen"]) > 0:
        yield Condition("states that sequences hardly show", value=float(data["unseen"]), unit="nats")


def _remedies(data: xr.Dataset) -> Iterator[Claim]:
    """Yields what was measured to leave a minimum at the unigram (`unigram_trap.*` of the verdicts)."""
    if not _is_tied_trap(data):
        return
    for change, runs in REMEDIES.items():
        cases = (Condition("cases", value=runs),)
        yield Claim(
            (MODEL,), "is_left_with", (change,), 1.0, unit="share", evidence="intervention", because=cases
        )


def _is_tied_trap(data: xr.Dataset) -> bool:
    """Returns whether a binary chain that tends to switch holds tied embeddings at the unigram.

    There the logit of a token after itself is a square, |e|², which can only grow from zero, and the chain's
    second eigenvalue 1 − p − q is negative: the loss rises with it (Makkuva et al. 2024, theorem 2).
    """
    at_unigram = data.attrs.get("point") == "the unigram point" and data.attrs["kind"] == "minimum"
    return bool(at_unigram and data.attrs.get("tied") and data.attrs.get("binary_eigenvalue", 0.0) < 0)


def _moving(data: xr.Dataset, why: str) -> Iterator[Condition]:
    """Yields why the point is not stationary."""
    unit = str(data.attrs["loss_unit"])
    if why == "zeros":
        yield Condition("the law has zeros")
    elif why == "descent":
        yield Condition("steps of L-BFGS", value=DESCENT_STEPS)
    else:
        slope = float(last_model(data)["grad_outside"])
        yield Condition("gradient", value=slope, unit=str(data["grad_norm"].attrs["unit"]))
        yield Condition("stationary below", value=limit(float(data["sampling_nats"])), unit=unit)


def _beyond(data: xr.Dataset, nats: float) -> Iterator[Condition]:
    """Yields that the quadratic model leads further down than the best law is: there is no such point."""
    best = float(data["excess"])
    if data.attrs.get("objective") == "cross_entropy" and nats > best:
        yield Condition(BEYOND, value=nats, unit=str(data.attrs["loss_unit"]))


def _of_kind(data: xr.Dataset, kind: str, why: str) -> Iterator[Condition]:
    """Yields what stands next to a minimum, a saddle or what may be either."""
    largest = float(data["largest"].sel(end="value"))
    unit = str(data["largest"].attrs["unit"])
    if not data.attrs["kink"]:  # there products with the Hessian are no curvature, of whatever sign
        yield Condition("largest eigenvalue", value=largest, unit=unit)
    if kind == "saddle":
        values = data["spectrum"] if "spectrum" in data else data["eigenvalue"]
        count = max(1, int((values < -float(data["least_curvature"])).sum()))
        at_least = "spectrum" not in data and count >= data.sizes["low"]
        yield Condition("growing directions", not at_least, count)
        yield Condition("directions", value=int(data.attrs["outside"]))
    if kind == "minimum" and data.attrs["projected"]:
        yield Condition("directions", value=int(data.attrs["outside"]))
    if _is_tied_trap(data):
        value = float(data.attrs["binary_eigenvalue"])
        yield Condition("tied embeddings favour repeats", value=value, words=("1 − p − q",))
    if kind == "minimum" and is_flat(data):
        nothing_lower = float(data["excess"]) <= SOLVED_NATS  # in any direction
        yield Condition("flat directions", True)
        yield Condition("to second order only", not nothing_lower)
    below = kind == "minimum" and float(data["smallest"].sel(end="value")) < -NO_SIGN * abs(largest)
    if below or (kind not in ("minimum", "saddle") and why != "kink"):
        yield Condition("flat within", value=float(data["flat_limit"]), unit=unit)
    away = float(data["nats_away"])
    if kind == "minimum" or not any(_beyond(data, away)):
        yield Condition("from the stationary point", value=away, unit=str(data.attrs["loss_unit"]))


def is_flat(data: xr.Dataset) -> bool:
    """Returns whether the smallest eigenvalue of a minimum may be zero."""
    return float(data["smallest"].sel(end="value")) <= float(data["flat_limit"])


def is_sampled(data: xr.Dataset) -> bool:
    """Returns whether sequences are a sample, so that eigenvalues have intervals; else they are all."""
    return bool(data.attrs["sampled"])


def _theory(data: xr.Dataset) -> Iterator[Condition]:
    """Yields what theory says of the point, and how far it is off."""
    if "point" not in data.attrs:
        return
    point = (str(data.attrs["point"]),)
    if "other_paths" in data.attrs:
        yield Condition(
            "theory knows only part", value=float(data.attrs["other_paths"]), unit="share", words=point
        )
        return
    apart = float(data["disagreement"])
    _, low, high = (float(x) for x in data["smallest"])
    by_spectrum = "predicted_spectrum" in data
    held = low <= float(data["predicted_min"]) <= high and not by_spectrum
    if apart > AS_PREDICTED and is_sampled(data) and held:
        yield Condition("the interval holds the prediction", words=point)
    else:
        yield Condition("as predicted", apart <= AS_PREDICTED, apart, "share", point)
    for name in data["mode"].values:
        if rate := float(data["growth"].sel(mode=name)):
            yield Condition("predicted growth", value=rate, words=(str(name),))
    yield Condition("predicted smallest", value=float(data["predicted_min"]))
    inside = float(data.attrs.get("unigram_growth", 0.0))
    if "unigram" in data["mode"].values and inside > 1.001 * float(data["growth"].sel(mode="unigram")):
        yield Condition("leaves inside the symmetric subspace", value=inside)
    if "overlap" in data:
        yield Condition("overlap with predicted modes", value=float(data["overlap"]), unit="share")


def unigram_kind(data: xr.Dataset) -> str:
    """Returns what the point is where embeddings say nothing and the bias says pi, by theory."""
    if float(data.attrs["unigram_growth"]):
        return "saddle"
    return "minimum" if float(data["unigram_curvature"].min()) > 0 else "flat"


def _unigram(data: xr.Dataset) -> Iterator[Condition]:
    """Yields what the unigram point of this model would be, where the run is not there."""
    if "unigram_curvature" in data and "point" not in data.attrs:
        growth = float(data.attrs["unigram_growth"])
        yield Condition("the unigram point would be", value=growth, words=(unigram_kind(data),))


def _drift(data: xr.Dataset) -> Iterator[Condition]:
    if data.attrs["projected"]:
        yield Condition(
            "drift", value=float(last_model(data)["drift"]), unit=str(data["drift"].attrs["unit"])
        )


def _leaving(data: xr.Dataset) -> Iterator[Claim]:
    """When a run leaves the saddle that theory knows."""
    if "amplitude" not in data:
        return
    predicted, left = float(data["predicted_step"]), float(data["observed_step"])
    premises = []
    for name in ("observed", "predicted"):
        if np.isfinite(rate := float(data[f"{name}_rate"])):
            premises.append(Condition(f"{name} rate", value=rate))
    if np.isfinite(predicted):
        premises.append(Condition("predicted step", value=predicted))
    last = float(data["kept_step"][-1])
    subject, unit = (MODEL,), "step"
    if not data["amplitude"].any():
        why = "no growing pattern" if "unigram_growth" in data.attrs else "on the subspace to the last bit"
        yield Claim(
            subject, "leaves_by", (), status="excluded", evidence=LAW, because=(Condition(why), *premises)
        )
    elif float(data["amplitude"][0]) >= ESCAPED:
        away = Condition("already away")
        yield Claim(subject, "leaves_by", (), status="does not apply", because=(away, *premises))
    elif np.isfinite(left):
        seen = Condition("seen")
        null = predicted if np.isfinite(predicted) else None
        yield Claim(subject, "leaves_by", (), left, None, null, unit, because=(seen, *premises))
    elif np.isfinite(predicted):
        later = Condition("by linear theory", predicted > last)
        status: Status = "shown" if predicted > last else "open"
        yield Claim(
            subject, "leaves_by", (), predicted, unit=unit, status=status, evidence=LAW,
            because=(later, *premises),
        )  # fmt: skip


def still_small(data: xr.Dataset) -> str:
    """Returns how small the amplitude of a run that has not left is, and since when it is followed."""
    return f"below {ESCAPED:g} at every kept step from {int(data['kept_step'][0])} on"


def _canonical(data: xr.Dataset) -> Iterator[Claim]:
    """The basin that the canonical coordinates lie in."""
    if "basin" not in data:
        return
    last = last_model(data)
    basin = str(last["basin"].item())
    if basin in ("unknown", "independent"):
        return
    e, w, error = (float(last[name]) for name in ("canonical_e", "canonical_w", "fit_error"))
    at = (
        Condition("e", value=e), Condition("w", value=w),
        Condition("misses the log-odds by", value=error, unit="log-odds"),
    )  # fmt: skip
    status: Status = "open" if "other_paths" in data.attrs else "shown"
    yield Claim((MODEL,), "lies_in", (basin,), status=status, evidence="weights", because=at)


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Is it stuck: the kind of point it is at."""
    ours = Claims(tuple(claims)).where(probe="landscape")
    point = ours.first("is_at") or ours.first("moves")
    if point is None:
        return []
    largest = point.condition("largest eigenvalue")
    ends = {"smallest": point.value, "largest": None if largest is None else largest.value}
    known = {name: value for name, value in ends.items() if value is not None}
    bars = known if point.relation == "is_at" and len(known) == 2 else {}
    leaves = ours.first("leaves_by")
    more = () if leaves is None or leaves.status == "does not apply" else (leaves,)
    remedies = tuple(ours.where("is_left_with"))
    told = (point, *remedies[:1]) if remedies else more
    stuck = Tile(STUCK, (point,), told, point, bars, "eigenvalues", rank=3)
    left = leaves is not None and leaves.is_shown and leaves.condition("seen") is not None
    return [stuck, Tile(CAME, more, (), None, of_run=True, rank=2)] if left else [stuck]
