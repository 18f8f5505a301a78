"""A one-layer binary model read as the two numbers `(e, w)`, with what that leaves out."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechmarkov.probing.recording import MLP_BY_PARENT, SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import FixedChain
from mechmarkov.theory import canonical

# Below this size squared an embedding says nothing, and what the MLP makes of it is rounding.
NO_EMBEDDING = 1e-10


@dataclass(frozen=True, eq=False)
class CanonicalFit:
    """Canonical coordinates of each model.

    Attributes:
        e: `|E_1 - E_0|`, so that `e²` is what the embedding itself adds to the slope of the log-odds.
        w: From `2 w |w| e²`, what the MLP adds to that slope; NaN without an embedding.
        slope: The model's slope: log-odds of state 1 after state 1 less those after state 0, a mean.
        fit_error: Root mean square difference between the model's log-odds and the line `s x + c` that the
            coordinates give, with the best c.
        log_odds_sd: Standard deviation of the model's log-odds, to hold that against.
        rank_one: Share of the first singular value in those of the MLP's two matrices, squared; their mean.
        energy: The invariant of the flow.
        basin: Where the flow would end.
    """

    e: Float[np.ndarray, " member"]
    w: Float[np.ndarray, " member"]
    slope: Float[np.ndarray, " member"]
    fit_error: Float[np.ndarray, " member"]
    log_odds_sd: Float[np.ndarray, " member"]
    rank_one: Float[np.ndarray, " member"]
    energy: Float[np.ndarray, " member"]
    basin: list[str]


def binary_probabilities(subject: Subject) -> tuple[float, float]:
    """`p = Pr(1 | 0)` and `q = Pr(0 | 1)` of a chain of two states."""
    assert isinstance(subject.source, FixedChain)
    P = subject.source.P
    return float(P[0, 1]), float(P[1, 0])


def canonical_fit(subject: Subject) -> CanonicalFit | str:
    """Canonical coordinates of every model, or one line why they have none."""
    config = subject.config
    if subject.source.n_states != 2 or not isinstance(subject.source, FixedChain):
        return "canonical coordinates are those of a binary chain"
    if config.n_layers != 1 or config.attn_only or not config.tied or config.normalization_type is not None:
        return "canonical coordinates are those of one tied layer with an MLP and no norm"
    if config.gated_mlp or config.parallel_attn_mlp:
        return "canonical coordinates are those of an MLP without a gate, behind the attention"
    if subject.objective.kind != "cross_entropy" or subject.objective.query:
        return "canonical coordinates are those of cross-entropy on the next token"
    state = subject.decoder.state_dict()
    embedding = state["embed.W_E"].double().numpy()
    towards = embedding[:, 1] - embedding[:, 0]
    squared = (towards**2).sum(-1)
    mlp = subject.recorded(MLP_BY_PARENT)[:, 0]
    by_mlp = ((mlp[:, 1] - mlp[:, 0]) * towards).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(squared > NO_EMBEDDING, by_mlp / (2 * squared), np.nan)
    e, w = np.sqrt(squared), np.sign(ratio) * np.sqrt(np.abs(ratio))
    log_odds = np.diff(subject.recorded(SCORES).astype(np.float64), axis=-1)[..., 0]
    after = subject.batch.parents.numpy() == 1
    line = canonical.slope(e, np.nan_to_num(w))[:, None, None] * after
    left = log_odds - line
    left = left - left.mean((1, 2), keepdims=True)
    into, out = (state[f"blocks.0.mlp.{name}"].double().numpy() for name in ("W_in", "W_out"))
    p, q = binary_probabilities(subject)
    return CanonicalFit(
        e=e,
        w=w,
        slope=log_odds[:, after].mean(-1) - log_odds[:, ~after].mean(-1),
        fit_error=np.sqrt((left**2).mean((1, 2))),
        log_odds_sd=log_odds.std((1, 2)),
        rank_one=(_rank_one(into) + _rank_one(out)) / 2,
        energy=canonical.energy(e, w),
        basin=[
            canonical.basin(float(a), float(b), p, q) if np.isfinite(b) else "unknown"
            for a, b in zip(e, w, strict=True)
        ],
    )


def _rank_one(weight: Float[np.ndarray, "member d_in d_out"]) -> Float[np.ndarray, " member"]:
    power = np.linalg.svd(weight, compute_uv=False) ** 2
    total = power.sum(-1)
    return np.asarray(power[:, 0] / np.where(total > 0, total, 1))
