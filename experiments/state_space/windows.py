"""The convolution's window against the order of the chains: who learns the add-beta estimator."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from experiments.claims import Finding, holds, share
from experiments.figures import log_reference, marker, titled
from experiments.harness import Measured, over_seeds, trained
from experiments.state_space.shared import LEARNED, distances, recipe, setting

# Higher orders have more to count: longer sequences, larger batches, and the MLP of the authors' model.
LARGER = (
    "model.n_ctx=128",
    "data.batch=32",
    "model.attn_only=false",
    "model.d_mlp=32",
    'model.act_fn="gelu"',
)
# Of each order: training steps, windows, seeds, what differs. With a window of 1 no position reaches another.
FULL = {1: (500, (1, 2), 16, ()), 2: (1000, (1, 2, 3), 16, LARGER), 3: (3000, (4,), 16, LARGER)}
QUICK = {1: (300, (1, 2), 2, ())}


def findings(order: int, away: Mapping[int, Float[np.ndarray, " seed"]], how: str) -> list[Finding]:
    """What the distances of one order say, by window."""
    groups = {
        "window_enough": [w for w in away if w > order],
        "window_short": [w for w in away if 1 < w <= order],
        "no_convolution": [w for w in away if w == 1],
    }
    found = []
    for key, windows in groups.items():
        if not windows:
            continue
        every = np.concatenate([away[w] for w in windows])
        learned = int((every < LEARNED).sum())
        hits = learned if key == "window_enough" else len(every) - learned
        parts = "; ".join(f"window {w}: {over_seeds(away[w])}" for w in windows)
        found.append(
            Finding(
                key,
                f"{share(hits, len(every))} runs; {parts}",
                holds(hits == len(every)),
                "KL from the add-β estimator, over that of the best predictor of one order less; learned: "
                f"below {LEARNED:g}; {how}",
                "trained at another",
                (hits, len(every)),
                case=f"order {order}",
            )
        )
    return found


def windows(quick: bool) -> Measured:
    """Train every window on chains of every order, on the same seeds."""
    claims: list[Finding] = []
    figure = go.Figure()
    for i, (order, (steps, tried, seeds, changes)) in enumerate((QUICK if quick else FULL).items()):
        away = {}
        for window in tried:
            varied = recipe(f"source.order={order}", f"steps={steps}", f"model.d_conv={window}", *changes)
            (runs,) = trained([varied], range(seeds))
            away[window] = distances(runs)
        claims += findings(order, away, setting(varied, seeds))
        x = [window + 0.12 * i for window, values in away.items() for _ in values]
        y = [round(float(value), 5) for values in away.values() for value in values]
        figure.add_scatter(x=x, y=y, mode="markers", name=f"order {order}", marker=marker(i), opacity=0.8)
    for value, text in ((1.0, "one order less"), (LEARNED, "learned")):
        log_reference(figure, value, text)
    title = "A window of k + 1 positions for chains of order k"
    titled(figure, title, "window of the convolution (positions)", "KL over that of one order less")
    widest = max(window for _, tried, *_ in FULL.values() for window in tried)
    figure.update_xaxes(dtick=1, range=[0.7, widest + 0.9])  # names of the lines stand beside the points
    return Measured(claims, {"windows": figure.update_yaxes(type="log")})
