"""What the symmetry probe says: trapped by symmetry or not, and why; one idea a sentence."""

from collections.abc import Iterator

import xarray as xr

from mechmarkov.curvature.loss_surface import SOLVED_NATS
from mechmarkov.probing.dataset import last_model
from mechmarkov.utils.text import format_share

from .measure import FLAT_INFORMATION, FLAT_SHARE
from .reduced_run import RANDOM_STARTS

ROUNDING = 1e-12  # of numbers in float64; below, they are said to be no more than that


def verdict(data: xr.Dataset) -> str:
    """Why it is trapped, or why it is not; one line where the argument says nothing of the model."""
    last = last_model(data)
    excess = float(last["excess"])
    if excess <= SOLVED_NATS:
        return f"Not stuck: its predictions are {excess:.2g} nats from the best possible."
    if data.attrs["does_not_apply"]:
        return f"Does not apply: {data.attrs['does_not_apply']}."
    said = _trapped(data, last) if bool(last["trapped"]) else _not_trapped(data, last)
    return " ".join([*said, *_reduced(last)])


def _trapped(data: xr.Dataset, last: xr.Dataset) -> Iterator[str]:
    K, N = int(data.attrs["n_states"]), int(data.attrs["length"])
    information = float(data["first_step_information"])
    if data.attrs["shifts"]:
        times = (N - 1) // K
        yield (
            f"Trapped by symmetry: {K} divides N - 1 = {N - 1}, so every state is read {times} times "
            "whatever the label."
        )
        yield "Shifting tokens and positions along the cycle leaves every sequence as it is."
        later = ", and every later one" if data.attrs["stays"] and data.attrs["start"] == "zero" else ""
        yield f"So the first gradient is flat (information {_tiny(information)}){later}."
    else:
        yield (
            "Trapped in the population: the token mean tells nothing of the label (information of the first "
            f"gradient {_tiny(information)})."
        )
        yield "The token means of a finite sample do differ by label."
    spread, variation = float(last["attention_spread"]), float(last["circuit_variation"])
    attention = f"flat to {_tiny(spread)} of uniform" if spread else "exactly flat"
    rows = f"constant to {_tiny(variation)} of its size" if variation else "exactly constant"
    yield f"Attention is {attention}, and the rows of V are {rows}."


def _not_trapped(data: xr.Dataset, last: xr.Dataset) -> Iterator[str]:
    K, N = int(data.attrs["n_states"]), int(data.attrs["length"])
    spread, variation = float(last["attention_spread"]), float(last["circuit_variation"])
    information = float(data["first_step_information"])
    if data.attrs["shifts"]:
        yield (
            f"Not trapped, though {K} divides N - 1 = {N - 1} and the first step from zero is flat "
            f"(information {_tiny(information)})."
        )
        yield _why_it_left(last)
    elif data.attrs["deterministic"]:
        yield f"Not trapped: {K} does not divide N - 1 = {N - 1}, so some states are read once more."
        yield from _token_mean(data)
        yield f"One step from zero already predicts with accuracy {float(data['one_step_accuracy']):.2f}."
    elif information < FLAT_INFORMATION:
        yield f"Not trapped, though the first gradient tells nothing (information {_tiny(information)})."
    else:
        step = "next" if spread < FLAT_SHARE and variation < FLAT_SHARE else "first"
        yield f"Not trapped: the token mean tells of the label, so the {step} step tells states apart."
        yield from _token_mean(data)
    yield f"The most and the least attended token differ by {spread:.2g} of a token's mean share."
    yield f"A share {variation:.2g} of the circuit's size depends on the state read."


def _tiny(value: float) -> str:
    """A number that may be zero but for rounding.

    >>> _tiny(0.0), _tiny(3e-32), _tiny(2.4e-7)
    ('0', 'under 1e-12', '2e-07')
    """
    return "under 1e-12" if 0 < value < ROUNDING else f"{value:.1g}"


def _token_mean(data: xr.Dataset) -> Iterator[str]:
    information = float(data["first_step_information"])
    low, high = data["token_mean_accuracy"].attrs["interval"]
    between = f" ({low:.3f} to {high:.3f})" if high > low else ""
    yield f"The information of the first gradient is {information:.2g}."
    yield (
        f"The nearest class mean is right {float(data['token_mean_accuracy']):.3f} of the time{between}, the "
        f"likeliest state {float(data['chance']):.3f}."
    )


def _reduced(last: xr.Dataset) -> Iterator[str]:
    if "reduced_gap" in last:
        K, N = int(last.attrs["n_states"]), int(last.attrs["length"])
        gap, spread = float(last["reduced_gap"]), float(last["reduced_spread"])
        yield f"The reduced system of K + N = {K + N} numbers has a spread of {spread:.2g}."
        if gap <= 1:
            yield f"The run's V differs from that system's V by {format_share(gap, 1)} of its norm."


def _why_it_left(last: xr.Dataset) -> str:
    start = str(last.attrs["start"])
    if start == "zero" and not last.attrs["stays"]:
        return (
            "It started from zero, but an optimiser that scales each coordinate by itself need not keep the "
            "symmetry of these positions."
        )
    if start == "zero":
        reduced = "reduced_gap" in last
        exact = f" (the reduced system's spread is {_tiny(float(last['reduced_spread']))})" if reduced else ""
        return f"It started from zero, where exact arithmetic stays{exact}: rounding took it out."
    if start in RANDOM_STARTS:
        return f"It started at random (sd {float(last.attrs['start_std']):g}), which breaks the symmetry."
    return "Its start or its optimiser broke the symmetry: the run has no recipe that tells which."
