"""Figures of this folder: lines over training with the range over seeds behind them."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

# Plotly's "Safe" colours, dark ones first; each with a dash of its own.
COLOURS = ("rgb(17, 119, 51)", "rgb(204, 102, 119)", "rgb(51, 34, 136)", "rgb(221, 204, 119)")
DASHES = ("solid", "dash", "dot", "dashdot")
Curves = Mapping[str, Float[np.ndarray, "step seed"]]


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
        for name, values in curves.items():
            i = names.index(name)
            low, mid, high = (np.round(f(values, axis=1), 5) for f in (np.min, np.median, np.max))
            figure.add_scatter(
                x=[*steps, *steps[::-1]],
                y=[*high, *low[::-1]],
                fill="toself",
                fillcolor=COLOURS[i].replace("rgb", "rgba").replace(")", ", 0.18)"),
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
                row=1,
                col=column,
            )
            figure.add_scatter(
                x=steps,
                y=mid,
                name=name,
                legendgroup=name,
                showlegend=column == 1 or all(name not in c for _, c in list(panels.values())[: column - 1]),
                line={"color": COLOURS[i], "dash": DASHES[i], "width": 2.5},
                row=1,
                col=column,
            )
        for name, value in (references or {}).items():
            said = {"annotation_text": name} if column == 1 else {}
            style = {"color": "#888", "dash": "dash", "width": 1}
            figure.add_hline(value, line=style, row=1, col=column, **said)
        figure.update_xaxes(title=x_title, row=1, col=column)
    figure.update_yaxes(title=y_title, row=1, col=1)
    return finish(figure, title)


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
        marker = {"color": COLOURS[i], "symbol": i, "size": 9, "opacity": 0.8}
        figure.add_scatter(x=x, y=y, mode="markers", name=group, marker=marker)
    names = list(next(iter(groups.values())))
    figure.update_xaxes(
        title=x_title, tickvals=list(range(len(names))), ticktext=names, range=[-0.4, len(names) - 0.4]
    )
    figure.update_yaxes(title=y_title)
    for name, value in references.items():
        figure.add_hline(value, line={"color": "#888", "dash": "dash", "width": 1}, annotation_text=name)
    return finish(figure, title)


def finish(figure: go.Figure, title: str) -> go.Figure:
    """The look that all figures here share."""
    return figure.update_layout(
        title=title, template="plotly_white", legend={"orientation": "h", "y": -0.22}, margin={"t": 80}
    )
