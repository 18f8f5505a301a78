"""Pictures: where the belief is read, its geometry, and forced states."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.figure import Figure
from mechmarkov.report.figures import bars, heatmap
from mechmarkov.report.probe_figures import over_training

from .forcing import mean_kls

# Corners of an equilateral triangle, for hidden states 0, 1 and 2.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])


def draw(data: xr.Dataset) -> list[Figure]:
    """Figures of R² by stream and position, the geometry, forced states, and R² over training."""
    last = last_model(data)
    streams = [str(name) for name in data["stream"].values]
    drawn = [
        Figure(
            "The belief, read from the residual stream",
            "Held-out R² by position: 1 is the exact belief. Blank: the belief is the same in all sequences.",
            "plotly",
            heatmap(
                np.clip(last["r2_at"].values, 0, 1),
                streams,
                [str(p) for p in data["position"].values],
                row_title="stream after",
                column_title="position",
                value_title="R²",
                limits=(0, 1),
            ),
        ),
        Figure(
            "The geometry of belief",
            "Each point is a context, coloured by its exact belief. Left: exact. Right: held-out readings.",
            "plotly",
            geometry(last["exact"].values, last["image"].values),
        ),
        *over_training(
            "R² over training",
            "How much of the belief each stream holds.",
            data,
            dict(zip(streams, np.clip(data["r2"].values, 0, 1).T, strict=True)),
            "R² (share)",
            score="belief_r2",
        ),
    ]
    kls = bars(["clean", "random direction", "forced"], np.array(mean_kls(last)), y_title="KL (nats)")
    caption = "KL from the law under that state to the prediction, over states. Random: a move as long."
    return [*drawn, Figure("A state is forced", caption, "plotly", kls)]


def geometry(exact: np.ndarray, image: np.ndarray) -> go.Figure:
    """A figure of beliefs next to their image: on a triangle for three hidden states, a diagonal for two.

    Args:
        exact: Beliefs `[point, hidden]` (probability).
        image: What is read of them from the model, of the same shape; a belief's colour is its image's.
    """
    shares = np.clip(np.pad(exact, ((0, 0), (0, 3 - exact.shape[1]))), 0, 1)
    colours = [f"rgb({r:.0f},{g:.0f},{b:.0f})" for r, g, b in 40 + 200 * shares]
    flat = exact.shape[1] < len(CORNERS)
    figure = make_subplots(1, 2, subplot_titles=["exact", "the model's image"])
    points = {"mode": "markers", "marker": {"color": colours, "size": 4}, "hoverinfo": "skip"}
    for column, beliefs in enumerate((exact, image), 1):
        x, y = (exact[:, 0], beliefs[:, 0]) if flat else (beliefs @ CORNERS).T
        figure.add_scatter(x=x, y=y, showlegend=False, row=1, col=column, **points)
    for update_axes in (figure.update_xaxes, figure.update_yaxes):
        update_axes(range=(-0.1, 1.1), showgrid=False, zeroline=False)
    look = {"template": "none", "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
    return figure.update_layout(height=340, margin={"l": 24, "r": 8, "t": 28, "b": 24}, **look)
