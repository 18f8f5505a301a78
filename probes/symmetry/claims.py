"""Claims of symmetry: whether it traps the model, by which premises, or what let the model out."""

from collections.abc import Iterator, Sequence

import xarray as xr

from mechmarkov.claims.claim import MODEL, Claim, Claims, Condition
from mechmarkov.claims.tile import STUCK, Tile
from mechmarkov.curvature.loss_surface import SOLVED_NATS
from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.score import Score

from .measure import FLAT_INFORMATION, FLAT_SHARE
from .reduced_run import RANDOM_STARTS

MEASURED_STATES = range(5, 13)  # of the walks whose way out of the trap was measured
SHIFTS, TOKEN_MEAN = ("shifts",), ("token mean",)


def claims(data: xr.Dataset, _: dict[str, Score]) -> list[Claim]:
    """Returns whether a symmetry traps the model, and why or why not."""
    last = last_model(data)
    by = SHIFTS if data.attrs["shifts"] else TOKEN_MEAN
    information = float(data["first_step_information"])
    excess = float(last["excess"])
    if excess <= SOLVED_NATS:
        solved = (Condition("near the best", value=excess, unit="nats"),)
        return [Claim((MODEL,), "is_trapped_by", by, status="excluded", evidence="law", because=solved)]
    if why := str(data.attrs["does_not_apply"]):
        premise = (Condition("not the walk model", words=(why,)),)
        return [Claim((MODEL,), "is_trapped_by", by, status="does not apply", because=premise)]
    trapped = bool(last["trapped"])
    why_not = () if trapped else tuple(_way_out(data, last))
    found = Claim(
        (MODEL,), "is_trapped_by", by, information, unit="share",
        status="shown" if trapped else "excluded", evidence="law",
        because=(*_premises(data, last), *why_not, *_reduced(last)),
    )  # fmt: skip
    return [found, *_remedy(data, trapped)]


def _remedy(data: xr.Dataset, trapped: bool) -> Iterator[Claim]:
    """Yields what was measured to leave the trap (`random_walks.always_fails` of the verdicts)."""
    if trapped and data.attrs["shifts"] and int(data.attrs["n_states"]) in MEASURED_STATES:
        cases = (Condition("cases", value=726), Condition("states", value=int(data.attrs["n_states"])))
        yield Claim(
            (MODEL,), "is_left_with", ("another length",), 1.0, unit="share", evidence="law", because=cases
        )


def _premises(data: xr.Dataset, last: xr.Dataset) -> Iterator[Condition]:
    """Those of theorem 4.1 of Shi & Cao (2025), or of its like for other chains."""
    K, N = int(data.attrs["n_states"]), int(data.attrs["length"])
    spread, variation = float(last["attention_spread"]), float(last["circuit_variation"])
    information = float(data["first_step_information"])
    yield Condition("states", value=K)
    yield Condition("states that a label counts", value=N - 1)
    if data.attrs["deterministic"]:
        yield Condition("states divide the length", bool(data.attrs["shifts"]))
    yield Condition("first gradient is flat", information < FLAT_INFORMATION, information, "share")
    yield Condition("attention is flat", spread < FLAT_SHARE, spread, "share of uniform")
    yield Condition("rows of V are constant", variation < FLAT_SHARE, variation, "share")
    at_zero = data.attrs["start"] == "zero"
    yield Condition("stays for ever", bool(data.attrs["stays"]) and at_zero and bool(data.attrs["shifts"]))


def _way_out(data: xr.Dataset, last: xr.Dataset) -> Iterator[Condition]:
    """Yields why a model is not trapped."""
    start = str(last.attrs["start"])
    if data.attrs["shifts"]:
        if start == "zero" and not last.attrs["stays"]:
            yield Condition("its optimiser scales coordinates")
        elif start == "zero":
            yield Condition("rounding took it out")
        elif start in RANDOM_STARTS:
            yield Condition("it started at random", value=float(last.attrs["start_std"]))
        else:
            yield Condition("its start is unknown")
        return
    accuracy = data["token_mean_accuracy"]
    yield Condition("the token mean tells", True, float(accuracy), "probability")
    yield Condition("chance", value=float(data["chance"]), unit="probability")
    if data.attrs["deterministic"]:
        one = float(data["one_step_accuracy"])
        yield Condition("one step predicts", value=one, unit="probability")


def _reduced(last: xr.Dataset) -> Iterator[Condition]:
    """The reduced system next to the run."""
    if "reduced_gap" in last:
        yield Condition("reduced system's spread", value=float(last["reduced_spread"]), unit="probability")
        yield Condition("away from the reduced system", value=float(last["reduced_gap"]), unit="share")


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Is it stuck: yes, where a symmetry traps it."""
    trapped = Claims(tuple(claims)).first("is_trapped_by", probe="symmetry")
    if trapped is None or trapped.status == "does not apply":
        return []
    remedies = Claims(tuple(claims)).where("is_left_with", probe="symmetry")
    more = (trapped, *remedies) if remedies else ()
    return [Tile(STUCK, (trapped,), more, trapped, rank=0 if trapped.is_shown else 5)]
