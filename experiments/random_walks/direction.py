"""Where V goes: not to P^T, but to its elementwise square root, at a rate known in advance."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Measured
from experiments.random_walks.common import COLOURS, MARKERS, PAPER, row, style, titled, value_matrix
from mechmarkov.theory import kernel

EPS, ETA = 0.1, 1.0
STEPS = (20, 50, 100, 200, 500)
RECIPE = "walk-k6-biased"


def direction(quick: bool) -> Measured:
    """Away from p = 1/2: the direction of V, and the size of its entries."""
    probabilities = (0.7,) if quick else (0.1, 0.3, 0.5, 0.7, 0.9)
    steps = [step for step in STEPS if step <= (50 if quick else 500)]
    rows, wins, off, bounds = [], [], [], []
    figure = go.Figure()
    for p in probabilities:
        n_train = 1000
        changes = [f"source.p={p}", f"steps={steps[-1]}", f"checkpoints={steps}"]
        run = mm.train(mm.load_recipe(RECIPE).with_set(changes), seed=0)
        K, P = run.source.n_states, np.array(run.source.P)
        V = value_matrix(run, steps[-1])
        centred = kernel.double_centred(V.T)
        to_P = float(kernel.cosine(centred, kernel.double_centred(P)))
        to_root = float(kernel.cosine(centred, kernel.double_centred(np.sqrt(P))))
        rows.append(f"p={p:g}: {to_root:.4f} to sqrt(P), {to_P:.4f} to P")
        if p != 0.5:
            wins.append(to_root > to_P and to_root > 0.99)
        # Attention is on the parent from step 5 on; what came before is a constant to start from.
        found = np.array([_bands(value_matrix(run, step)) for step in steps])
        start = (found[0] + EPS) ** 2
        chances = np.array([p, 1 - p])
        law = np.sqrt(start + 2 * ETA * (np.array(steps)[:, None] - steps[0]) * chances / K) - EPS
        off += list(np.abs(found[-1] / law[-1] - 1))
        # How often a step goes a way is a sample's share; V grows as the root of it. Four sampling errors.
        bounds += list(2 * np.sqrt((1 - chances) / (chances * n_train)))
        if p in (0.5, 0.7, 0.9):
            i = (0.5, 0.7, 0.9).index(p)
            for way, name in enumerate(("ahead", "back")):
                symbol = {"color": COLOURS[i], "symbol": MARKERS[2 * i + way], "size": 8}
                figure.add_scatter(
                    x=steps, y=found[:, way], mode="markers", marker=symbol, name=f"p = {p:g}, {name}"
                )
                figure.add_scatter(x=steps, y=law[:, way], mode="lines", line=style(i), showlegend=False)
    within = [error < bound for error, bound in zip(off, bounds, strict=True)]
    claims = [
        row(
            "direction",
            "V converges to P^T in direction",
            f"{PAPER}, theorem 3.1",
            "V -> P^T (figures show p = 1/2 only)",
            "; ".join(rows),
            "holds with a correction" if all(wins) else "does not hold",
            f"cosine of double-centred matrices after {steps[-1]} steps. The limit is the elementwise "
            "sqrt(P)^T: dL/dV_yx = -(1/K) P_xy / (V_yx + eps) gives V + eps = sqrt(eps^2 + 2 eta t P / K); "
            "the two agree only at p = 1/2 and p in {0, 1}",
        ),
        row(
            "direction",
            "The entries of V grow as sqrt(eps^2 + 2 eta t P / K) - eps",
            "derived (docs/corrections.md)",
            "exact for small steps",
            f"after {steps[-1]} steps off by at most {max(off):.1%}, {sum(within)} of {len(within)} entries "
            "within their sampling error",
            all(within),
            f"mean of V over the K entries one step ahead, and back; the law from V at step {steps[0]} on, "
            "when attention is on the parent; four sampling errors of how often 1000 sequences end that way",
        ),
    ]
    title = "Entries of V at the two neighbours (points), and the square-root law (lines)"
    return Measured(
        claims, {"direction": titled(figure, title, "step", "V", xaxis_type="log", yaxis_type="log")}
    )


def _bands(V: np.ndarray) -> list[float]:
    """Mean entry of V from a state to the next one, and to the one before."""
    K = len(V)
    states = np.arange(K)
    return [float(V[(states + way) % K, states].mean()) for way in (1, -1)]
