"""From log odds to nats: what bounds on how far two states' odds can be off say of whole predictions.

A program predicts `p`, a model `q`. Of every pair of states let `off[k, l]` be the largest that
`log(q_k / q_l) - log(p_k / p_l)` can be. Write `delta_k = log(q_k / p_k)` up to a constant of the context, so
that `delta_k - delta_l <= off[k, l]`. Then, in every context,

    log(q_l / p_l)  is from  -log sum_k p_k exp(off[k, l])  to  -log sum_k p_k exp(-off[l, k]).

Against any one state l, `s_k = delta_k - delta_l` is in `[-off[l, k], off[k, l]]`, and

    KL(p || q) = log sum_k p_k exp(s_k) - sum_k p_k s_k

is convex in s: over that box it is largest at a vertex. The bound is the smallest over l, as a state of
little probability moves nothing. Of many states vertices are too many to try: there it is `sum_k p_k
phi(s_k)`, each term at the larger of its ends, with `phi(x) = exp(x) - x - 1`. And it is at most R² / 8,
where no odds are off by more than R (Hoeffding's lemma).

States that the program holds impossible add their odds against l, times p_l, to the sum. Results are
rounded up by far more than the arithmetic here can be off.
"""

from itertools import product
from typing import Final

import numpy as np
from jaxtyping import Float

from mechmarkov.theory.kernel import FLOOR

Pairs = Float[np.ndarray, "*lead state_to state_against"]
Laws = Float[np.ndarray, "*lead state"]

MOST: Final = -float(np.log(FLOOR))  # nats of a KL whose second law is floored
MOST_STATES: Final = 8  # whose vertices are tried


def odds_off(log_odds: Pairs, law: Laws) -> Pairs:
    """Returns how far the model's log odds of two states can be above a program's; -inf of an impossible one.

    Args:
        log_odds: Upper bounds of the model's `log(q_k / q_l)`.
        law: The program's predictions; a 0 makes a state impossible.

    Example:
        >>> odds_off(np.array([[0.0, 0.2], [0.2, 0.0]]), np.array([0.5, 0.5])).round(6).tolist()
        [[0.0, 0.2], [0.2, 0.0]]
    """
    possible = law > 0
    logs = np.log(np.where(possible, law, 1.0))
    apart = log_odds - (logs[..., :, None] - logs[..., None, :]) + _rounding(logs)
    off = np.where(possible[..., :, None] & possible[..., None, :], apart, -np.inf)
    n = law.shape[-1]
    off[..., np.arange(n), np.arange(n)] = np.where(possible, 0.0, -np.inf)
    return off


def _rounding(logs: Laws) -> Float[np.ndarray, "*lead 1 1"]:
    """Far more than logarithms, exponentials and short sums are off, for numbers of this size."""
    return 1e-14 * (1 - logs.min(-1))[..., None, None]


def _outside(log_odds: Pairs, law: Laws) -> Float[np.ndarray, "*lead state"]:
    """The odds, against each possible state, of all states that the program holds impossible."""
    with np.errstate(over="ignore"):
        return np.where(law > 0, np.exp(log_odds).sum(-2, where=(law == 0)[..., :, None]), 0.0)


def log_ratios(log_odds: Pairs, law: Laws) -> tuple[Laws, Laws]:
    """The smallest and the largest `log(q / p)` of each state; 0 of states that the program holds impossible.

    Args:
        log_odds: The log odds, as in `odds_off`.
        law: The law, as in `odds_off`.

    Example:
        >>> low, high = log_ratios(np.array([[0.0, 0.2], [0.2, 0.0]]), np.array([0.5, 0.5]))
        >>> low.round(3).tolist(), high.round(3).tolist()
        ([-0.105, -0.105], [0.095, 0.095])
    """
    off, possible = odds_off(log_odds, law), law > 0
    with np.errstate(over="ignore"):
        above = (law[..., :, None] * np.expm1(off)).sum(-2, where=possible[..., :, None])
        above = above + law * _outside(log_odds, law)
        fewer = np.exp(-np.where(off > -np.inf, off, 0.0))
    below = (law[..., None, :] * fewer).sum(-1, where=possible[..., None, :])
    pad = _rounding(np.log(np.where(possible, law, 1.0)))[..., 0]
    low = -np.log1p(np.maximum(above, -0.5)) - pad
    high = -np.log(np.where(possible, np.maximum(below, law), 1.0)) + pad
    return np.where(possible, low, 0.0), np.where(possible, high, 0.0)


def largest_kl(log_odds: Pairs, law: Laws) -> Float[np.ndarray, "*lead"]:
    """The most that `KL(p || q)` can be, in nats, where no probability of q counts as less than 1e-12.

    Args:
        log_odds: The log odds, as in `odds_off`.
        law: The law, as in `odds_off`.

    Example:
        >>> fair, off = np.array([0.5, 0.5]), np.array([[0.0, 0.2], [0.2, 0.0]])
        >>> round(float(largest_kl(off, fair)), 6), round(0.2**2 / 8, 6)
        (0.004992, 0.005)
    """
    off, possible, outside = odds_off(log_odds, law), law > 0, _outside(log_odds, law)
    below = -np.swapaxes(off, -1, -2)  # at [k, l], what delta_k - delta_l is at least
    pairs = possible[..., :, None] & possible[..., None, :]
    finite = possible & (np.isfinite(off) & np.isfinite(below)).all(-2, where=pairs) & np.isfinite(outside)
    weight, more = law[..., :, None], np.where(finite, outside, 0.0) * law
    low, high = (np.where(pairs & finite[..., None, :], ends, 0.0) for ends in (below, off))
    if law.shape[-1] <= MOST_STATES:
        of_any = _at_vertices(weight, low, high, more)
    else:
        of_any = (weight * np.maximum(_phi(low), _phi(high))).sum(-2) + more
    of_any = np.where(finite, of_any, np.inf).min(-1)
    spread = off.max((-2, -1)) ** 2 / 8 + np.log1p((law * outside).max(-1))
    pad = _rounding(np.log(np.where(possible, law, 1.0)))[..., 0, 0]
    return np.asarray(np.minimum(np.minimum(spread, of_any) * (1 + 1e-9) + pad, MOST))


def _phi(x: Pairs) -> Pairs:
    """`exp(x) - x - 1`."""
    with np.errstate(over="ignore"):
        return np.expm1(x) - x


def _at_vertices(weight: Pairs, low: Pairs, high: Pairs, more: Laws) -> Laws:
    """The largest KL at a vertex of each box: at `[k, l]` its ends in the direction of k."""
    most = np.zeros_like(more)
    with np.errstate(over="ignore"):
        for vertex in product([False, True], repeat=weight.shape[-2]):
            s = np.where(np.array(vertex)[:, None], high, low)
            nats = np.log1p((weight * np.expm1(s)).sum(-2) + more) - (weight * s).sum(-2)
            most = np.maximum(most, nats)
    return most


def largest_kl_of_any(off: Pairs) -> Float[np.ndarray, "*lead"]:
    """The most that `KL(p || q)` can be for any law p if no odds are off by more: R² / 8 (Hoeffding).

    Args:
        off: What `odds_off` returns; R is the largest.

    Example:
        >>> float(largest_kl_of_any(np.array([[0.0, 0.2], [0.2, 0.0]])).round(6))
        0.005
    """
    spread = off.max((-2, -1))
    return np.minimum(spread**2 / 8 * (1 + 1e-9) + 1e-14, MOST)
