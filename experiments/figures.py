"""One look for the figures of all studies: colours that are told apart by dash and symbol too."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from mechmarkov.report.figures import DASHES, PALETTE

MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up")
PATTERNS = ("", "/", ".", "x", "-", "+")
REFERENCE = {"color": "#8a929b", "width": 1, "dash": "dot"}


def style(i: int, **more: object) -> dict[str, object]:
    """Colour and dash of line i."""
    return {"color": PALETTE[i % len(PALETTE)], "dash": DASHES[i % len(DASHES)], "width": 2} | more


def marker(i: int, size: int = 8) -> dict[str, object]:
    """Colour and symbol of series i."""
    return {"color": PALETTE[i % len(PALETTE)], "symbol": MARKERS[i % len(MARKERS)], "size": size}


def fill(i: int) -> dict[str, object]:
    """Colour and pattern of bar i."""
    return {"color": PALETTE[i % len(PALETTE)], "pattern": {"shape": PATTERNS[i % len(PATTERNS)]}}


def titled(
    figure: go.Figure, title: str, x: str | None = None, y: str | None = None, **more: object
) -> go.Figure:
    """The figure with its title and the look of all; with the titles of its axes, where they are given."""
    look = {"template": "plotly_white", "margin": {"t": 60, "b": 50}}
    figure.update_layout(title=title, **look | more)
    if x is not None:
        figure.update_xaxes(title=x)
    return figure if y is None else figure.update_yaxes(title=y)


def log_reference(figure: go.Figure, value: float, text: str) -> None:
    """A named horizontal line on a logarithmic axis, where `add_hline` puts the name at 10 to the value."""
    figure.add_hline(value, line=REFERENCE)
    corner = {"xref": "x domain", "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    figure.add_annotation(x=1, y=math.log10(value), text=text, **corner)


def intervals(found: Sequence[tuple[float, float, float]]) -> dict[str, object]:
    """Values and error bars of a trace from triples (low, value, high), as `wilson` gives them."""
    low, value, high = (np.array(column) for column in zip(*found, strict=True))
    errors = {"type": "data", "symmetric": False, "array": high - value, "arrayminus": value - low}
    return {"y": value, "error_y": errors}


def ranges(groups: Sequence[Sequence[float]]) -> dict[str, object]:
    """Means and ranges of a trace, from values over seeds."""
    return intervals([(min(values), float(np.mean(values)), max(values)) for values in groups])


def bands(
    figure: go.Figure,
    x: Sequence[float],
    curves: Mapping[str, Float[np.ndarray, "run step"]],
    names: Sequence[str] | None = None,
    widths: Sequence[float] = (2,),
    **place: int,
) -> None:
    """Draw the median of each curve over runs, its range behind it.

    Args:
        figure: Where to.
        x: The steps.
        curves: A curve's name to its values.
        names: Of all curves of the figure, which decide colours and dashes; those of `curves` by default.
        widths: Of the lines, in turn.
        place: `row` and `col` of a subplot.
    """
    names = list(curves if names is None else names)
    for name, rows in curves.items():
        i = names.index(name)
        low, middle, high = (np.round(f(rows, axis=0), 5) for f in (np.min, np.median, np.max))
        figure.add_scatter(
            x=[*x, *x[::-1]],
            y=[*high, *low[::-1]],
            fill="toself",
            fillcolor=style(i)["color"],
            opacity=0.15,
            mode="lines",
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            **place,
        )
        figure.add_scatter(
            x=x,
            y=middle,
            name=name,
            legendgroup=name,
            showlegend=all(trace.name != name for trace in figure.data),
            mode="lines",
            line=style(i, width=widths[i % len(widths)]),
            **place,
        )
