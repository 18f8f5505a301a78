"""Scores of claims against exact effects and the circuit that was built, and what chance gives."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import scipy.stats
from jaxtyping import Float
from scipy.linalg import orth, subspace_angles

from mechmarkov.bench.case import Case
from mechmarkov.bench.metrics import UNSIGNED
from mechmarkov.bench.patching import MIN_EFFECT, Effects

# Of the metric's unit, or of the largest claim of another unit: less must not decide ranks and signs. Weights
# that are set by hand are rounded to float32, so that gradients at an exact optimum are 1e-8 and not 0.
ROUNDING = 1e-6
RANK_TOLERANCE = 1e-5  # of signals' singular values: weights are rounded to float32

# Name of each score: what a perfect method has, what chance gives, and what the score is.
SCORES: dict[str, tuple[float, float, str]] = {
    "pearson": (1, 0, "correlation of claims and exact effects under the claims' own metric"),
    "rank": (1, 0, "rank correlation (Spearman); by sizes where effects or claims have no sign"),
    "sign": (1, 0.5, "share of the circuit's components whose sign is right; a claim of 0 is wrong"),
    "auroc": (1, 0.5, "chance that a component with a sure effect is claimed to be larger than one without"),
    "error": (
        0,
        1,
        "sum of |claim − effect| over that of |effect|, under the claims' own metric; 1 is claiming nothing",
    ),
    "built": (np.nan, 0.5, "that chance for what was built against what was not, as InterpBench counts it"),
    "cpr": (np.nan, np.nan, "MIB's area under faithfulness, the largest claims first; more is better"),
    "cmd": (0, np.nan, "MIB's area between faithfulness and 1, the largest sizes first; less is better"),
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
Claims = Mapping[str, float]


def score_claims(
    claims: Claims, exact: Effects, *, metric: str, own: bool, sizes: bool = False, empty: bool = False
) -> dict[str, float]:
    """The scores of claims against exact effects; what does not apply is left out.

    Args:
        claims: By node, edge or layer.
        exact: Exact effects of the same components.
        metric: What these are in.
        own: Whether the claims are in that metric. Otherwise they are scored by order and sign. Effects
            without a sign are compared with the sizes of such claims.
        sizes: Whether the claims are sizes, without a sign: they are compared with the effects' sizes.
        empty: Whether nothing has an effect: then false alarms are all that is scored. A claim in the metric
            is an alarm from 0.001 of its unit on, another one from 10⁻⁶ of its unit on.
    """
    claimed, value = np.array([claims[name] for name in exact.names]), _or_zero(exact.value, 1.0)
    if empty:
        return {"alarms": float((np.abs(claimed) >= (MIN_EFFECT if own else ROUNDING)).mean())}
    claimed, inside = _or_zero(claimed, 1.0 if own else np.abs(claimed).max()), exact.in_circuit
    unsigned = sizes or (not own and metric == UNSIGNED)
    scores: dict[str, float] = {}
    if inside.any() and not unsigned:
        scores["sign"] = float((np.sign(claimed[inside]) == np.sign(value[inside])).mean())
    if np.ptp(value) >= MIN_EFFECT:  # else all are the same, and their order is rounding
        ordered = (np.abs(claimed), np.abs(value) if sizes else value) if unsigned else (claimed, value)
        scores["rank"] = _correlation(scipy.stats.spearmanr, *ordered)
        if own:
            scores["pearson"] = _correlation(scipy.stats.pearsonr, claimed, value)
    if own:
        told = inside | (np.abs(value) < MIN_EFFECT)  # of others it is open whether they have an effect
        of_these = {name: claims[name] for name, one in zip(exact.names, told, strict=True) if one}
        scores["auroc"] = auroc(of_these, np.array(exact.names)[inside].tolist())
        if (whole := np.abs(value).sum()) >= MIN_EFFECT:
            scores["error"] = float(np.abs(claimed - value).sum() / whole)
    return scores


def _correlation(statistic: Callable[..., Any], claimed: np.ndarray, value: np.ndarray) -> float:
    """A correlation; 0 where all claims are the same."""
    return float(statistic(claimed, value).statistic) if np.ptp(claimed) > 0 else 0.0


def _or_zero(x: Float[np.ndarray, " n"], largest: float) -> Float[np.ndarray, " n"]:
    return np.where(np.abs(x) < ROUNDING * largest, 0.0, x)


def auroc(claims: Claims, inside: Iterable[str]) -> float:
    """The chance that a component inside is claimed to be larger in size than one outside; ties count half.

    NaN where all are inside, or none.

    Example:
        >>> auroc({"a": -3.0, "b": 1.0, "c": 2.0, "d": 1.0}, ["a", "b"])
        0.625
    """
    names = [*claims]
    sizes = np.abs([claims[name] for name in names])
    sizes = _or_zero(sizes, float(sizes.max(initial=0)))
    chosen = np.isin(names, [*inside])
    if chosen.all() or not chosen.any():
        return float("nan")
    u = scipy.stats.mannwhitneyu(sizes[chosen], sizes[~chosen]).statistic
    return float(u / (chosen.sum() * (~chosen).sum()))


def score_built(case: Case, claims: Claims, of: str) -> dict[str, float]:
    """`built`: the AUROC of claims for the edges that were built, or for the nodes that write to them.

    As in InterpBench (Gupta et al. 2024, arXiv 2407.14494) a component is in the circuit because it was made
    so, whatever its effect on these sequences. Its code joins the inputs of a head into one edge and leaves
    out the edge from the embedding to the logits; here all are kept. Only of models that were set by hand.
    """
    if not case.circuit:
        return {}
    inside = case.circuit if of == "edges" else {case.edges[name][0] for name in case.circuit}
    return {"built": auroc(claims, inside)}


def signal_angle(truth: Float[np.ndarray, "row signal"], decoded: Float[np.ndarray, "row _"]) -> float:
    """The mean principal angle between the spaces that signals span over rows, over a right angle.

    A signal that is missing counts as a right angle, and so does one too many.
    """
    bases = [orth(values - values.mean(0), rcond=RANK_TOLERANCE) for values in (truth, decoded)]
    widths = [basis.shape[1] for basis in bases]
    angles = subspace_angles(*bases) if min(widths) else np.zeros(0)
    return float((angles.sum() / (np.pi / 2) + max(widths) - min(widths)) / max(widths))
