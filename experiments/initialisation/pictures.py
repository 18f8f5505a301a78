"""The figures: basins in the `(w, e)` plane, losses, ranks."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

from mechmarkov.theory import canonical

BLUE, RED, SAND, GREEN = (qualitative.Safe[i] for i in (0, 1, 2, 3))
TO_BIGRAM, TO_UNIGRAM = "#33739e", "#c2553b"
MARKS = {
    "bigram": {"color": TO_BIGRAM, "symbol": "circle"},
    "unigram": {"color": TO_UNIGRAM, "symbol": "x-thin"},
    "neither": {"color": "black", "symbol": "star"},
}
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
        at = {"row": 1, "col": column}
        shown = column == 1
        for x, y in _stuck(p + q < 1, w, e_top, stretch):
            figure.add_scatter(
                x=x,
                y=y,
                fill="toself",
                fillcolor="#f6e2da",
                line={"width": 0},
                name="predicted: unigram",
                mode="lines",
                hoverinfo="skip",
                showlegend=shown,
                legendgroup="stuck",
                **at,
            )
        x, y = border(w, e_top, stretch)
        low = x <= canonical.CANCELS
        side = low if p + q < 1 else ~low
        figure.add_scatter(
            x=x[side],
            y=y[side],
            mode="lines",
            line={"color": "black", "width": 2},
            hoverinfo="skip",
            name="predicted border",
            legendgroup="border",
            showlegend=shown,
            **at,
        )
        x = np.linspace(*w, 400)
        with np.errstate(divide="ignore", invalid="ignore"):
            squared = canonical.best_slope(p, q) / (1 + 2 * x * np.abs(x))
            y = np.sqrt(np.where(squared > 0, squared, np.nan))
        inside = np.nan_to_num(y, nan=np.inf) <= e_top
        figure.add_scatter(
            x=x[inside],
            y=y[inside],
            mode="lines",
            line={"color": "#6b4c9a", "width": 2.5, "dash": "dash"},
            name="the bigram",
            legendgroup="locus",
            showlegend=shown,
            hoverinfo="skip",
            **at,
        )
        figure.add_scatter(
            x=[canonical.CANCELS],
            y=[0],
            mode="markers",
            name="saddle",
            legendgroup="saddle",
            showlegend=shown,
            marker={
                "symbol": "triangle-up",
                "size": 12,
                "color": "#dda20c",
                "line": {"color": "black", "width": 1},
            },
            cliponaxis=False,
            hovertemplate="saddle<extra></extra>",
            **at,
        )
        figure.update_xaxes(title="w: what the MLP makes of the embedding", range=w, zeroline=False, **at)
    figure.update_layout(plot_bgcolor="rgba(51, 115, 158, 0.10)")
    figure.update_yaxes(range=(0, e_top), zeroline=False)
    figure.update_yaxes(title="e: size of the embedding", col=1)
    return dress(figure, title)


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
    for end, mark in MARKS.items():
        chosen = starts[np.array(ends) == end]
        if len(chosen):
            name = {
                "bigram": "ends at the bigram",
                "unigram": "ends at the unigram",
                "neither": "has not ended",
            }[end]
            line = (
                {"width": 1.6, "color": mark["color"]}
                if "thin" in mark["symbol"]
                else {"width": 0.7, "color": "white"}
            )
            figure.add_scatter(
                x=chosen[:, 1].round(3),
                y=chosen[:, 0].round(3),
                mode="markers",
                name=name,
                legendgroup=end,
                showlegend=not any(trace.name == name for trace in figure.data),
                marker={**mark, "size": 6, "line": line},
                row=1,
                col=column,
                hovertemplate="w %{x}, e %{y}<extra>" + name + "</extra>",
            )


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
    line = {"color": "#7d868f", "width": 0.9, "dash": "solid"}
    if look is None:
        line = {"color": "black", "width": 1.5, "dash": "dot"}
    elif look >= 0:
        line = {"color": qualitative.Safe[look], "width": 2, "dash": ("solid", "dash", "dot")[look % 3]}
    figure.add_scatter(
        x=w[keep].round(3),
        y=np.abs(e[keep]).round(3),
        mode="lines+markers" if look is not None and look >= 0 else "lines",
        line=line,
        marker={"size": 5, "color": line["color"]},
        name=name,
        legendgroup=name,
        showlegend=not any(trace.name == name for trace in figure.data),
        hoverinfo="skip",
        row=1,
        col=column,
    )


def courses(
    step: Sequence[int], curves: Mapping[str, np.ndarray], title: str, y: str, marks: Mapping[str, float]
) -> go.Figure:
    """Mean over runs with the range of the runs as a band; `marks` are levels to compare with."""
    figure = go.Figure()
    # Wide under narrow: curves that fall together are seen together.
    looks = [
        (BLUE, "solid", "circle", 6),
        (RED, "solid", "square", 6),
        (GREEN, "dash", "diamond", 2),
        ("#6b4c9a", "dot", "x", 2),
    ]
    x = [max(int(each), 1) for each in step]
    for (name, rows), (color, dash, symbol, width) in zip(curves.items(), looks, strict=False):
        low, middle, high = rows.min(0), rows.mean(0), rows.max(0)
        figure.add_scatter(
            x=[*x, *x[::-1]],
            y=np.concatenate([high, low[::-1]]).round(4),
            fill="toself",
            mode="lines",
            opacity=0.10,
            fillcolor=color,
            line={"width": 0},
            showlegend=False,
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=x,
            y=middle.round(4),
            name=name,
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": width},
            marker={"symbol": symbol, "size": width + 4},
        )
    for name, level in marks.items():
        figure.add_hline(y=level, line={"color": "#8a929b", "dash": "dot", "width": 1}, annotation_text=name)
    figure.update_xaxes(title="training step (start drawn at 1)", type="log", dtick=1)
    figure.update_yaxes(title=y)
    return dress(figure, f"{title} (mean and range of seeds)")


def dress(figure: go.Figure, title: str) -> go.Figure:
    """One look for all."""
    below = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": -0.26, "yanchor": "top"}
    return figure.update_layout(
        template="simple_white",
        title={"text": title, "x": 0.01, "font": {"size": 16}},
        font={"size": 12},
        legend={"font": {"size": 11}, **below},
        margin={"t": 70, "l": 60, "r": 20, "b": 50},
    )
