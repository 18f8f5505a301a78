"""Claims of how far a model has come from the unigram's loss to the best, and what it lacks."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import MODEL, Claim, Condition, Status
from mechmarkov.probing.dataset import MIN_GAP_NATS, NORMAL_95, is_nearest, normal_interval
from mechmarkov.probing.score import Score

REACHED = 0.9  # of the way from the unigram's loss to the best: a tenth is left at most
ROUNDING = 1e-6  # nats, of predictions in float32
ALIKE = 1e-3  # of that way; a law that is nearly the best may be nearer still


def is_on_scores(data: xr.Dataset) -> bool:
    """Returns whether the training loss is another one than cross-entropy."""
    return bool(data.attrs.get("objective", "cross_entropy") != "cross_entropy")


def knows_a_token(data: xr.Dataset, last: xr.Dataset) -> bool:
    """Returns whether a model's loss is clearly below that of laws that read no token."""
    gap = float(data["gap"])
    return gap >= MIN_GAP_NATS and is_on_its_way(last) and not _is_uniform_better(data, gap)


def is_on_its_way(last: xr.Dataset) -> bool:
    """Returns whether a tenth of the way from the unigram to the best law is clearly behind it."""
    return 1 - float(last["left"]) - NORMAL_95 * float(last["left_error"]) > 1 - REACHED


def way(data: xr.Dataset, last: xr.Dataset, scores: dict[str, Score]) -> Iterator[Claim]:
    """Yields how much is missing to the best law, in nats and as a share of the way from the unigram."""
    best = str(data.attrs.get("best", data["predictor_loss"].idxmin("predictor").item()))
    excess, gap = float(last["excess"]), float(data["gap"])
    value = 1 - float(last["left"])
    interval = normal_interval(value, float(last["left_error"]))
    apart = gap >= MIN_GAP_NATS
    if not apart:  # between laws that are so near there is no way
        value = 1.0 if excess < MIN_GAP_NATS else -1.0
        interval = (value, value)
    near = is_nearest(last["kl"])
    if float(last["kl"].sel(predictor=best)) <= ALIKE * gap:
        near = near | (near["predictor"] == best)
    closest = set(near["predictor"].values[near].tolist())
    unigram = str(data.attrs["unigram"])
    at_start = bool(data.attrs.get("starts_untrained")) and int(np.ravel(data["step"])[-1]) == 0
    kl_unigram = float(last["kl"].sel(predictor=unigram))
    above = tuple(_above_unigram(last))
    conditions = (
        Condition("unigram is told from the best", apart, gap, "nats", (data.attrs["unigram"],)),
        Condition("the best is the unigram", best == unigram),
        Condition("the nearest law is the best", best in closest),
        Condition("the nearest law is the unigram", unigram in closest, kl_unigram, "nats"),
        Condition("loss on scores", is_on_scores(data)),
        Condition("no step was made", at_start),
        Condition("the uniform law is better than the unigram", _is_uniform_better(data, gap)),
        *above,
        *_above_uniform(data, last, gap),
        *_fell(data, gap),
    )
    status: Status = "shown" if interval[0] >= REACHED else "excluded" if interval[1] < REACHED else "open"
    status = "excluded" if above and status == "open" else status  # whatever the way is worth
    if status == "shown" and best not in closest:
        status = "open"
    missed = scores.get("kl_best")
    around = None if missed is None else missed.interval
    nats = missed.value if missed is not None and isinstance(missed.value, float) else excess
    null = None if missed is None else missed.null
    yield Claim((MODEL,), "reaches", (best,), nats, around, null, "nats", status, because=conditions)
    if apart:
        yield Claim((MODEL,), "is_on_the_way_to", (best,), value, interval, unit="share", because=conditions)


def _above_unigram(last: xr.Dataset) -> Iterator[Condition]:
    """Yields that the loss is clearly above the unigram's, however little the best law gains over that."""
    if "above_unigram" not in last:
        return
    above, error = float(last["above_unigram"]), float(last["above_unigram_error"])
    if above > NORMAL_95 * error + ROUNDING:
        yield Condition("the loss is above the unigram's", value=above, unit="nats")


def _above_uniform(data: xr.Dataset, last: xr.Dataset, gap: float) -> Iterator[Condition]:
    """Yields that the loss is clearly above the uniform law's, where that is above the unigram's."""
    if "predictor_excess" not in data or "uniform" not in data["predictor"].values:
        return
    uniform, unigram = (
        float(data["predictor_excess"].sel(predictor=name)) for name in ("uniform", data.attrs["unigram"])
    )
    least = float(last["excess"]) - NORMAL_95 * gap * float(last["left_error"])
    if uniform > unigram + ALIKE * gap and least > uniform:
        yield Condition("the loss is above the uniform law's", value=uniform, unit="nats")


def _is_uniform_better(data: xr.Dataset, gap: float) -> bool:
    """Returns whether counts of tokens lead away from the best law: by a tenth of what they lose to it."""
    losses = data["predictor_loss"]
    if "uniform" not in losses["predictor"].values:
        return False
    uniform, unigram = (float(losses.sel(predictor=name)) for name in ("uniform", data.attrs["unigram"]))
    return uniform < unigram - ALIKE * gap


def _fell(data: xr.Dataset, gap: float) -> Iterator[Condition]:
    """Yields by how much the loss that is trained clearly fell since the probed step before the last one.

    Where in between it fell, and so whether it falls still, is not known.
    """
    if data.sizes.get("step", 1) < 2 or is_on_scores(data):
        return
    fell = float(data["excess"][-2] - data["excess"][-1])
    # Of the same sequences, so that the errors together are at most too wide.
    if fell > NORMAL_95 * gap * float(np.hypot(*data["left_error"][-2:].values)):
        yield Condition("the loss fell", True, fell, "nats", (str(int(data["step"][-2])),))
