"""Figures with one look, for probes: heat maps, lines and bars as plotly figures.

Labels are text: whatever a state, a head or a series is called, plotly.js will not read it as markup. Colours
are colour-blind safe (viridis; blue to red through white at zero; Okabe and Ito's palette, with a dash of its
own for each line). Backgrounds are transparent, so that a figure sits on a light page and on a dark one.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from mechmarkov.report.symlog import symlog, symlog_ticks
from mechmarkov.utils.text import label

# Okabe and Ito (2008), without black, which a dark page swallows, and yellow, which a light one does.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SEQUENTIAL = "Viridis"
# ColorBrewer's RdBu, reversed: blue below zero, red above.
_BLUE_TO_RED = "#053061 #2166ac #4393c3 #92c5de #d1e5f0 #f7f7f7 #fddbc7 #f4a582 #d6604d #b2182b #67001f"
DIVERGING = tuple((i / 10, colour) for i, colour in enumerate(_BLUE_TO_RED.split()))
_HEIGHT = 360  # pixels
_MAX_NUMBERED_CELLS = 64
_MAX_NUMBERED_COLUMNS = 12  # beyond, numbers of four characters run into each other
_MAX_NAMED_CELLS = 2500
_MAX_SEPARATED = 32
_MAX_TICKS = 16
_MAX_NARROW_TICKS = 8  # of a table that is a third of a figure, or a phone, wide
_MAX_POWERS = 6  # of ten, on a logarithmic axis
_MAX_NAME = 32  # letters of a line's name: a phone's width
_MAX_NAME_LETTERS = 40  # of all bars' names side by side
_BAR_HEIGHT = 22  # pixels of a bar that lies
_MIN_MATCHED_WIDTH = 560  # pixels of three tables side by side; narrower, their frame scrolls
_MATCHED_WIDTH, _MATCHED_SPACE = 0.86 / 3, 0.07  # of a table and between two, as shares of the figure
_MIN_LAGS_WIDTH = 420  # likewise of a heat map with many columns
_MIN_BARS = 4  # that a figure has room for
GREY = "#8a929b"
_TABLE_AXIS = {"showgrid": False, "zeroline": False}


def heatmap(
    matrix: Float[np.ndarray, "row column"],
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    *,
    title: str = "",
    row_title: str = "",
    column_title: str = "",
    value_title: str = "",
    diverging: bool = False,
    limits: tuple[float | int, float | int] | None = None,
    most_ticks: int = _MAX_TICKS,
) -> go.Figure:
    """A heat map with row 0 at the top; up to 64 cells in 12 columns carry their numbers.

    Args:
        matrix: the values; cells that are not finite stay empty.
        row_labels: a name for each row, "0", "1", … by default.
        column_labels: a name for each column, "0", "1", … by default.
        title: what the figure shows.
        row_title: what a row is.
        column_title: what a column is.
        value_title: what a value is, with its unit.
        diverging: values below and above zero, with zero in the middle of the colours.
        limits: the ends of the colour scale, to share one scale between figures; `(-x, x)` when diverging.
        most_ticks: of more rows or columns, every second one is named, or every fifth, and so on.

    Raises:
        ValueError: when the number of labels is not the number of rows or columns.

    Example:
        >>> import numpy as np
        >>> heatmap(np.array([[0.2, 0.8], [0.5, 0.5]]), title="P").data[0].type
        'heatmap'
    """
    rows = _names("row_labels", row_labels, matrix.shape[0])
    columns = _names("column_labels", column_labels, matrix.shape[1])
    values = np.where(np.isfinite(matrix), matrix, np.nan)
    layout = _layout(title, column_title, row_title)
    layout["xaxis"] |= _TABLE_AXIS | {"constrain": "domain"} | _ticks(columns, most_ticks)
    layout["yaxis"] |= _TABLE_AXIS | {"autorange": "reversed"} | _ticks(rows, most_ticks)
    if len(columns) > _MAX_NARROW_TICKS:
        layout["meta"] = {"least": _MIN_LAGS_WIDTH}
    low, high = limits or _limits(values[np.isfinite(values)], diverging)
    numbered = matrix.size <= _MAX_NUMBERED_CELLS and matrix.shape[1] <= _MAX_NUMBERED_COLUMNS
    gap = 1 if max(matrix.shape) <= _MAX_SEPARATED else 0  # pixels between cells
    cells = {
        "type": "heatmap",
        "z": values,
        "zmin": low,
        "zmax": high,
        "colorscale": DIVERGING if diverging else SEQUENTIAL,
        "xgap": gap,
        "ygap": gap,
        "hoverongaps": False,
        "colorbar": colorbar(value_title),
        "text": [[_cell(value) for value in row] for row in values] if numbered else None,
        "texttemplate": "%{text}" if numbered else None,
        **_hover(rows, columns),
    }
    return go.Figure([cells], layout)


def matched(
    model: Float[np.ndarray, "row column"],
    target: Float[np.ndarray, "row column"],
    labels: Sequence[str],
    *,
    row_title: str = "",
    column_title: str = "",
    value_title: str = "",
    names: tuple[str, str] = ("the model", "the target"),
    diverging: bool = False,
    row_labels: Sequence[str] | None = None,
) -> go.Figure:
    """A table of the model next to the one it should be and their difference, on one scale of colours.

    Rows and columns are called alike, unless rows have labels of their own: then cells need not be square.

    Example:
        >>> float(matched(np.eye(2), np.eye(2), ["a", "b"]).data[2].z.max())
        0.0
    """
    tables = {names[0]: model, names[1]: target, "difference": model - target}
    finite = np.concatenate([table[np.isfinite(table)] for table in tables.values()])
    signed = diverging or bool(finite.size and finite.min() < 0)
    limits = _limits(finite, signed)
    rows = labels if row_labels is None else row_labels
    ticks = _ticks(_names("labels", labels, len(labels)), _MAX_NARROW_TICKS)
    row_ticks = _ticks(_names("row_labels", rows, len(rows)), _MAX_TICKS)
    axis = _TABLE_AXIS | {"automargin": True, "constrain": "domain", **ticks}
    layout = _layout("", "", "") | {"margin": {"l": 8, "r": 8, "t": 28, "b": 8}, "annotations": []}
    layout |= {"height": 290, "meta": {"least": _MIN_MATCHED_WIDTH}}
    traces = []
    for number, (name, table) in enumerate(tables.items(), 1):
        left = (number - 1) * (_MATCHED_WIDTH + _MATCHED_SPACE)
        across = {"domain": (left, left + _MATCHED_WIDTH), "anchor": f"y{number}"}
        down: dict[str, object] = {"anchor": f"x{number}", "autorange": "reversed"}
        down |= {"scaleanchor": f"x{number}"} if row_labels is None else row_ticks
        layout[f"xaxis{number}"] = axis | across | {"title": _text(column_title)}
        layout[f"yaxis{number}"] = axis | down | {"title": _text(row_title if number == 1 else "")}
        above = {"x": left + _MATCHED_WIDTH / 2, "y": 1.0, "xanchor": "center", "yanchor": "bottom"}
        above |= {"xref": "paper", "yref": "paper", "showarrow": False, "font": {"size": 16}}
        layout["annotations"].append({"text": _text(name), **above})
        cells = heatmap(table, rows, labels, value_title=value_title, diverging=signed, limits=limits)
        place = {"xaxis": f"x{number}", "yaxis": f"y{number}", "showscale": number == 3}
        traces.append(cells.data[0].to_plotly_json() | place | {"texttemplate": None, "text": None})
    del layout["xaxis"], layout["yaxis"]
    return go.Figure(traces, layout)


def lines(
    x: Float[np.ndarray, " point"],
    series: Mapping[str, Float[np.ndarray, " _"]],
    *,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
    bands: Mapping[str, tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]] | None = None,
    references: Mapping[str, float | int] | None = None,
    log_x: bool = False,
    log_y: bool = False,
    training_steps: bool = False,
    stacked: bool = False,
    markers: bool = True,
) -> go.Figure:
    """A line for each series over `x`, told apart by colour and dash.

    Args:
        x: where the points lie.
        series: name to values; a value that is not finite leaves a gap.
        title: what the figure shows.
        x_title: what `x` is, with its unit.
        y_title: what the values are, with their unit.
        bands: name of a series, or of anything else, to the low and high end of a shaded range.
        references: name to a level, drawn as a thin line across: an exact null, an entropy.
        log_x: whether `x` is on a logarithmic scale.
        log_y: whether the values are.
        training_steps: whether `x` is training steps, which have a symlog axis.
        stacked: whether series lie on each other, as filled areas that add up.
        markers: whether the points are marked.

    Raises:
        ValueError: when a series is not as long as `x`.
    """
    traces: list[dict[str, object]] = []
    hover = {"customdata": x, "hovertemplate": "%{customdata:.7~g}: %{y:.4~g}"}
    steps, x = x, symlog(x) if training_steps else x
    colours = {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(series)}
    for name, (low, high) in (bands or {}).items():
        colour = colours.get(name, GREY)
        shared = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "legendgroup": label(name)}
        traces.append({"x": x, "y": low, "showlegend": False, **shared})
        legend = {"name": _text(label(name)), "showlegend": name not in series}
        traces.append({"x": x, "y": high, "fill": "tonexty", "fillcolor": _faint(colour), **shared, **legend})
    for index, (name, values) in enumerate(series.items()):
        if len(values) != len(x):
            raise ValueError(f"series {label(name)!r} has {len(values)} values, expected {len(x)} as x has")
        traces.append(
            {
                "x": x,
                "y": values,
                "name": _text(label(name, _MAX_NAME)),
                "legendgroup": label(name),
                "mode": "lines+markers" if markers else "lines",
                "line": {"color": colours[name], "dash": _dash(index), "width": 2},
                "marker": {"size": 5},
                "stackgroup": "all" if stacked else None,
                **(hover if training_steps else {}),
            }
        )
    traces += _references(references, float(np.min(x)), float(np.max(x)))
    layout = _layout(title, x_title, y_title)
    layout["xaxis"] |= {"type": "log" if log_x else "linear"}
    layout["xaxis"] |= symlog_ticks(np.max(steps)) if training_steps else {}
    layout["yaxis"] |= {"type": "log", "dtick": _decades(series)} if log_y else {"type": "linear"}
    named = {*series, *(references or {}), *(bands or {})}
    layout |= {"showlegend": len(named) > 1, "hovermode": "closest" if training_steps else "x unified"}
    layout |= {"meta": {"symlog": True}} if training_steps else {}
    return go.Figure([{"type": "scatter", **trace} for trace in traces], layout)


def bars(
    labels: Sequence[str],
    values: Float[np.ndarray, " bar"],
    *,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
    errors: tuple[Float[np.ndarray, " bar"], Float[np.ndarray, " bar"]] | None = None,
    references: Mapping[str, float | int] | None = None,
    lie: bool | None = None,
) -> go.Figure:
    """One bar for each label, in the order given.

    Args:
        labels: a name for each bar.
        values: the bars' lengths.
        title: what the figure shows.
        x_title: what a bar is.
        y_title: what the values are, with their unit.
        errors: the low and the high end of each bar's interval.
        references: name to a level, drawn as a thin line across.
        lie: whether the bars lie; by default where their names would not fit under them.

    Raises:
        ValueError: when the number of labels is not the number of values.
    """
    names = _names("labels", labels, len(values))
    positions = np.arange(len(values), dtype=np.float64)
    ends = {} if errors is None else {"array": errors[1] - values, "arrayminus": values - errors[0]}
    lie = sum(map(len, names)) > _MAX_NAME_LETTERS if lie is None else lie
    along, across = ("y", "x") if lie else ("x", "y")
    bar = {
        "type": "bar",
        along: positions,
        across: values,
        f"error_{across}": {"type": "data", "color": "#6b727b", **ends} if ends else None,
        "orientation": "h" if lie else "v",
        "marker": {"color": PALETTE[0]},
        "customdata": [[name] for name in names],
        "hovertemplate": f"%{{customdata[0]}}: %{{{across}:.4~g}}<extra></extra>",
        "name": _text(y_title),
        "showlegend": False,
    }
    room = max(0.0, (_MIN_BARS - len(values)) / 2)  # next to few bars, so that a single one is not a wall
    low, high = -0.5 - room, len(values) - 0.5 + room
    layout = _layout(title, *((y_title, x_title) if lie else (x_title, y_title)))
    ticks = _ticks(names, len(names) if lie else _MAX_TICKS)
    layout[f"{along}axis"] |= {"showgrid": False, "range": (high, low) if lie else (low, high), **ticks}
    if lie:
        layout["height"] = lying_height(len(values))
    return go.Figure([bar, *_references(references, low, high, lie)], layout)


def lying_height(count: int) -> int:
    """Returns how many pixels high a figure of that many lying bars is."""
    return max(_HEIGHT // 2, 90 + _BAR_HEIGHT * count)


def annotate(figure: go.Figure, x: float, y: float, text: str, size: int = 11, **look: Any) -> None:
    """A text on a figure, `size` pixels high; `look` is any further property of an annotation."""
    figure.add_annotation(
        x=x, y=y, text=text, **{"showarrow": False, "font": {"size": size}, "borderpad": 1, **look}
    )


def colorbar(title: str) -> dict[str, object]:
    """The bar next to a heat map that says which value a colour is; its title is along it."""
    return {"title": {"text": _text(title), "side": "right"}, "thickness": 12, "outlinewidth": 0}


def _layout(title: str, x_title: str, y_title: str) -> dict[str, Any]:
    axis = {"automargin": True, "ticks": "", "zeroline": False, "hoverformat": ".4~g"}
    axis |= {"gridcolor": "rgba(128,136,146,0.25)"}
    return {
        "template": "none",
        "title": {"text": _text(title), "font": {"size": 15}},
        "xaxis": {**axis, "title": {"text": _text(x_title), "standoff": 8}},
        "yaxis": {**axis, "title": {"text": _text(y_title), "standoff": 8}},
        "height": _HEIGHT,
        "margin": {"l": 8, "r": 8, "t": 44 if title else 8, "b": 8},
        "colorway": list(PALETTE),
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0.0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }


def _references(
    references: Mapping[str, float | int] | None, start: float, end: float, upright: bool = False
) -> list[dict[str, object]]:
    along, across = ("y", "x") if upright else ("x", "y")
    return [
        {
            "type": "scatter",
            along: [start, end],
            across: [level, level],
            "name": _text(label(name)),
            "mode": "lines",
            "line": {"color": GREY, "dash": DASHES[-1 - index % len(DASHES)], "width": 1.5},
        }
        for index, (name, level) in enumerate((references or {}).items())
    ]


def _dash(index: int) -> str:
    """The dash of a line: once the colours begin again, one has another dash than before."""
    return DASHES[(index + index // len(PALETTE)) % len(DASHES)]


def _decades(series: Mapping[str, Float[np.ndarray, " _"]]) -> float | str | None:
    """Powers of ten between two ticks; digits in between too where there is no more than one power."""
    values = np.concatenate([np.ravel(of) for of in series.values()] or [np.ones(1)])
    values = values[np.isfinite(values) & (values > 0)]
    span = float(np.log10(values.max() / values.min())) if values.size else 0.0
    return "D2" if span < 1 else float(np.ceil(span / _MAX_POWERS))


def _limits(finite: Float[np.ndarray, " cell"], diverging: bool) -> tuple[float, float]:
    if not finite.size:
        return -1.0, 1.0
    low, high = float(np.min(finite)), float(np.max(finite))
    if diverging:
        largest = max(-low, high) or 1.0
        return -largest, largest
    # A flat map, such as exactly uniform attention, has one colour and a scale that is not rounding noise.
    return (low, high) if high - low > 1e-9 * max(abs(low), abs(high)) else (min(0.0, low), max(1.0, high))


def _names(field: str, labels: Sequence[str] | None, count: int) -> list[str]:
    if labels is None:
        return [str(index) for index in range(count)]
    if len(labels) != count:
        raise ValueError(f"{field} has {len(labels)} names, expected {count}")
    return [_text(label(name)) for name in labels]


def _ticks(names: list[str], most: int) -> dict[str, object]:
    # Numeric positions under the labels, because two states may have one name.
    spacings = (step * 10**power for power in range(9) for step in (1, 2, 5))
    every = next(spacing for spacing in spacings if len(names) <= most * spacing)
    return {"tickmode": "array", "tickvals": list(range(0, len(names), every)), "ticktext": names[::every]}


def _cell(value: float) -> str:
    """Two decimals, and none where the number is whole: 1.00 is not quite 1."""
    if not np.isfinite(value):
        return ""
    return f"{value:.0f}" if value == round(value) else f"{value:z.2f}"


def _hover(rows: list[str], columns: list[str]) -> dict[str, object]:
    if len(rows) * len(columns) > _MAX_NAMED_CELLS:
        return {"hovertemplate": "row %{y}, column %{x}: %{z:.4~g}<extra></extra>"}
    named = [[f"{row}, {column}" for column in columns] for row in rows]
    return {"hovertext": named, "hovertemplate": "%{hovertext}: %{z:.4~g}<extra></extra>"}


def _text(words: str) -> str:
    """Words as plotly.js reads them: markup characters as entities."""
    return html.escape(words, quote=False)


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"
