"""How claims are scored against exact effects, and what chance gives."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import scipy.stats
from jaxtyping import Float

from mechmarkov.bench.case import Case
from mechmarkov.bench.patching import MIN_EFFECT_NATS, Effects, corrupt_edges, losses

ROUNDING = 1e-9  # nats: sums of some hundred float64 numbers, which must not decide ranks and signs
KEPT = 0.9  # share of the loss difference that a circuit must keep

# Name of each score: what a perfect method has, what chance gives, and what the score is.
SCORES: dict[str, tuple[float, float, str]] = {
    "pearson": (1, 0, "correlation of claims and exact effects"),
    "rank": (1, 0, "their rank correlation (Spearman)"),
    "sign": (1, 0.5, "share of the circuit's components whose sign is right; a claim of 0 is wrong"),
    "auroc": (1, 0.5, "chance that a component of the circuit is claimed to be larger than another one"),
    "error": (
        0,
        1,
        "sum of |claim − effect| over the sum of |effect|, of claims in nats; 1 is claiming nothing",
    ),
    "faithful": (
        1,
        0,
        "share of the loss difference that as many edges as the circuit has keep, the largest claims",
    ),
    "extra": (0, np.nan, "edges beyond the exact order's that keep 90 % of the loss difference"),
    "alarms": (
        0,
        1,
        "where nothing is to be found, the share of components that are claimed, or whether a belief is",
    ),
    "belief_error": (0, 1, "squared error of the belief as read, over its variance"),
    "angle": (0, np.nan, "mean angle between the signals that are read and the belief's, over a right angle"),
    "forced": (0, 1, "KL to the law under a forced state, over the KL without forcing"),
}


def score_claims(
    claims: Mapping[str, float], exact: Effects, *, in_nats: bool, empty: bool
) -> dict[str, float]:
    """The scores of claims that need no model; NaN where one does not apply.

    Args:
        claims: By node or edge.
        exact: Exact effects of the same components.
        in_nats: Whether the claims' size means something.
        empty: Whether nothing has an effect: then false alarms are all that is scored. A claim in nats is an
            alarm from 0.001 nats on, another one where it is not 0.
    """
    claimed = np.array([claims[name] for name in exact.names])
    claimed, value = (np.where(np.abs(x) < ROUNDING, 0.0, x) for x in (claimed, exact.value))
    found = dict.fromkeys(SCORES, np.nan)
    if empty:
        return found | {
            "alarms": float((np.abs(claimed) >= (MIN_EFFECT_NATS if in_nats else ROUNDING)).mean())
        }
    inside = exact.in_circuit
    found["sign"] = float((np.sign(claimed[inside]) == np.sign(value[inside])).mean())
    if np.ptp(value) > 0:
        found |= {"pearson": 0.0, "rank": 0.0}
        if np.ptp(claimed) > 0:
            found["pearson"] = float(scipy.stats.pearsonr(claimed, value).statistic)
            found["rank"] = float(scipy.stats.spearmanr(claimed, value).statistic)
    if inside.any() and not inside.all():
        u = scipy.stats.mannwhitneyu(np.abs(claimed[inside]), np.abs(claimed[~inside])).statistic
        found["auroc"] = float(u / (inside.sum() * (~inside).sum()))
    if in_nats:
        found["error"] = float(np.abs(claimed - value).sum() / np.abs(value).sum())
    return found


def score_circuits(case: Case, claims: Mapping[str, float], exact: Effects) -> dict[str, float]:
    """`faithful` and `extra`: how good the circuit of the largest claims is, by running it.

    All other edges are corrupt (Marks et al. 2024, arXiv 2403.19647; Mueller et al. 2025, arXiv 2504.13151).
    """
    size = int(exact.in_circuit.sum())
    ours, theirs = kept_loss(case, _by_size(claims)), _kept_by_truth(case, exact)
    return {"faithful": float(ours[size]), "extra": float(_first(ours) - _first(theirs))}


def _by_size(claims: Mapping[str, float]) -> list[str]:
    return sorted(claims, key=lambda name: -abs(claims[name]))


@lru_cache(maxsize=1)  # all methods are scored on one case before the next is built
def _kept_by_truth(case: Case, exact: Effects) -> Float[np.ndarray, " size"]:
    return kept_loss(case, _by_size(exact.as_claims()))


def kept_loss(case: Case, order: list[str]) -> Float[np.ndarray, " size"]:
    """The share of the difference between corrupt and clean loss that the first 0, 1, … edges keep."""
    found = []
    for size in range(len(order) + 1):
        with corrupt_edges(case, order[size:]):
            found.append(losses(case).mean())
    return (found[0] - np.array(found)) / (found[0] - found[-1])


def _first(kept: Float[np.ndarray, " size"]) -> int:
    """The fewest edges from which on 90 % is kept."""
    below = np.flatnonzero(kept < KEPT)
    return int(below.max()) + 1 if len(below) else 0
