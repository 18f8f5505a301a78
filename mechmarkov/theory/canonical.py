"""One-layer binary models in two numbers: the canonical coordinates `(e, w)` of Makkuva et al. 2024.

Setting: arXiv 2406.03072. Trained tied one-layer models on a binary chain are of rank one along one
direction, and their log-odds of state 1 after state x are `s x + c` with `s = e² (1 + 2 w |w|)`: `e` the size
of the embedding, `2 w |w|` what the MLP makes of it, `c` free. The loss depends on `(e, w)` only through
`s`, has its minimum, the bigram, at `s*`, and the unigram wherever `s = 0`.
"""

from typing import Literal

import numpy as np
from jaxtyping import Float

# Where the MLP cancels the embedding: 1 + 2 w |w| = 0.
CANCELS = -1 / np.sqrt(2)
SADDLE_ENERGY = -(1 + np.log(2)) / 2


def slope(e: Float[np.ndarray, "*n"], w: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """`s = e² (1 + 2 w |w|)`: by how much state 1 raises the log-odds of state 1.

    Example:
        >>> slope(np.array([2.0]), np.array([-1.0])).tolist()
        [-4.0]
    """
    return np.asarray(e**2 * (1 + 2 * w * np.abs(w)))


def best_slope(p: float, q: float) -> float:
    """`s* = log((1-p)(1-q) / (p q))`, the bigram's; infinite for probabilities 0 and 1.

    NaN where one is 0 and the other 1: only one state is ever predicted from, and every slope is as good.

    Example:
        >>> round(best_slope(0.2, 0.3), 4)  # p + q < 1: a state raises its own odds
        2.2336
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        stay, leave = np.log([1 - p, 1 - q]).sum(), np.log([p, q]).sum()
        return float(stay - leave)


def best_offset(s: Float[np.ndarray, "*n"], p: float, q: float) -> Float[np.ndarray, "*n"]:
    """The log-odds `c` after state 0 that minimise the loss at a slope `s` (the paper: `b* - e²/2`).

    Args:
        s: Slopes (log-odds).
        p: Pr(1 | 0).
        q: Pr(0 | 1).

    Example:
        >>> c = best_offset(np.array([best_slope(0.2, 0.3)]), 0.2, 0.3)  # of the bigram: log(p / (1 - p))
        >>> bool(np.isclose(c[0], np.log(0.2 / 0.8)))
        True
    """
    grown = np.exp(s)
    root = np.sqrt((p - q) ** 2 + 4 * p * q * grown)
    if p < q:  # the same without a difference of nearly equal numbers, which is 0 at slopes of -40
        return np.asarray(np.log(2 * p / (root + q - p)))
    return np.asarray(np.log((p - q + root) / (2 * q * grown)))


def loss(s: Float[np.ndarray, "*n"], p: float, q: float) -> Float[np.ndarray, "*n"]:
    """Cross-entropy at a slope and its best offset, nats; `H(pi)` at 0, the entropy rate at `s*`.

    Example:
        >>> loss(np.zeros(1), 0.5, 0.5).round(6).tolist()
        [0.693147]
    """
    c = best_offset(s, p, q)
    after_0 = p * np.logaddexp(0, -c) + (1 - p) * np.logaddexp(0, c)
    after_1 = (1 - q) * np.logaddexp(0, -s - c) + q * np.logaddexp(0, s + c)
    return np.asarray((q * after_0 + p * after_1) / (p + q))


def energy(e: Float[np.ndarray, "*n"], w: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """`e² - w² - sign(w) log|w|`, constant along the gradient flow of the loss in `(e, w)`; NaN at w = 0.

    Example:
        >>> bool(np.isclose(energy(np.zeros(1), np.array([CANCELS]))[0], SADDLE_ENERGY))
        True
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(e**2 - w**2 - np.sign(w) * np.log(np.abs(w)))


def basin(e: float, w: float, p: float, q: float) -> Literal["bigram", "unigram", "independent"]:
    """Returns where gradient flow in `(e, w)` ends: at the bigram, or stuck at the unigram.

    For p + q = 1 tokens are independent and the two are one.

    Args:
        e: The embedding's coordinate at the start.
        w: The weights' coordinate at the start.
        p: `Pr(1 | 0)` of the chain.
        q: `Pr(0 | 1)`.

    Example:
        >>> basin(0.1, 0.1, 0.2, 0.3), basin(0.1, 0.1, 0.5, 0.8), basin(0.1, -1.0, 0.5, 0.8)
        ('bigram', 'unigram', 'bigram')
    """
    if p + q == 1:
        return "independent"
    above = float(energy(np.array([e]), np.array([w]))[0]) > SADDLE_ENERGY
    if p + q < 1:
        return "unigram" if w < CANCELS and not above else "bigram"
    return "bigram" if w < CANCELS or (w < 0 and above) else "unigram"
