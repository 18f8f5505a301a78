"""Where V goes: not to P^T, but to its elementwise square root, at a rate known in advance."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.figures import marker, style, titled
from experiments.harness import Measured, trained
from experiments.random_walks.common import cosine_to, value_matrix

EPS, ETA = 0.1, 1.0
STEPS = (20, 50, 100, 200, 500)
RECIPE = "walk-k6-biased"
N_TRAIN = 1000


def direction(quick: bool) -> Measured:
    """Away from p = 1/2: the direction of V, and the size of its entries."""
    steps = [step for step in STEPS if step <= (50 if quick else 500)]
    runs = {p: _train(p, steps) for p in ((0.7,) if quick else (0.1, 0.3, 0.5, 0.7, 0.9))}
    rows, wins, off, bounds = [], [], [], []
    for p, run in runs.items():
        V, P = value_matrix(run), np.array(run.source.P)
        to_P, to_root = cosine_to(V, P), cosine_to(V, np.sqrt(P))
        rows.append(f"p={p:g}: {to_root:.4f} to sqrt(P), {to_P:.4f} to P")
        if p != 0.5:
            wins.append(to_root > to_P and to_root > 0.99)
        found, law = _entries(run, steps), _law(run, steps)
        off += list(np.abs(found[-1] / law[-1] - 1))
        # How often a step goes a way is a sample's share; V grows as the root of it. Four sampling errors.
        chances = np.array([p, 1 - p])
        bounds += list(2 * np.sqrt((1 - chances) / (chances * N_TRAIN)))
    within = [error < bound for error, bound in zip(off, bounds, strict=True)]
    claims = [
        Finding(
            "direction_P",
            "; ".join(rows),
            holds(not any(wins)),
            f"cosine of double-centred matrices after {steps[-1]} steps. The limit is the elementwise "
            "sqrt(P)^T: dL/dV_yx = -(1/K) P_xy / (V_yx + eps) gives V + eps = sqrt(eps^2 + 2 eta t P / K); "
            "the two agree only at p = 1/2 and p in {0, 1}",
            "derivation",
        ),
        Finding(
            "square_root_law",
            f"after {steps[-1]} steps off by at most {max(off):.1%}, {sum(within)} of {len(within)} entries "
            "within their sampling error",
            holds(all(within)),
            f"mean of V over the K entries one step ahead, and back; the law from V at step {steps[0]} on, "
            "when attention is on the parent; four sampling errors of how often 1000 sequences end that way",
            "derivation",
        ),
    ]
    return Measured(claims, {"direction": _figure(runs, steps)})


def _train(p: float, steps: list[int]) -> mm.Run:
    changes = [f"source.p={p}", f"steps={steps[-1]}", f"checkpoints={steps}", f"data.n_train={N_TRAIN}"]
    ((run,),) = trained([mm.load_recipe(RECIPE).with_set(changes)], [0])
    return run


def _entries(run: mm.Run, steps: list[int]) -> Float[np.ndarray, "step way"]:
    """Mean entry of V from a state to the next one, and to the one before."""
    states = np.arange(run.source.n_states)
    tables = [value_matrix(run, step) for step in steps]
    return np.array([[V[(states + way) % len(V), states].mean() for way in (1, -1)] for V in tables])


def _law(run: mm.Run, steps: list[int]) -> Float[np.ndarray, "step way"]:
    """The square-root law. Attention is on the parent from step 5 on; what came before is where it starts."""
    start = (_entries(run, steps[:1]) + EPS) ** 2
    chances = np.array([run.source.p, 1 - run.source.p])
    elapsed = np.array(steps)[:, None] - steps[0]
    return np.sqrt(start + 2 * ETA * elapsed * chances / run.source.n_states) - EPS


def _figure(runs: dict[float, mm.Run], steps: list[int]) -> go.Figure:
    figure = go.Figure()
    for i, p in enumerate(p for p in (0.5, 0.7, 0.9) if p in runs):
        found, law = _entries(runs[p], steps), _law(runs[p], steps)
        for way, name in enumerate(("ahead", "back")):
            figure.add_scatter(
                x=steps,
                y=found[:, way],
                mode="markers",
                marker=marker(2 * i + way) | {"color": style(i)["color"]},
                name=f"p = {p:g}, {name}",
            )
            figure.add_scatter(x=steps, y=law[:, way], mode="lines", line=style(i), showlegend=False)
    title = "Entries of V at the two neighbours (points), and the square-root law (lines)"
    return titled(figure, title, "step", "V", xaxis_type="log", yaxis_type="log")
