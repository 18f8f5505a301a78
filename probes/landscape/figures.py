"""The landscape probe's pictures: a plane through weight space, a run on the canonical energy contours."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.probing.figure import Figure
from mechmarkov.report.figures import PALETTE, SEQUENTIAL, lines
from mechmarkov.theory import canonical

_LEVELS = 18


def slice_figure(data: xr.Dataset) -> Figure:
    """The loss over the plane through the run, the unigram point and the bigram point."""
    x, y, z = data["along"].values, data["across"].values, data["slice"].values
    points = {
        "run": tuple(map(float, data.attrs["run_at"])),
        "unigram": (0.0, 0.0),
        "bigram": (1.0, 0.0),
    }
    figure = _contours(x, y, np.where(np.isfinite(z), z, np.nan), "nats")
    for index, (name, (a, b)) in enumerate(points.items()):
        figure.add_scatter(
            x=[a],
            y=[b],
            mode="markers+text",
            text=[name],
            textposition="top center",
            textfont={"color": "white"},
            marker={"size": 11, "color": PALETTE[index + 1], "line": {"color": "white", "width": 1}},
            showlegend=False,
            hovertemplate=f"{name}: {float(data.attrs['loss_at'][index]):.4f} nats<extra></extra>",
        )
    # Room above the highest point for its name.
    figure.update_yaxes(range=[float(y.min()), float(y.max() + 0.08 * (y.max() - y.min()))])
    figure.update_layout(
        xaxis_title="from the unigram point (0) to the bigram point (1)", yaxis_title="across, same unit"
    )
    at = ", ".join(
        f"{name} {float(value):.4f}" for name, value in zip(points, data.attrs["loss_at"], strict=True)
    )
    return Figure(
        "A plane through weight space",
        f"Mean loss over the plane that holds the run, the unigram point and the bigram point (nats: {at}).",
        "plotly",
        figure,
    )


def canonical_figure(data: xr.Dataset) -> Figure:
    """A run on the energy contours of the canonical coordinates, with the border of the basins."""
    e, w = data["canonical_e"].values, data["canonical_w"].values
    known = np.isfinite(w)
    e, w = e[known], w[known]
    grid_w = np.linspace(min(-1.4, w.min() * 1.1), max(0.6, w.max() * 1.1), 81)
    grid_e = np.linspace(0.0, max(1.5, e.max() * 1.2), 61)
    energy = canonical.energy(*np.meshgrid(grid_e, grid_w, indexing="ij"))
    figure = _contours(grid_w, grid_e, np.clip(energy, -4, 4), "energy")
    p, q = float(data.attrs["p"]), float(data.attrs["q"])
    minimum = 1 + 2 * grid_w * np.abs(grid_w)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = canonical.best_slope(p, q) / minimum
    best = np.sqrt(np.where(ratio > 0, ratio, np.nan))
    best[best > grid_e[-1]] = np.nan
    border = grid_w**2 + np.sign(grid_w) * np.log(np.abs(grid_w) + 1e-12) + canonical.SADDLE_ENERGY
    border = np.where((grid_w < 0) & (border >= 0), np.sqrt(np.maximum(border, 0)), np.nan)
    border[border > grid_e[-1]] = np.nan
    for name, x, y, style in (
        ("bigram", grid_w, best, {"color": PALETTE[2], "width": 3}),
        ("energy of the saddle", grid_w, border, {"color": "#8a929b", "dash": "dash", "width": 2}),
        ("run", w, e, {"color": PALETTE[1], "width": 2}),
    ):
        figure.add_scatter(x=x, y=y, name=name, mode="lines", line=style)
    figure.add_scatter(
        x=w[-1:], y=e[-1:], name="last step", mode="markers", marker={"size": 11, "color": PALETTE[1]}
    )
    figure.update_layout(showlegend=True)
    error = float(data["fit_error"][-1])
    return Figure(
        "Canonical coordinates",
        "The run on the contours of the energy that gradient flow in (e, w) keeps. These two numbers miss "
        f"the model's log-odds by {error:.2g} (they vary by {float(data['log_odds_sd'][-1]):.2g}).",
        "plotly",
        figure.update_layout(xaxis_title="w: what the MLP makes of the embedding", yaxis_title="e"),
    )


def _contours(x: np.ndarray, y: np.ndarray, z: np.ndarray, unit: str) -> go.Figure:
    """Contours in the look of the other figures."""
    figure = lines(x.astype(float), {})
    figure.add_contour(
        x=x,
        y=y,
        z=z,
        colorscale=SEQUENTIAL,
        ncontours=_LEVELS,
        line={"width": 0.5},
        colorbar={"title": {"text": unit, "side": "right"}, "thickness": 12, "outlinewidth": 0},
        hovertemplate="(%{x:.3f}, %{y:.3f}): %{z:.4f} " + unit + "<extra></extra>",
    )
    return figure.update_layout(hovermode="closest")
