"""Orders 1 and 2 at the sizes of the authors' code: the shortest window that is long enough."""

import plotly.graph_objects as go

from experiments.claims import Finding, holds, share
from experiments.figures import log_reference, marker, titled
from experiments.harness import Measured, over_seeds, trained
from experiments.state_space.shared import LEARNED, distances, recipe, setting

SEEDS = 16
STEPS = {1: 1000, 2: 3000}  # of each order; 1000 is the default of their code


def authors_sizes(quick: bool) -> Measured:
    """Train every order with a window of one position more. There is no quick run of it."""
    claims, figure = [], go.Figure()
    for i, (order, steps) in enumerate(({} if quick else STEPS).items()):
        sizes = f"steps={steps}", f"source.order={order}", f"model.d_conv={order + 1}"
        varied = recipe(*sizes, name="authors")
        (runs,) = trained([varied], range(SEEDS))
        away = distances(runs)
        learned = int((away < LEARNED).sum())
        claims.append(
            Finding(
                "authors_sizes",
                f"{share(learned, SEEDS)} runs; {over_seeds(away)}",
                holds(learned == SEEDS),
                "KL from the add-β estimator, over that of the best predictor of one order less; learned: "
                f"below {LEARNED:g}; window {order + 1}; {setting(varied, SEEDS)}",
                "trained at another",
                (learned, SEEDS),
                case=f"order {order}",
            )
        )
        y = [round(float(value), 5) for value in away]
        figure.add_scatter(x=[order] * SEEDS, y=y, mode="markers", marker=marker(i), opacity=0.8)
    for value, text in ((1.0, "one order less"), (LEARNED, "learned")):
        log_reference(figure, value, text)
    title = "At the sizes of the authors' code"
    titled(
        figure, title, "order k, with a window of k + 1", "KL over that of one order less", showlegend=False
    )
    # The names of the lines stand beside the points.
    figure.update_xaxes(tickvals=list(STEPS), range=[0.5, max(STEPS) + 1.2])
    return Measured(claims, {"authors_sizes": figure.update_yaxes(type="log")})
