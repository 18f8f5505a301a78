"""The landscape probe's pictures: spectrum, gradient, way out, a plane of the loss, canonical contours."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.probing.dataset import model_axis
from mechmarkov.probing.figure import Figure
from mechmarkov.report.figures import GREY, PALETTE, SEQUENTIAL, lines
from mechmarkov.report.symlog import symlog
from mechmarkov.theory import canonical
from mechmarkov.utils.text import format_share

CONTOURS = 18
MIN_WAY = 0.05  # of a direction's length in the plane; less has no arrow


def draw(data: xr.Dataset) -> list[Figure]:
    """Figures of the spectrum next to its prediction, the gradient over training, and the way out."""
    axis = model_axis(data)
    drawn = [] if data.attrs["kink"] else [_spectrum_figure(data)]  # there is no curvature at a kink
    if "slice" in data:
        drawn.append(_slice_figure(data))
    if "canonical_e" in data and np.isfinite(data["canonical_w"]).any():
        drawn.append(_canonical_figure(data))
    if "amplitude" in data and np.nanmax(data["amplitude"].values, initial=0.0) > 0:
        steps = data["kept_step"].values.astype(float)
        series = {"run": data["amplitude"].values, "linear theory": data["predicted_amplitude"].values}
        caption = (
            "How far the run is along the growing modes, and what the predicted rates make of the first "
            "amplitude that is seen."
        )
        figure = lines(steps, series, x_title="step", y_title="amplitude", log_y=True)
        drawn.append(Figure("Leaving the saddle", caption, "plotly", figure))
    x = data[axis].values.astype(float)
    series = {"outside": data["grad_outside"].values, "inside (drift)": data["drift"].values}
    figure = lines(x, series, x_title=axis, y_title=data["grad_norm"].attrs["unit"], log_y=len(x) > 1)
    caption = "Norm of the gradient outside and inside the symmetric subspace."
    return [*drawn, Figure("Gradient", caption, "plotly", figure)]


def _spectrum_figure(data: xr.Dataset) -> Figure:
    full = "spectrum" in data
    values = data["spectrum" if full else "eigenvalue"].values
    series = {"measured": values}
    if "predicted_spectrum" in data and full:
        series["predicted"] = data["predicted_spectrum"].values
    rank = np.arange(1, len(values) + 1, dtype=float)
    figure = lines(rank, series, x_title="rank", y_title=f"eigenvalue ({data['smallest'].attrs['unit']})")
    figure.update_traces(mode="markers")
    stems = {"type": "data", "symmetric": False, "array": np.zeros(len(values)), "arrayminus": values}
    figure.data[0].error_y = stems | {"width": 0, "color": PALETTE[0], "thickness": 1.5}
    caption = (
        "Outside the symmetric subspace. Below zero the loss falls: gradient descent grows at that rate."
    )
    if "least_curvature" in data and np.isfinite(float(data["least_curvature"])):
        band = abs(float(data["least_curvature"]))
        figure.add_hrect(-band, band, fillcolor=GREY, opacity=0.25, line_width=0)
        caption += f" The grey band, ±{band:.2g}, is the tolerance: what lies in it counts as zero."
    title = "Hessian eigenvalues" if full else "The smallest Hessian eigenvalues"
    return Figure(title, caption, "plotly", figure)


def _slice_figure(data: xr.Dataset) -> Figure:
    """The loss over the plane through the run, the unigram point and the bigram point."""
    x, y, z = data["along"].values, data["across"].values, data["slice"].values
    points = {"run": tuple(map(float, data.attrs["run_at"])), "unigram": (0.0, 0.0), "bigram": (1.0, 0.0)}
    losses = data.attrs["loss_at"]
    ceiling = max(losses) + max(losses) - min(losses)  # a wall beyond hides the valleys
    figure = _contours(x, y, np.minimum(np.where(np.isfinite(z), z, np.nan), ceiling), "nats")
    look = {"mode": "markers+text", "textposition": "top center", "textfont": {"color": "white"}}
    for (name, (a, b)), loss, colour in zip(points.items(), losses, PALETTE[1:4], strict=True):
        figure.add_scatter(
            x=[a],
            y=[b],
            text=[name],
            marker={"size": 11, "color": colour, "line": {"color": "white", "width": 1}},
            showlegend=False,
            hovertemplate=f"{name}: {float(loss):.4f} nats<extra></extra>",
            **look,
        )
    path, steps = data["path"].values, data["checkpoint"].values
    if len(path) > 1:  # the checkpoints as they project onto the plane, from white to black
        edge = {"color": "black", "width": 1}
        figure.add_scatter(
            x=path[:, 0],
            y=path[:, 1],
            mode="lines+markers",
            line={"color": "white", "width": 1.5},
            marker={"size": 8, "color": symlog(steps), "colorscale": "Greys", "line": edge},
            customdata=steps,
            hovertemplate="step %{customdata}<extra></extra>",
            showlegend=False,
            name="checkpoints",
        )
    length = 0.25 * float(x[-1] - x[0])
    for way in data["way"].values:
        for sign in (-1, 1) if float(np.linalg.norm(way)) > MIN_WAY else ():  # an eigenvector has no sign
            ax, ay = points["run"]
            head = {"arrowhead": 2, "arrowcolor": "white", "arrowwidth": 2, "text": "", "showarrow": True}
            end = {"x": ax + sign * length * way[0], "y": ay + sign * length * way[1]}
            figure.add_annotation(**end, ax=ax, ay=ay, axref="x", ayref="y", **head)
    # Room above the highest point for its name.
    figure.update_yaxes(range=[float(y.min()), float(y.max() + 0.08 * (y.max() - y.min()))])
    figure.update_layout(
        xaxis_title="from the unigram point (0) to the bigram point (1)", yaxis_title="across, same unit"
    )
    at = ", ".join(f"{name} {float(loss):.4f}" for name, loss in zip(points, losses, strict=True))
    caption = (
        f"Mean loss over the plane that holds the run, the unigram point and the bigram point (nats: {at})."
    )
    return Figure("A plane through weight space", caption + _on_plane(data), "plotly", figure)


def _on_plane(data: xr.Dataset) -> str:
    """Returns what the marks on the plane are."""
    caption = ""
    if data.sizes["checkpoint"] > 1:
        caption += " The line joins the checkpoints as they project onto it, from white to black."
    shares = (data["way"].values ** 2).sum(-1)
    if len(shares):
        caption += f" Arrows: the {len(shares)} directions along which the loss falls"
        caption += f"; {format_share(float(shares.max()))} at most of one lies in the plane."
    return caption


def _canonical_figure(data: xr.Dataset) -> Figure:
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
    border = grid_w**2 + np.sign(grid_w) * np.log(np.abs(grid_w) + 1e-12) + canonical.SADDLE_ENERGY
    border = np.sqrt(np.where((grid_w < 0) & (border >= 0), border, np.nan))
    for name, x, y, style in (
        ("bigram", grid_w, best, {"color": PALETTE[2], "width": 3}),
        ("energy of the saddle", grid_w, border, {"color": GREY, "dash": "dash", "width": 2}),
        ("run", w, e, {"color": PALETTE[1], "width": 2}),
    ):
        inside = np.where(y <= grid_e[-1], y, np.nan)
        figure.add_scatter(x=x, y=inside, name=name, mode="lines", line=style)
    marker = {"size": 11, "color": PALETTE[1]}
    figure.add_scatter(x=w[-1:], y=e[-1:], name="last step", mode="markers", marker=marker)
    figure.update_layout(
        showlegend=True, xaxis_title="w: what the MLP makes of the embedding", yaxis_title="e"
    )
    error = float(data["fit_error"][-1])
    return Figure(
        "Canonical coordinates",
        "The run on the contours of the energy that gradient flow in (e, w) keeps. These two numbers miss "
        f"the model's log-odds by {error:.2g} (they vary by {float(data['log_odds_sd'][-1]):.2g}).",
        "plotly",
        figure,
    )


def _contours(x: np.ndarray, y: np.ndarray, z: np.ndarray, unit: str) -> go.Figure:
    """Contours in the look of the other figures."""
    figure = lines(x.astype(float), {})
    figure.add_contour(
        x=x,
        y=y,
        z=z,
        colorscale=SEQUENTIAL,
        ncontours=CONTOURS,
        line={"width": 0.5},
        colorbar={"title": {"text": unit, "side": "right"}, "thickness": 12, "outlinewidth": 0},
        hovertemplate="(%{x:.3f}, %{y:.3f}): %{z:.4f} " + unit + "<extra></extra>",
    )
    return figure.update_layout(hovermode="closest")
