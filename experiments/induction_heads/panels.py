"""Figures of this folder: panels of curves over training, and a mark for each seed."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from experiments.figures import REFERENCE, bands, marker, titled

Curves = Mapping[str, Float[np.ndarray, "step seed"]]
LEGEND = {"orientation": "h", "y": -0.22}


def over_training(
    panels: Mapping[str, tuple[np.ndarray, Curves]],
    title: str,
    y_title: str,
    references: Mapping[str, float] | None = None,
    x_title: str = "step",
    shared: bool = True,
) -> go.Figure:
    """A panel a setting: the median of each curve over seeds, its range as a band, references across.

    Args:
        panels: Name to steps and curves; curves of one name share colour and dash.
        title: What the figure is about.
        y_title: With its unit.
        references: Values to be drawn across, such as a null.
        x_title: Likewise.
        shared: Whether panels share the y axis.
    """
    figure = make_subplots(cols=len(panels), subplot_titles=[*panels], shared_yaxes=shared)
    names = list(dict.fromkeys(name for _, curves in panels.values() for name in curves))
    for column, (steps, curves) in enumerate(panels.values(), start=1):
        rows = {name: values.T for name, values in curves.items()}
        bands(figure, steps, rows, names, row=1, col=column)
        for name, value in (references or {}).items():
            text = {"annotation_text": name} if column == 1 else {}
            figure.add_hline(value, line=REFERENCE, row=1, col=column, **text)
    figure.update_yaxes(title=y_title, row=1, col=1)
    return titled(figure, title, x_title, legend=LEGEND)


def strips(
    groups: Mapping[str, Mapping[str, Float[np.ndarray, " seed"]]],
    title: str,
    x_title: str,
    y_title: str,
    references: Mapping[str, float],
) -> go.Figure:
    """A mark for each seed: groups by colour and symbol, names along the x axis.

    Args:
        groups: Group to name to values.
        title: What the figure is about.
        x_title: With its unit.
        y_title: Likewise.
        references: Values to be drawn across.
    """
    figure = go.Figure()
    for i, (group, columns) in enumerate(groups.items()):
        shift = 0.18 * (i - (len(groups) - 1) / 2)
        x = [n + shift for n, values in enumerate(columns.values()) for _ in values]
        y = [round(float(value), 5) for values in columns.values() for value in values]
        figure.add_scatter(x=x, y=y, mode="markers", name=group, marker=marker(i, 9), opacity=0.8)
    names = list(next(iter(groups.values())))
    figure.update_xaxes(tickvals=list(range(len(names))), ticktext=names, range=[-0.4, len(names) - 0.4])
    for name, value in references.items():
        figure.add_hline(value, line=REFERENCE, annotation_text=name)
    return titled(figure, title, x_title, y_title, legend=LEGEND)
