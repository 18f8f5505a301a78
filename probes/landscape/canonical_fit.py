"""A one-layer binary model read as the two numbers `(e, w)`, with what that leaves out."""

import numpy as np
import xarray as xr
from jaxtyping import Float

from mechmarkov.probing.dataset import variables
from mechmarkov.probing.recording import MLP_BY_PARENT, SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import FixedChain
from mechmarkov.theory import canonical

# Below this size squared an embedding says nothing, and what the MLP makes of it is rounding.
NO_EMBEDDING = 1e-10


def canonical_fit(subject: Subject) -> xr.Dataset | str:
    """Read the canonical coordinates `(e, w)` off every model, or return one line why it has none.

    Makkuva et al. 2024 (arXiv 2406.03072), as in `mechmarkov.theory.canonical`.

    Args:
        subject: Models of one tied layer with an MLP and no norm, on a binary chain: `Subject.of(run)`.

    Returns:
        Over [axis], where `axis` is "step" of a run and "seed" of its null:
        `canonical_e`: `|E_1 - E_0|`; `canonical_w`: from `2 w |w| e²`, what the MLP adds to the slope of the
        log-odds, NaN without an embedding; `energy`: the invariant of the flow; `basin`: where it would end;
        `fit_error` and `log_odds_sd` (log-odds): root mean square difference of the model's log-odds from the
        line `s x + c` that the coordinates give with the best c, and their standard deviation;
        `rank_one` (share): of the first singular value in those of the MLP's two matrices, squared.
        Attributes `p = Pr(1 | 0)` and `q = Pr(0 | 1)`.
    """
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
    p, q = float(subject.source.P[0, 1]), float(subject.source.P[1, 0])
    basin = [
        canonical.basin(float(a), float(b), p, q) if np.isfinite(b) else "unknown"
        for a, b in zip(e, w, strict=True)
    ]
    axis, errors = (
        subject.axis,
        {"fit_error": np.sqrt((left**2).mean((1, 2))), "log_odds_sd": log_odds.std((1, 2))},
    )
    return xr.Dataset(
        variables("canonical unit", axis, canonical_e=e, canonical_w=w, energy=canonical.energy(e, w))
        | variables("log-odds", axis, **errors)
        | variables("share", axis, rank_one=(_rank_one(into) + _rank_one(out)) / 2)
        | variables("", axis, basin=np.array(basin)),
        attrs={"p": p, "q": q},
    )


def _rank_one(weight: Float[np.ndarray, "member d_in d_out"]) -> Float[np.ndarray, " member"]:
    power = np.linalg.svd(weight, compute_uv=False) ** 2
    total = power.sum(-1)
    return np.asarray(power[:, 0] / np.where(total > 0, total, 1))
