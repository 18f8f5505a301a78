"""Where V and the outputs go: items 2 and 3 of theorem 3.1, and lemma C.7, on which they rest."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.figures import style, titled
from experiments.harness import Measured
from experiments.random_walks.population import EPS, ETA, Descent, descend, transition

K, N = 6, 13
CHANCES = (0.5, 0.6, 0.7, 0.9)
STEPS = (10, 30, 100, 300, 1000, 3000)
PROOF = "experiments/random_walks/README.md#where-v-goes"
NEAR = 0.01  # of a limit, after 3000 steps: what is left falls as 1 / sqrt(T)


def apart(run: Descent, step: int) -> tuple[float, float]:
    """Mean over walks of `|f/|f| - g/|g||`, with g the optimal outputs, and with g their square roots."""
    found, law = run.outputs(step)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    far = []
    for wanted in (law, np.sqrt(law)):
        off = unit - wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
        far.append(float(run.walks.weights @ np.linalg.norm(off, axis=1)))
    return far[0], far[1]


def directions(V: Float[np.ndarray, "state_to state_from"], p: float) -> tuple[float, float]:
    """`|V/|V| - Pᵀ/|P||` in the Frobenius norm, and the same with the square root of P."""
    P = transition(len(V), p).T
    far = [np.linalg.norm(V / np.linalg.norm(V) - T / np.linalg.norm(T)) for T in (P, np.sqrt(P))]
    return float(far[0]), float(far[1])


def limit(p: float) -> float:
    """The distance that stays: between the directions of `(p, 1 - p)` and of its square root.

    Example:
        >>> [round(limit(p), 3) for p in (0.5, 0.6, 0.7, 0.9)]
        [0.0, 0.097, 0.175, 0.211]
    """
    law = np.array([p, 1 - p])
    return float(np.linalg.norm(np.sqrt(law) - law / np.linalg.norm(law)))


def remainder(ahead: float, back: float, p: float) -> float:
    """The least `max |Ṽ|` of any `V = β Πᵀ + Ṽ`, from V's entries one step ahead and one back."""
    return abs((1 - p) * ahead - p * back)


@exactly
def limits(quick: bool) -> Measured:
    """The directions of V and of the outputs over training, for four p, on all walks."""
    steps = [step for step in STEPS if step <= (300 if quick else 3000)]
    length = 11 if quick else N
    runs = {p: descend(K, length, p, steps[-1]) for p in CHANCES}
    outputs = {p: np.array([apart(run, step) for step in steps]) for p, run in runs.items()}
    values = {p: np.array([directions(_V(run, step), p) for step in steps]) for p, run in runs.items()}
    stays = {p: float(rows[-1, 0]) for p, rows in outputs.items()}
    near = 0.03 if quick else NEAR
    falls = [np.diff(np.log(rows[:, 1])) / np.diff(np.log(steps)) for rows in outputs.values()]
    rate = float(np.median([slopes[-1] for slopes in falls]))
    away = [p for p in CHANCES if p != 0.5]
    right = all(abs(stays[p] - limit(p)) < near for p in away) and abs(rate + 0.5) < 0.05
    bound = 2 * ETA / (EPS * K)
    rest = {p: [remainder(*_entries(run, step), p) for step in steps] for p, run in runs.items()}
    over = rest[0.9][-1] > (0.3 if quick else 1) * bound
    how = (
        f"all {2 ** (length - 1)} walks of K = {K}, N = {length} at their probability, eta = 1, eps = 0.1, "
        f"M = 1000, {steps[-1]} steps, float64; p = {', '.join(f'{p:g}' for p in CHANCES)}"
    )
    told = ", ".join(f"{stays[p]:.3f}" for p in CHANCES)
    by_root = ", ".join(f"{outputs[p][-1, 1]:.4f}" for p in CHANCES)
    found = [
        Finding(
            "outputs_converge",
            f"distance to the optimal outputs after {steps[-1]} steps: {told}; to their square root: "
            f"{by_root}, which falls as T^{rate:.2f}",
            holds(not right),
            how,
            "proved",
            number=f"{', '.join(f'{stays[p]:.3f}' for p in away)} stay",
            proof=PROOF,
        ),
        Finding(
            "direction_P",
            f"distance of V's direction to Πᵀ after {steps[-1]} steps: "
            + ", ".join(f"{values[p][-1, 0]:.3f}" for p in CHANCES)
            + "; to its square root: "
            + ", ".join(f"{values[p][-1, 1]:.4f}" for p in CHANCES),
            holds(not right),
            how,
            "proved",
            number=", ".join(f"{values[p][-1, 0]:.3f}" for p in away) + " stay",
            proof=PROOF,
        ),
        Finding(
            "lemma_C7",
            f"the least Ṽ of V(t) = β Πᵀ + Ṽ at p = 0.9 is {rest[0.9][-1]:.2f} after {steps[-1]} steps "
            f"and grows as sqrt(t); bound: 2 eta / (eps K) = {bound:.2f}",
            holds(not over),
            how,
            "computed exactly",
            number=f"{rest[0.9][-1]:.2f} against {bound:.2f}",
        ),
        Finding(
            "square_root_law",
            f"largest relative difference of an entry from step 5 on: {_off(runs, steps):.1e}",
            holds(_off(runs, steps) < 0.02),
            f"{how}; V + eps = sqrt((V(5) + eps)² + 2 eta (t - 5) P / K)",
            "computed exactly",
            number=f"off by at most {_off(runs, steps):.1%}",
        ),
    ]
    figure = go.Figure()
    for i, p in enumerate(CHANCES):
        figure.add_scatter(x=steps, y=outputs[p][:, 0], name=f"p = {p:g}, to the optimum", line=style(i))
        root = style(i) | {"width": 1}
        figure.add_scatter(x=steps, y=outputs[p][:, 1], name=f"p = {p:g}, to its root", line=root)
    title = "Distance of the outputs' direction to the optimal predictor, and to its square root"
    titled(figure, title, "step", "distance", xaxis_type="log", yaxis_type="log")
    return Measured(found, {"limits": figure})


def _V(run: Descent, step: int) -> Float[np.ndarray, "state_to state_from"]:
    profile, state = run.states[step].profile, np.arange(K)
    return profile[(state[:, None] - state) % K]


def _entries(run: Descent, step: int) -> tuple[float, float]:
    profile = run.states[step].profile
    return float(profile[1]), float(profile[-1])


def _off(runs: dict[float, Descent], steps: list[int]) -> float:
    """Largest relative difference of V's two entries to the square-root law."""
    worst = 0.0
    for p, run in runs.items():
        start = np.array(_entries(run, 5)) + EPS
        for step in steps:
            law = np.sqrt(start**2 + 2 * ETA * (step - 5) * np.array([p, 1 - p]) / K) - EPS
            worst = max(worst, float(np.abs(np.array(_entries(run, step)) / law - 1).max()))
    return worst
