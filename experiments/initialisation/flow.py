"""Gradient flow of a binary chain's loss in the two numbers `(e, w)`, integrated."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

from mechmarkov.theory import canonical

End = Literal["bigram", "unigram", "neither"]
Velocity = Callable[[float, np.ndarray], Sequence[float] | np.ndarray]
NEAR = 1e-3  # log-odds from the best slope
GONE = 1e-5  # of e: of a slope of one it leaves 1e-10
LONGEST = 1e6  # the slowest of the starts used here needs a hundredth of it


@dataclass(frozen=True, eq=False)
class Path:
    """A line of the flow, and where it ends."""

    e: Float[np.ndarray, " time"]
    w: Float[np.ndarray, " time"]
    end: End


def slope(e: float, w: float) -> float:
    """By how much state 1 raises the log-odds of state 1."""
    return e * e * (1 + 2 * w * abs(w))


def pull(s: float, p: float, q: float) -> float:
    """`dL/ds` with the bias at its best: how much too likely the pair of states 1, 1 is.

    The best bias makes state 1 as likely as it is overall. With `x` the odds of state 1 after state 0 that is
    the positive root of `q g x² + (q - p) x = p`, `g = exp(s)`.
    """
    g = math.exp(s)
    root = math.sqrt((p - q) ** 2 + 4 * p * q * g)
    x = 2 * p / (root + q - p) if p < q else (root + p - q) / (2 * q * g)
    return p / (p + q) * (g * x / (1 + g * x) - (1 - q))


def flow(e: float, w: float, p: float, q: float) -> Path:
    """From `(e, w)` with the bias at its best all along, as the theorems have it."""
    best = canonical.best_slope(p, q)

    def velocity(_: float, at: np.ndarray) -> list[float]:
        e, w = map(float, at)
        force = pull(slope(e, w), p, q)
        return [-force * 2 * e * (1 + 2 * w * abs(w)), -force * 4 * e * e * abs(w)]

    return integrate(velocity, [e, w], lambda at: abs(slope(float(at[0]), float(at[1])) - best))


def integrate(velocity: Velocity, start: list[float], missing: Callable[[np.ndarray], float]) -> Path:
    """From a start, whose first numbers are `(e, w)`, until little is missing or the embedding is gone."""

    def found(_: float, at: np.ndarray) -> float:
        return missing(at) - NEAR

    def gone(_: float, at: np.ndarray) -> float:
        return abs(float(at[0])) - GONE

    found.terminal = gone.terminal = True  # where the integration ends
    line = solve_ivp(
        velocity, (0, LONGEST), start, method="LSODA", rtol=1e-9, atol=1e-12, events=[found, gone]
    )
    end: End = "bigram" if len(line.t_events[0]) else "unigram" if len(line.t_events[1]) else "neither"
    return Path(line.y[0], line.y[1], end)
