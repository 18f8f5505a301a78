"""One scale for a figure that moves: colours and axes stay put while a reader goes through the steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mechmarkov.report.figures import lying_height


def share_scales(figures: Sequence[Any]) -> None:
    """Give heat maps of several plotly figures one colour scale, trace by trace, and other traces one axis.

    That is the y axis, or x where bars lie. They lie in all figures if they do in one: whether their names
    fit under them is not the same everywhere.

    Anything that is not a plotly figure stays as it is.
    """
    plots = [figure for figure in figures if isinstance(figure, go.Figure)]
    if len(plots) < 2:
        return
    for traces in zip(*(figure.data for figure in plots), strict=False):
        if all(trace.type == "heatmap" for trace in traces):
            low = min(_ends(trace)[0] for trace in traces)
            high = max(_ends(trace)[1] for trace in traces)
            for trace in traces:
                trace.update(zmin=low, zmax=high)
    if any("h" in _orientations(plot) for plot in plots):
        for plot in plots:
            if _orientations(plot) == {"v"}:
                _lay_down(plot)
    along = ["x" if "h" in _orientations(plot) else "y" for plot in plots]
    axes = [plot.layout[f"{name}axis"] for plot, name in zip(plots, along, strict=True)]
    drawn = zip(plots, along, strict=True)
    values = [value for plot, name in drawn for trace in plot.data for value in _lengths(trace, name)]
    if values and {axis.type for axis in axes} <= {None, "linear"}:
        low, high = min(0.0, *values), max(0.0, *values)
        room = 0.05 * (high - low) or 1.0
        for axis in axes:
            if axis.range is None:
                axis.range = [low - room * (low < 0), high + room]


def _lay_down(figure: go.Figure) -> None:
    """Make a figure's standing bars horizontal, in place, the first at the top, and fit its height.

    Levels drawn as scatter traces turn too, as `bars` draws references; layout shapes do not.
    """
    standing, levels = ([*figure.select_traces(kind)] for kind in ("bar", "scatter"))
    for bar in standing:
        hover = bar.hovertemplate and bar.hovertemplate.replace("%{y", "%{x")
        bar.update(orientation="h", hovertemplate=hover, error_x=bar.error_y.to_plotly_json(), error_y=None)
    for trace in (*standing, *levels):
        trace.update(x=trace.y, y=trace.x)
    values, names = (figure.layout[axis].to_plotly_json() for axis in ("yaxis", "xaxis"))
    names |= {"range": names["range"][::-1]} if "range" in names else {"autorange": "reversed"}
    figure.layout.update(xaxis=values, yaxis=names, overwrite=True)
    figure.layout.height = lying_height(max(len(bar.x) for bar in standing))


def _orientations(plot: go.Figure) -> set[str | None]:
    return {trace.orientation for trace in plot.select_traces("bar")}


def _ends(trace: Any) -> tuple[float, float]:
    if trace.zmin is not None and trace.zmax is not None:
        return float(trace.zmin), float(trace.zmax)
    values = np.asarray(trace.z, dtype=float)
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def _lengths(trace: Any, along: str) -> list[float]:
    if trace.type not in ("scatter", "bar") or trace[along] is None:
        return []
    try:
        values = np.asarray(trace[along], dtype=float)
    except ValueError:  # named rows
        return []
    error = trace[f"error_{along}"].array
    above = 0.0 if error is None else np.asarray(error, dtype=float)
    return [float(value) for value in np.ravel(values + above) if np.isfinite(value)]
