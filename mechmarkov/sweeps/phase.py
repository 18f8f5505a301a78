"""The phase diagram: how often an event happens over two fields, with its interval, as a plotly figure.

A cell is clicked by its number in the order of `Counts`, which its `customdata` hold.
"""

import html
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
from plotly.subplots import make_subplots

from mechmarkov.report.figures import SEQUENTIAL, colorbar
from mechmarkov.sweeps.spec import Phase, SweepError
from mechmarkov.theory.bootstrap import wilson
from mechmarkov.utils.text import label

TITLES = {
    "stuck": "Share of runs below half of the gain over the unigram",
    "diverged": "Share of runs that diverge",
}

MAX_REASONS, MAX_REASON = 3, 100  # that a cell's box shows, and characters of each
LEGEND = "runs where it happens of all decided runs, Wilson's 95 % interval; – where none is decided"


@dataclass(frozen=True)
class Share:
    """The share of runs with an event, with the ends of Wilson's 95 % interval, NaN where n is 0.

    Attributes:
        hits: The number of runs with the event.
        n: The number of runs of which it is decided.
        unknown: The number of the other runs.
        low: The lower end of the interval.
        high: The upper end.
        reasons: Why the others are undecided, each reason once.
    """

    hits: int
    n: int
    unknown: int
    low: float
    high: float
    reasons: tuple[str, ...] = ()


Where = tuple[Any, Any, Any]  # the values of facet, y and x
Counts = dict[Where, Share]


def share(happened: Sequence[bool | None], reasons: Sequence[str | None] = ()) -> Share:
    """Returns a share of events, with Wilson's 95 % interval; None is counted apart, with its reasons.

    Example:
        >>> found = share([True, True, False, None])
        >>> found.hits, found.n, found.unknown, round(found.low, 3), round(found.high, 3)
        (2, 3, 1, 0.208, 0.939)
    """
    known = [bool(value) for value in happened if value is not None]
    hits, n = sum(known), len(known)
    low, high = wilson(hits / n, n) if n else (np.nan, np.nan)
    why = tuple(dict.fromkeys(reason for reason in reasons if reason is not None))
    return Share(hits, n, len(happened) - n, low, high, why)


def counts(table: pa.Table, phase: Phase) -> Counts:
    """The share of runs with the phase's event at each (facet, y, x); facet is None where there is none.

    Args:
        table: A sweep's table, `Swept.table`.
        phase: Names the fields and the event.

    Raises:
        SweepError: The event is not a column of booleans.

    Example:
        >>> runs = pa.table({"p": [0.1, 0.1], "q": [0.2, 0.2], "stuck": [True, False]})
        >>> counts(runs, Phase(x="p", y="q"))[None, 0.2, 0.1].hits
        1
    """
    values, reasons = happened(table, phase.event), undecided(table, phase.event)
    return {
        where: share([values[i] for i in rows], [reasons[i] for i in rows])
        for where, rows in cells_of(table, phase).items()
    }


def cells_of(table: pa.Table, phase: Phase) -> dict[Where, list[int]]:
    """The numbers of the table's rows at each (facet, y, x), in the order of the table.

    Example:
        >>> cells_of(pa.table({"p": [0.1, 0.1], "q": [0.2, 0.3]}), Phase(x="p", y="q"))
        {(None, 0.2, 0.1): [0], (None, 0.3, 0.1): [1]}
    """
    none = [None] * table.num_rows
    fields = (phase.facet, phase.y, phase.x)
    facets, ys, xs = (none if field is None else table[field].to_pylist() for field in fields)
    cells: dict[Where, list[int]] = {}
    for row, where in enumerate(zip(facets, ys, xs, strict=True)):
        cells.setdefault(where, []).append(row)
    return cells


def cell_names(cells: Sequence[Where], phase: Phase) -> list[str]:
    """Returns what cells are called: the values of their fields, as text.

    Example:
        >>> cell_names([(None, 0.2, 0.1)], Phase(x="source.p", y="source.q"))
        ['p = 0.1, q = 0.2']
    """
    named = [(axis, field) for axis, field in ((2, phase.x), (1, phase.y), (0, phase.facet)) if field]
    return [", ".join(f"{leaf(field)} = {_plain(where[axis])}" for axis, field in named) for where in cells]


def places(cells: Sequence[Where]) -> list[tuple[int, int, int]]:
    """Returns where `figure` draws each cell: its panel, column and row, from 0 on.

    Example:
        >>> places([(None, 0.2, 0.1), (None, 0.3, 0.1)])
        [(0, 0, 0), (0, 0, 1)]
    """
    facets, ys, xs = _axes(cells)
    return [(facets.index(facet), xs.index(x), ys.index(y)) for facet, y, x in cells]


def headings(phase: Phase, title: str = "") -> tuple[str, str]:
    """Returns the heading of a diagram, from the phase's event, and the line below it."""
    words = TITLES.get(phase.event, f"Share of runs where {phase.event} is true")
    return words, f"{title} · {LEGEND}" if title else LEGEND


def figure(shares: Counts, phase: Phase, title: str = "") -> go.Figure:
    """A heat map for each facet: colour is the share, the text of a cell its counts and interval."""
    facets, ys, xs = _axes(shares)
    titles = (
        None if phase.facet is None else [f"{_text(leaf(phase.facet))} = {value_name(f)}" for f in facets]
    )
    numbers = {where: number for number, where in enumerate(shares)}
    picture = make_subplots(
        cols=len(facets), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.04
    )
    for number, facet in enumerate(facets, start=1):
        cells = [[shares.get((facet, y, x)) for x in xs] for y in ys]
        picture.add_heatmap(
            x=list(range(len(xs))),
            y=list(range(len(ys))),
            z=[[cell.hits / cell.n if cell and cell.n else np.nan for cell in row] for row in cells],
            text=[[_cell(cell) for cell in row] for row in cells],
            texttemplate="%{text}",
            hovertext=[[_hover(phase, x, y, shares.get((facet, y, x))) for x in xs] for y in ys],
            hovertemplate="%{hovertext}<extra></extra>",
            hoverongaps=True,
            customdata=[[numbers.get((facet, y, x), -1) for x in xs] for y in ys],
            coloraxis="coloraxis",
            xgap=2,
            ygap=2,
            row=1,
            col=number,
        )
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                if cell is not None and not cell.n:  # a dash, so that it is not taken for a colour
                    picture.add_annotation(x=x, y=y, text="–", showarrow=False, row=1, col=number)
        _add_line(picture, phase, xs, ys, number)
    ticks = {"tickmode": "array", "showgrid": False, "zeroline": False, "fixedrange": True}
    picture.update_xaxes(**ticks, tickvals=list(range(len(xs))), ticktext=[value_name(x) for x in xs])
    picture.update_yaxes(**ticks, tickvals=list(range(len(ys))), ticktext=[value_name(y) for y in ys])
    picture.update_xaxes(title_text=_text(leaf(phase.x)))
    picture.update_yaxes(title_text=_text(leaf(phase.y or "")), col=1)
    words, below = headings(phase, title)
    return picture.update_layout(
        template="none",
        title={"text": f"{_text(words)}<br><sup>{_text(below)}</sup>", "x": 0.02},
        coloraxis={"colorscale": SEQUENTIAL, "cmin": 0, "cmax": 1, "colorbar": colorbar("share")},
        width=160 + max(300, 92 * len(xs)) * len(facets),
        meta={"least": 120 + max(260, 64 * len(xs)) * len(facets)},  # pixels; on a narrower page it scrolls
        dragmode=False,
        height=150 + max(260, 72 * len(ys)),
        margin={"l": 70, "r": 20, "t": 90, "b": 60},
        legend={"orientation": "h", "y": -0.16, "yanchor": "top", "x": 0.0},
        plot_bgcolor="#eceff1",  # what is empty
        paper_bgcolor="white",
    )


def _add_line(picture: go.Figure, phase: Phase, xs: list[Any], ys: list[Any], col: int) -> None:
    """The line p + q = 1, on which a binary chain's states are independent, over axes of places."""
    if {leaf(phase.x), leaf(phase.y or "")} != {"p", "q"}:
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


def happened(table: pa.Table, event: str) -> list[bool | None]:
    """Returns whether an event happened, for each run; None where that is undecided.

    Args:
        table: A sweep's table.
        event: `diverged`, or a column of booleans such as `stuck`.

    Raises:
        SweepError: The event is not a column of booleans.

    Example:
        >>> happened(pa.table({"status": ["ok", "diverged"]}), "diverged")
        [False, True]
    """
    if event == "diverged":
        return [status == "diverged" for status in table["status"].to_pylist()]
    if event not in table.column_names or not pa.types.is_boolean(table.schema.field(event).type):
        kinds = [field.name for field in table.schema if pa.types.is_boolean(field.type)]
        raise SweepError(
            f"phase.event is {event!r}, expected diverged or a column that is true or false: "
            f"{', '.join(kinds)} (the table is written)"
        )
    return list(table[event].to_pylist())


def undecided(table: pa.Table, event: str) -> list[str | None]:
    """Returns why an event is undecided, for each run (column `<event>.reason`); None where it is not."""
    name = f"{event}.reason"
    return list(table[name].to_pylist()) if name in table.column_names else [None] * table.num_rows


def _axes(cells: Collection[Where]) -> list[list[Any]]:
    """The different values of facet, of y and of x: numbers by size, anything else as it came."""
    axes = [list(dict.fromkeys(where[axis] for where in cells)) for axis in range(3)]
    return [sorted(axis) if all(type(value) in (int, float) for value in axis) else axis for axis in axes]


def _cell(cell: Share | None) -> str:
    return f"{cell.hits}/{cell.n}<br>{cell.low:.2f}–{cell.high:.2f}" if cell and cell.n else ""


def _hover(phase: Phase, x: Any, y: Any, cell: Share | None) -> str:
    where = f"{_text(leaf(phase.x))} = {value_name(x)}, {_text(leaf(phase.y or ''))} = {value_name(y)}"
    if cell is None:
        return f"{where}<br>not in the sweep"
    why = "".join(f"<br>{_text(label(reason, MAX_REASON))}" for reason in cell.reasons[:MAX_REASONS])
    unknown = f"<br>{cell.unknown} undecided{':' if why else ''}{why}" if cell.unknown else ""
    if not cell.n:
        return f"{where}{unknown}"
    interval = f"95 % interval {cell.low:.3f} to {cell.high:.3f} (Wilson)"
    return f"{where}<br>{cell.hits} of {cell.n}<br>{interval}{unknown}"


def leaf(field: str) -> str:
    """Returns the last part of a dotted field, as an axis calls it: `p` of `source.p`."""
    return field.rpartition(".")[2]


def value_name(value: Any) -> str:
    """Returns a field's value as plotly shows it, with nothing that it would take for a tag.

    Example:
        >>> value_name(0.5), value_name("<b>")
        ('0.5', '&lt;b&gt;')
    """
    return _text(_plain(value))


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return label(f"{value:g}" if isinstance(value, float) else text)


def _text(words: str) -> str:
    return html.escape(words, quote=False)  # plotly reads tags in any text
