"""How claims are scored against exact effects, and what chance gives."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import scipy.stats
import xarray as xr
from jaxtyping import Float
from scipy.linalg import orth, subspace_angles

from mechmarkov.bench.case import Case, seed_of
from mechmarkov.bench.patching import MIN_EFFECT_NATS, Effects, content_of, corrupt_edges, losses
from mechmarkov.utils.kept_data import kept

# Nats, or the share of the largest claim of another unit: less must not decide ranks and signs. Weights that
# are set by hand are rounded to float32, so that gradients at an exact optimum are 1e-8 and not 0.
ROUNDING = 1e-6
RANK_TOLERANCE = 1e-5  # of signals' singular values: weights are rounded to float32
RANDOM_ORDERS = 8  # of edges
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
    "slope": (1, 0, "slope of exact effects over claims in nats: above 1 they are too small"),
    "intercept": (0, np.nan, "exact effect where nothing is claimed, by that line (nats)"),
    "faithful": (
        1,
        0,
        "share of the loss difference that as many edges as the circuit has keep, the largest claims",
    ),
    "area": (
        1,
        0,
        "by how much that share is nearer to 1 over all sizes than in random orders, over the exact order's",
    ),
    "cpr": (1, np.nan, "area under that share over sizes, over the area of the exact order"),
    "extra": (0, np.nan, "edges beyond the exact order's that keep 90 % of the loss difference"),
    "alarms": (
        0,
        1,
        "where nothing is to be found, the share of components that are claimed, or whether a belief is",
    ),
    "belief_error": (0, 1, "squared error of the belief as read, over its variance"),
    "angle": (
        0,
        np.nan,
        "mean angle between signals as read and the true ones, or of subspaces, over a right angle",
    ),
    "forced": (0, 1, "KL to the law under a forced state, or after an interchange, over the KL without"),
    "cosine": (1, np.nan, "cosine of true features with claimed ones, paired, up to the blocks' means"),
    "kl": (0, np.nan, "KL from the exact predictor to what the belief as read predicts (nats)"),
    "llc_error": (0, np.nan, "distance of the learning coefficient from the exact one, over that"),
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
            alarm from 0.001 nats on, another one from 10⁻⁶ of its unit on.
    """
    claimed, value = np.array([claims[name] for name in exact.names]), _or_zero(exact.value, 1.0)
    scores = dict.fromkeys(SCORES, np.nan)
    if empty:
        least = MIN_EFFECT_NATS if in_nats else ROUNDING
        return scores | {"alarms": float((np.abs(claimed) >= least).mean())}
    claimed, inside = _or_zero(claimed, 1.0 if in_nats else np.abs(claimed).max()), exact.in_circuit
    scores["sign"] = float((np.sign(claimed[inside]) == np.sign(value[inside])).mean())
    if np.ptp(value) >= MIN_EFFECT_NATS:  # else all are the same, and their order is rounding
        scores |= {"pearson": 0.0, "rank": 0.0}
        if np.ptp(claimed) > 0:
            scores["pearson"] = float(scipy.stats.pearsonr(claimed, value).statistic)
            scores["rank"] = float(scipy.stats.spearmanr(claimed, value).statistic)
        if in_nats:
            flat = np.ptp(claimed) < MIN_EFFECT_NATS  # claims of nothing: their line would be rounding
            slope = 0.0 if flat else float(np.cov(claimed, value)[0, 1] / claimed.var(ddof=1))
            scores |= {"slope": slope, "intercept": float(value.mean() - slope * claimed.mean())}
    if inside.any() and not inside.all():
        u = scipy.stats.mannwhitneyu(np.abs(claimed[inside]), np.abs(claimed[~inside])).statistic
        scores["auroc"] = float(u / (inside.sum() * (~inside).sum()))
    if in_nats:
        scores["error"] = float(np.abs(claimed - value).sum() / np.abs(value).sum())
    return scores


def _or_zero(x: Float[np.ndarray, " n"], largest: float) -> Float[np.ndarray, " n"]:
    return np.where(np.abs(x) < ROUNDING * largest, 0.0, x)


def score_circuits(
    case: Case, claims: Mapping[str, float], exact: Effects, *, in_nats: bool
) -> dict[str, float]:
    """`faithful`, `area`, `cpr` and `extra`: how good circuits of the largest claims are, by running them.

    All other edges are corrupt (Marks et al. 2024, arXiv 2403.19647). `cpr` is the area under faithfulness of
    Mueller et al. (2025, arXiv 2504.13151), over all sizes. It grows with every share above 1, and says
    nothing of chance. It is NaN where the exact order's own area is not above 0: there less would be more.
    `area` takes the distance to the model instead, and is NaN where random orders are as near to it as the
    exact one.
    """
    size = int(exact.in_circuit.sum())
    both = ((claims, in_nats), (exact.as_claims(), True))
    ours, theirs = (kept_loss(case, _order(case, *each)) for each in both)
    chance = random_distance(case)
    gain = chance - _distance(theirs)
    return {
        "faithful": float(ours[size]),
        "area": (chance - _distance(ours)) / gain if gain > ROUNDING else np.nan,
        "cpr": float(ours.mean() / theirs.mean()) if theirs.mean() > 0 else np.nan,
        "extra": float(_first(ours) - _first(theirs)),
    }


def _order(case: Case, claims: Mapping[str, float], in_nats: bool) -> tuple[str, ...]:
    """The largest claims first; those that tie in a drawn order, as the model's own would tell."""
    drawn = np.random.default_rng(seed_of(case.clean)).permutation(list(case.edges))
    size = np.abs([claims[name] for name in drawn])
    size = _or_zero(size, 1.0 if in_nats else size.max())
    return tuple(drawn[np.argsort(-size, kind="stable")].tolist())


def _distance(shares: Float[np.ndarray, " size"]) -> float:
    """Returns how far circuits are from the model, mean over sizes; at most 1, that of no edge at all."""
    return float(np.minimum(1, np.abs(1 - shares)).mean())


@lru_cache(maxsize=1)
def random_distance(case: Case) -> float:
    """The distance of edges in random order; half of the orders are the others backwards."""

    def measure() -> xr.Dataset:
        random, names = np.random.default_rng(seed_of(case.clean)), list(case.edges)
        orders = [tuple(random.permutation(names).tolist()) for _ in range(RANDOM_ORDERS // 2)]
        distances = [_distance(kept_loss(case, each)) for order in orders for each in (order, order[::-1])]
        return xr.Dataset({"distance": ("order", distances)})

    return float(kept(content_of(case, "random orders"), measure)["distance"].mean())


@lru_cache(maxsize=16)  # all methods are scored on one case before the next is built
def kept_loss(case: Case, order: tuple[str, ...]) -> Float[np.ndarray, " size"]:
    """The share of the difference between corrupt and clean loss that the first 0, 1, … edges keep."""
    nats = []
    for size in range(len(order) + 1):
        with corrupt_edges(case, order[size:]):
            nats.append(losses(case).mean())
    return (nats[0] - np.array(nats)) / (nats[0] - nats[-1])


def _first(restored: Float[np.ndarray, " size"]) -> int:
    """The fewest edges from which on 90 % is kept."""
    below = np.flatnonzero(restored < KEPT)
    return int(below.max()) + 1 if len(below) else 0


def signal_angle(truth: Float[np.ndarray, "row signal"], decoded: Float[np.ndarray, "row _"]) -> float:
    """The mean principal angle between the spaces that signals span over rows, over a right angle.

    A signal that is missing counts as a right angle, and so does one too many.
    """
    bases = [orth(values - values.mean(0), rcond=RANK_TOLERANCE) for values in (truth, decoded)]
    widths = [basis.shape[1] for basis in bases]
    angles = subspace_angles(*bases) if min(widths) else np.zeros(0)
    return float((angles.sum() / (np.pi / 2) + max(widths) - min(widths)) / max(widths))
