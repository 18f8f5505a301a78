"""The figures: basins in the `(w, e)` plane, losses, ranks."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from experiments.figures import REFERENCE, bands, style, titled
from mechmarkov.theory import canonical

MARKS = {
    "bigram": (
        "ends at the bigram",
        {"color": "#33739e", "symbol": "circle", "size": 6, "line": {"width": 0.7, "color": "white"}},
    ),
    "unigram": (
        "ends at the unigram",
        {"color": "#c2553b", "symbol": "x-thin", "size": 6, "line": {"width": 1.6, "color": "#c2553b"}},
    ),
    "neither": (
        "has not ended",
        {"color": "black", "symbol": "star", "size": 6, "line": {"width": 0.7, "color": "white"}},
    ),
}
SADDLE = {"symbol": "triangle-up", "size": 12, "color": "#dda20c", "line": {"color": "black", "width": 1}}
Panel = tuple[float, float]


def planes(
    panels: Sequence[Panel], title: str, w: tuple[float, float], e_top: float, *, stretch: float = 1
) -> go.Figure:
    """A plane for each chain: the predicted basins, their border, the saddle and where the bigram is."""
    figure = make_subplots(
        1,
        len(panels),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[f"p = {p:g}, q = {q:g}: p + q {'<' if p + q < 1 else '>'} 1" for p, q in panels],
    )
    for column, (p, q) in enumerate(panels, 1):
        below, draw = p + q < 1, partial(_draw, figure, column)
        for x, y in _stuck(below, w, e_top, stretch):
            draw("predicted: unigram", x, y, fill="toself", fillcolor="#f6e2da", line={"width": 0})
        x, y = border(w, e_top, stretch)
        side = (x <= canonical.CANCELS) == below
        draw("predicted border", x[side], y[side], line={"color": "black", "width": 2})
        draw("the bigram", *_bigram(p, q, w, e_top), line={"color": "#6b4c9a", "width": 2.5, "dash": "dash"})
        draw("saddle", [canonical.CANCELS], [0], mode="markers", marker=SADDLE, cliponaxis=False)
        figure.update_xaxes(
            title="w: what the MLP makes of the embedding", range=w, zeroline=False, row=1, col=column
        )
    figure.update_layout(plot_bgcolor="rgba(51, 115, 158, 0.10)")
    figure.update_yaxes(range=(0, e_top), zeroline=False)
    figure.update_yaxes(title="e: size of the embedding", col=1)
    return dress(figure, title)


def _draw(
    figure: go.Figure, column: int, name: str, x: Sequence[float], y: Sequence[float], **look: object
) -> None:
    """One trace of a column; of several with one name the first is in the legend."""
    figure.add_scatter(
        x=x,
        y=y,
        **{"mode": "lines", "hoverinfo": "skip"} | look,
        name=name,
        legendgroup=name,
        showlegend=all(trace.name != name for trace in figure.data),
        row=1,
        col=column,
    )


def _bigram(
    p: float, q: float, w: tuple[float, float], e_top: float
) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]:
    """Where the slope is the bigram's: w and e."""
    x = np.linspace(*w, 400)
    with np.errstate(divide="ignore", invalid="ignore"):
        squared = canonical.best_slope(p, q) / (1 + 2 * x * np.abs(x))
        y = np.sqrt(np.where(squared > 0, squared, np.nan))
    inside = np.nan_to_num(y, nan=np.inf) <= e_top
    return x[inside], y[inside]


def border(w: tuple[float, float], e_top: float, stretch: float = 1) -> tuple[np.ndarray, np.ndarray]:
    """Where the energy is the saddle's, `e² / stretch` in place of `e²`, for negative w."""
    close = -np.geomspace(1e-2, 1e-6, 60)  # where the border rises without end
    x = np.sort(np.concatenate([np.linspace(w[0], -1e-2, 500), close, [canonical.CANCELS]]))
    squared = stretch * (x**2 - np.log(np.abs(x)) + canonical.SADDLE_ENERGY)
    y = np.sqrt(np.maximum(squared, 0))
    return x[y <= e_top], y[y <= e_top]


def _stuck(
    below: bool, w: tuple[float, float], e_top: float, stretch: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Outlines of the predicted basin of the unigram, for p + q below or above 1."""
    x, y = border(w, e_top, stretch)
    side = x <= canonical.CANCELS if below else x >= canonical.CANCELS
    x, y = x[side], y[side]
    if below:
        edge = [w[0]] if x[0] <= w[0] + 1e-9 else [w[0], w[0]]
        top = [0.0] if len(edge) == 1 else [0.0, e_top]
        return [(np.array([*edge, *x]), np.array([*top, *y]))]
    return [(np.array([*x, x[-1], w[1], w[1]]), np.array([*y, e_top, e_top, 0.0]))]


def add_starts(figure: go.Figure, column: int, starts: np.ndarray, ends: Sequence[str]) -> None:
    """Starts `[start, (e, w)]`, coloured and shaped by where they end."""
    for end, (name, mark) in MARKS.items():
        chosen = starts[np.array(ends) == end]
        if len(chosen):
            hover = {"hoverinfo": None, "hovertemplate": "w %{x}, e %{y}<extra>" + name + "</extra>"}
            x, y = chosen[:, 1].round(3), chosen[:, 0].round(3)
            _draw(figure, column, name, x, y, mode="markers", marker=mark, **hover)


def add_path(
    figure: go.Figure,
    column: int,
    e: np.ndarray,
    w: np.ndarray,
    *,
    name: str = "a line of the flow",
    look: int | None = -1,
) -> None:
    """One line through the plane, thinned; `look` numbers trained runs, None is a border to compare with."""
    keep = np.unique(np.linspace(0, len(e) - 1, 50).astype(int))
    line, mode = {"color": "#7d868f", "width": 0.9, "dash": "solid"}, "lines"
    if look is None:
        line = {"color": "black", "width": 1.5, "dash": "dot"}
    elif look >= 0:
        line, mode = style(look), "lines+markers"
    mark = {"size": 5, "color": line["color"]}
    _draw(figure, column, name, w[keep].round(3), np.abs(e[keep]).round(3), mode=mode, line=line, marker=mark)


def over_training(
    step: Sequence[int], curves: Mapping[str, np.ndarray], title: str, y: str, marks: Mapping[str, float]
) -> go.Figure:
    """Median over runs `[run, step]` with their range as a band; `marks` are levels to compare with."""
    figure = go.Figure()
    # Wide under thin: curves that fall together are seen together.
    bands(figure, [max(int(each), 1) for each in step], curves, widths=(6, 6, 2, 2))
    for name, level in marks.items():
        figure.add_hline(y=level, line=REFERENCE, annotation_text=name)
    figure.update_xaxes(title="training step (start drawn at 1)", type="log", dtick=1)
    figure.update_yaxes(title=y)
    return dress(figure, f"{title} (median and range of seeds)")


def dress(figure: go.Figure, title: str) -> go.Figure:
    """One look for all, the legend below."""
    below = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": -0.26, "yanchor": "top"}
    return titled(figure, title, template="simple_white", legend={"font": {"size": 11}, **below})
