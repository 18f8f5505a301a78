"""One head that reads tokens only by their identity: its scores are counts times the current token's row.

A head without positions that copies what it reads has the raw scores `z_k = sum over keys with x_j = k of
w_j(k) u_j(k)`, up to a factor. Where `w_j(k) u_j(k)` is from `low_k` to `high_k` at all keys, `z_k` is from
`n_k low_k` to `n_k high_k`, `n_k` how often the state has come. So its odds against those of the program `n_k
row_k` are off by `log(high_k / row_k) - log(low_l / row_l)` at most, whatever the counts (Ildiz et al. 2024,
arXiv 2402.13512).
"""

import numpy as np

from mechmarkov.certify.bounds.ball import OWN
from mechmarkov.certify.bounds.envelope import Envelope
from mechmarkov.certify.bounds.reading import Reading


def why_no_counts(reading: Reading) -> str | None:
    """Returns why a query's scores are not counts times a row, or None."""
    value, n = reading.value, reading.base.mid.shape[-1]
    if len(reading.weight.mid) > 1:
        return f"it has {len(reading.weight.mid)} heads, expected one"
    if reading.transitions is not None:
        return "some transitions are forbidden: the bound is over all counts"
    if value.mid.shape[2] != n:
        return "it has a query token"
    if reading.base.size.any() or value.size[..., ~np.eye(n, dtype=bool)].any():
        return "what it reads of a token goes to more than that token's own score"
    if not (np.diagonal(value.mid - value.rad, axis1=2, axis2=3)[:, reading.weight.mid[0].any(1)] > 0).all():
        return "a score that it gives a token is not positive"
    return None


def of_counts(reading: Reading) -> Envelope:
    """The envelope of odds against the counts: `log((q_k / n_k) / (q_l / n_l))` at `[k, l]`.

    `stored` has nothing: a checker needs no multiplier.
    """
    weight, value = reading.weight, reading.value
    low, high = (
        (weight.mid + sign * weight.rad)[0] * np.diagonal(value.mid + sign * value.rad, axis1=2, axis2=3)[0]
        for sign in (-1, 1)
    )
    seen = weight.mid[0].any(1)
    high, low = high[seen].max(0) * (1 + 4 * OWN), low[seen].min(0) * (1 - 4 * OWN)
    with np.errstate(divide="ignore"):
        log_odds = np.log(high)[:, None] - np.log(np.maximum(low, 0.0))[None]
    np.fill_diagonal(log_odds, 0.0)
    contexts = np.zeros((0, weight.mid.shape[1]), dtype=np.int16)
    return Envelope(log_odds, {}, contexts, np.zeros((0, len(low))))
