"""Deterministic walks, p = 0 and 1: where theorem 4.1 holds, and that its condition on N is needed."""

import math
from collections.abc import Callable

import numpy as np

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured
from experiments.random_walks import population
from experiments.random_walks.population import EPS, M
from mechmarkov.theory.walk import reduced_walk

# The slope of each loss in the label's score, and the step size that it is tried with.
LOSSES: dict[str, Callable[[float], float]] = {
    "-log(z + 0.1)": lambda z: -1 / (z + EPS),
    "(1 - z)²": lambda z: 2 * (z - 1),
    "log(1 + exp(-z))": lambda z: -1 / (1 + math.exp(z)),
    "exp(-z)": lambda z: -math.exp(-z),
}
# All of these once, then again: a sequence of step sizes as lemma D.3 allows.
STEP_SIZES = (1.0, 0.1, 10.0, 0.01, 3.0)


def ahead(n_states: int, length: int, way: int) -> reduced_walk.Displacements:
    """The one walk of p = 1 (`way` 1) or p = 0 (-1), as displacements of the label."""
    found = reduced_walk.deterministic_displacements(n_states, length)
    return found if way == 1 else (-found) % n_states


def descend(
    n_states: int, length: int, way: int, slope: Callable[[float], float], etas: list[float]
) -> list[reduced_walk.ReducedState]:
    """Gradient descent from zero on a deterministic walk, for any loss of the label's score.

    The reduced system's own step, with the slope of the loss in place of `-1 / (z + eps)`.
    """
    path, p_sq = ahead(n_states, length, way), (M + 1) / 2
    state = reduced_walk.zero_state(n_states, length)
    states = [state]
    for eta in etas:
        passed = reduced_walk.forward(state, path)
        by_score = slope(float(passed.scores[0, 0]))
        read = np.append(by_score * state.profile[path[0]], 0.0)
        by_logit = passed.attention * (read - by_score * passed.scores[0, 0])
        state = reduced_walk.ReducedState(
            state.profile - eta / n_states * by_score * passed.mass[0],
            float(state.token_logit - eta * p_sq / n_states * by_logit[:-1].sum()),
            state.position_logits - eta * p_sq**2 * by_logit,
            state.step + 1,
        )
        states.append(state)
    return states


def _flat(state: reduced_walk.ReducedState, path: reduced_walk.Displacements) -> bool:
    """Accuracy 1/K, attention the same on all tokens and V constant, to the last bit."""
    attention = reduced_walk.forward(state, path).attention[:-1]
    chance = reduced_walk.accuracy(state, path, np.ones(1)) == 1 / len(state.profile)
    return chance and not np.ptp(attention) and not np.ptp(state.profile)


@exactly
def any_loss(quick: bool) -> Measured:
    """Theorem 4.1 and lemmas D.1 to D.3: four losses, p = 0 and 1, step sizes that change."""
    sizes = ((6, 97),) if quick else ((6, 97), (20, 101), (5, 26), (7, 50))
    steps, kept, total, first = 50, 0, 0, 0.0
    for K, N in sizes:
        for way in (1, -1):
            for slope in LOSSES.values():
                etas = [STEP_SIZES[i % len(STEP_SIZES)] * 0.1 for i in range(steps)]
                states = descend(K, N, way, slope, etas)
                kept += all(_flat(state, ahead(K, N, way)) for state in states)
                expected = -etas[0] * slope(0.0) * (N - 1) / K**2 / N
                first = max(first, float(np.abs(states[1].profile / expected - 1).max()))
                total += 1
    how = (
        f"(K, N) = {', '.join(map(str, sizes))}; {', '.join(LOSSES)}; {steps} steps, of sizes that change "
        "from 0.001 to 1; the reduced system, float64"
    )
    exact = "computed exactly"
    number = f"{kept} of {total} flat to the last bit"
    return Measured(
        [
            Finding("trapped_at_one", number, holds(kept == total), how, exact, number=number),
            Finding(
                "lemma_D1",
                f"V(1) is constant, and differs by at most {first:.0e} from -eta l'(0) r / (N K)",
                holds(first < 1e-12),
                how,
                exact,
                number=f"off by at most {first:.0e}",
            ),
            Finding("lemma_D3", number, holds(kept == total), how, exact, number=number),
        ]
    )


@exactly
def tight(quick: bool) -> Measured:
    """Whether p = 0 and 1 always fail: one step from zero, where K does not divide N - 1."""
    states, lengths = (range(5, 8), range(8, 20)) if quick else (range(5, 13), range(8, 60))
    learned = others = 0
    for K in states:
        for N in lengths:
            if (N - 1) % K == 0:
                continue
            for way in (1, -1):
                path = ahead(K, N, way)
                last = descend(K, N, way, LOSSES["-log(z + 0.1)"], [1.0])[1]
                learned += reduced_walk.accuracy(last, path, np.ones(1)) == 1
                others += 1
    number = f"accuracy 1 in {learned} of {others} (K, N, p)"
    how = (
        f"K = {states[0]} to {states[-1]}, N = {lengths[0]} to {lengths[-1]} where K does not divide N - 1, "
        "p = 0 and 1; one step of eta = 1 from zero, the reduced system, float64"
    )
    exact = "computed exactly"
    return Measured(
        [
            Finding(key, number, holds(learned == 0), how, exact, number=number)
            for key in ("always_fails", "conditions_tight")
        ]
    )


@exactly
def without_positions(quick: bool) -> Measured:
    """The model without positions: one step from zero, where all that it reads is the token mean."""
    sizes = [(6, 8, 1.0), (6, 10, 0.5)] + ([] if quick else [(6, 14, 0.5), (5, 12, 0.7)])
    found = [(K, N, p, one_step(K, N, p)) for K, N, p in sizes]
    told = "; ".join(
        f"K = {K}, N = {N}, p = {p:g}: {value:.3f}, a guess {1 / K:.3f}" for K, N, p, value in found
    )
    beats = [value > 1 / K + 1e-9 for K, _, _, value in found]
    return Measured(
        [
            Finding(
                "no_positions",
                told,
                holds(not any(beats)),
                "one step of gradient descent from zero on all walks at their probability, float64; without "
                "positions attention stays uniform for that step, and V reads the token mean",
                "computed exactly",
                number=f"{found[0][3]:.3f} and {found[1][3]:.3f}, a guess .167",
            )
        ]
    )


def one_step(n_states: int, length: int, p: float) -> float:
    """Accuracy after one step from zero: of a model without positions, and of one with them."""
    return population.descend(n_states, length, p, 1).accuracy(1)
