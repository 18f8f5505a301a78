"""The phase diagram: how often an event happens over two fields, with its interval, as a plotly figure."""

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
from plotly.subplots import make_subplots
from scipy.stats import binomtest

from mechmarkov.probing.figure import Figure
from mechmarkov.report.cards import figure_card
from mechmarkov.report.figures import SEQUENTIAL
from mechmarkov.report.html import fill, write_page
from mechmarkov.sweeps.spec import Phase, SweepError
from mechmarkov.utils.text import label

TITLES = {"stuck": "Share of runs that stay at the unigram", "diverged": "Share of runs that diverge"}

LEGEND = "runs where it happens of all decided runs, Wilson's 95 % interval; – where none is decided"


@dataclass(frozen=True)
class Share:
    """How often something happened.

    Attributes:
        hits: How often.
        n: Of how many.
        unknown: How many others are undecided.
        low: Lower end of Wilson's 95 % interval; NaN where n is 0.
        high: Its upper end.
    """

    hits: int
    n: int
    unknown: int
    low: float
    high: float


Counts = dict[tuple[Any, Any, Any], Share]


def share(happened: Sequence[bool | None]) -> Share:
    """How often something happened, with Wilson's 95 % interval; None is counted apart.

    Example:
        >>> found = share([True, True, False, None])
        >>> found.hits, found.n, found.unknown, round(found.low, 3), round(found.high, 3)
        (2, 3, 1, 0.208, 0.939)
    """
    known = [bool(value) for value in happened if value is not None]
    hits, n = sum(known), len(known)
    low = high = float("nan")
    if n:
        interval = binomtest(hits, n).proportion_ci(method="wilson")
        low, high = float(interval.low), float(interval.high)
    return Share(hits, n, len(happened) - n, low, high)


def counts(table: pa.Table, phase: Phase) -> Counts:
    """The share at each facet, y and x; facet is None where there is none.

    Raises:
        SweepError: The event is not a column of booleans.
    """
    happened = _event(table, phase.event)
    facets = [None] * len(happened) if phase.facet is None else table[phase.facet].to_pylist()
    cells: dict[tuple[Any, Any, Any], list[bool | None]] = {}
    for *where, value in zip(
        facets, table[phase.y].to_pylist(), table[phase.x].to_pylist(), happened, strict=True
    ):
        cells.setdefault((where[0], where[1], where[2]), []).append(value)
    return {where: share(values) for where, values in cells.items()}


def figure(found: Counts, phase: Phase, title: str = "") -> go.Figure:
    """A heat map for each facet: colour is the share, the text of a cell its counts and interval."""
    facets, ys, xs = (_ordered([where[axis] for where in found]) for axis in range(3))
    titles = None if phase.facet is None else [_text(f"{phase.facet} = {_name(f)}") for f in facets]
    picture = make_subplots(
        cols=len(facets), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.04
    )
    for number, facet in enumerate(facets, start=1):
        cells = [[found.get((facet, y, x)) for x in xs] for y in ys]
        picture.add_heatmap(
            x=list(range(len(xs))),
            y=list(range(len(ys))),
            z=[[cell.hits / cell.n if cell and cell.n else np.nan for cell in row] for row in cells],
            text=[[_cell(cell) for cell in row] for row in cells],
            texttemplate="%{text}",
            hovertext=[
                [_hover(phase, x, y, cell) for x, cell in zip(xs, row, strict=True)]
                for y, row in zip(ys, cells, strict=True)
            ],
            hovertemplate="%{hovertext}<extra></extra>",
            hoverongaps=True,
            coloraxis="coloraxis",
            xgap=2,
            ygap=2,
            row=1,
            col=number,
        )
        _annotate_empty(picture, cells, number)
        _add_line(picture, phase, xs, ys, number)
    ticks = {"tickmode": "array", "showgrid": False, "zeroline": False}
    picture.update_xaxes(
        **ticks, tickvals=list(range(len(xs))), ticktext=[_name(x) for x in xs], title_text=_text(phase.x)
    )
    picture.update_yaxes(**ticks, tickvals=list(range(len(ys))), ticktext=[_name(y) for y in ys])
    picture.update_yaxes(title_text=_text(phase.y), col=1)
    words = TITLES.get(phase.event, f"Share of runs where {phase.event} is true")
    below = " · ".join([*([title] if title else []), LEGEND])
    picture.update_layout(
        template="none",
        title={"text": f"{_text(words)}<br><sup>{_text(below)}</sup>", "x": 0.02},
        coloraxis={
            "colorscale": SEQUENTIAL,
            "cmin": 0,
            "cmax": 1,
            "colorbar": {"title": {"text": "share", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        },
        width=160 + max(300, 92 * len(xs)) * len(facets),
        height=150 + max(260, 72 * len(ys)),
        margin={"l": 70, "r": 20, "t": 90, "b": 60},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0.0},
        plot_bgcolor="#eceff1",  # what is empty
        paper_bgcolor="white",
    )
    return picture


def write(picture: go.Figure, path: Path) -> None:
    """Write the figure as one page in the report's style, whole or not at all."""
    title, _, caption = str(picture.layout.title.text).partition("<br>")
    title, caption = (html.unescape(re.sub("</?sup>", "", words)) for words in (title, caption))
    card = figure_card("figure-phase", Figure(title, caption, "plotly", picture))
    write_page(lambda: fill("sweep.html.j2", [card], title=title, card=card), path)


def _add_line(picture: go.Figure, phase: Phase, xs: list[Any], ys: list[Any], col: int) -> None:
    """The line p + q = 1, on which a binary chain's states are independent, over axes of places."""
    if {phase.x.split(".")[-1], phase.y.split(".")[-1]} != {"p", "q"}:
        return
    x, y = np.array(xs, dtype=float), np.array(ys, dtype=float)
    at = np.linspace(max(x[0], 1 - y[-1]), min(x[-1], 1 - y[0]), 50)
    if len(xs) < 2 or len(ys) < 2 or at[0] > at[-1]:
        return
    picture.add_scatter(
        x=np.interp(at, x, np.arange(len(x))),
        y=np.interp(1 - at, y, np.arange(len(y))),
        mode="lines",
        line={"color": "#D55E00", "width": 3, "dash": "dash"},
        name="p + q = 1",
        showlegend=col == 1,
        hoverinfo="skip",
        row=1,
        col=col,
    )


def _event(table: pa.Table, event: str) -> list[bool | None]:
    if event == "diverged":
        return [status == "diverged" for status in table["status"].to_pylist()]
    if event not in table.column_names or not pa.types.is_boolean(table.schema.field(event).type):
        kinds = [field.name for field in table.schema if pa.types.is_boolean(field.type)]
        raise SweepError(
            f"phase.event is {event!r}, expected diverged or a column that is true or false: "
            f"{', '.join(kinds)} (the table is written)"
        )
    values: list[bool | None] = table[event].to_pylist()
    return values


def _ordered(values: Sequence[Any]) -> list[Any]:
    """The different values: numbers by size, anything else as it came."""
    different = list(dict.fromkeys(values))
    numbers = all(type(value) in (int, float) for value in different)
    return sorted(different) if numbers else different


def _cell(cell: Share | None) -> str:
    return f"{cell.hits}/{cell.n}<br>{cell.low:.2f}–{cell.high:.2f}" if cell and cell.n else ""


def _annotate_empty(picture: go.Figure, cells: list[list[Share | None]], col: int) -> None:
    """Mark a cell without decided runs with a dash, so that it is not taken for a colour."""
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            if cell is not None and not cell.n:
                picture.add_annotation(x=x, y=y, text="–", showarrow=False, row=1, col=col)


def _hover(phase: Phase, x: Any, y: Any, cell: Share | None) -> str:
    where = f"{_text(phase.x)} = {_name(x)}, {_text(phase.y)} = {_name(y)}"
    if cell is None:
        return f"{where}<br>not in the sweep"
    unknown = f"<br>{cell.unknown} undecided" if cell.unknown else ""
    if not cell.n:
        return f"{where}{unknown}"
    interval = f"95 % interval {cell.low:.3f} to {cell.high:.3f} (Wilson)"
    return f"{where}<br>{cell.hits} of {cell.n}<br>{interval}{unknown}"


def _name(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return _text(label(f"{value:g}" if isinstance(value, float) else text))


def _text(words: str) -> str:
    return html.escape(words, quote=False)  # plotly reads tags in any text
