"""One scale for a figure that moves: colours and axes stay put while a reader goes through the steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go


def share_scales(figures: Sequence[Any]) -> None:
    """Give heat maps of several plotly figures one colour scale, trace by trace, and other traces one y axis.

    Anything that is not a plotly figure is left alone.
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
    values = [value for figure in plots for trace in figure.data for value in _heights(trace)]
    kinds = {figure.layout.yaxis.type for figure in plots}
    if values and kinds <= {None, "linear"}:
        low, high = min(0.0, *values), max(0.0, *values)
        room = 0.05 * (high - low) or 1.0
        for figure in plots:
            if figure.layout.yaxis.range is None:
                figure.update_yaxes(range=[low - room * (low < 0), high + room])


def _ends(trace: Any) -> tuple[float, float]:
    if trace.zmin is not None and trace.zmax is not None:
        return float(trace.zmin), float(trace.zmax)
    values = np.asarray(trace.z, dtype=float)
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def _heights(trace: Any) -> list[float]:
    if trace.type not in ("scatter", "bar") or trace.y is None or trace.orientation == "h":
        return []
    try:
        values = np.asarray(trace.y, dtype=float)
    except ValueError:  # named rows
        return []
    above = np.asarray(trace.error_y.array, dtype=float) if trace.error_y.array is not None else 0.0
    return [float(value) for value in np.ravel(values + above) if np.isfinite(value)]
