"""The picture of a sweep over one field: a score against it, its mean and interval over seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
from scipy.special import stdtrit

from mechmarkov.report.figures import GREY, lines
from mechmarkov.sweeps.phase import cells_of, leaf, value_name
from mechmarkov.sweeps.spec import Phase, SweepError
from mechmarkov.theory.bootstrap import standard_error, wilson
from mechmarkov.utils.text import clean, near_misses, words

USUAL = ("behaviour.excess_loss", "final_loss")  # the first that has numbers; not every law has a best loss
LEGEND = "dots are runs; line and band: mean and 95 % interval over seeds (Student's t, Wilson's for a share)"
FROM_ONE_TO_LOG = 30.0  # times between the smallest and the largest value of a field


def score_of(table: pa.Table, phase: Phase) -> str:
    """Returns which column is drawn: that of the phase, or the loss above the best, or the last of training.

    Raises:
        SweepError: It is not a column of numbers or of true and false.

    Example:
        >>> score_of(pa.table({"p": [0.1], "final_loss": [0.5]}), Phase(x="p"))
        'final_loss'
    """
    drawable = [field.name for field in table.schema if _is_drawable(table[field.name])]
    if phase.score is None:
        return next((name for name in USUAL if name in drawable), "stuck")
    if phase.score not in drawable:
        misses = near_misses(phase.score, drawable)
        raise SweepError(
            f"phase.score is {phase.score!r}, expected a column with numbers{misses} (the table is written)"
        )
    return phase.score


def heading(table: pa.Table, phase: Phase) -> str:
    """Returns the heading of the picture.

    Example:
        >>> heading(pa.table({"source.p": [0.1], "final_loss": [0.5]}), Phase(x="source.p"))
        'Final loss over p'
    """
    return f"{_named(score_of(table, phase))} over {clean(leaf(phase.x))}"


def positions(table: pa.Table, phase: Phase) -> list[float]:
    """Returns where each cell of `cells_of` lies across: the field's number, or its place among its values.

    Example:
        >>> positions(pa.table({"p": [0.4, 0.1]}), Phase(x="p"))
        [0.4, 0.1]
        >>> positions(pa.table({"p": ["b", "a"]}), Phase(x="p"))
        [0.0, 1.0]
    """
    cells = [x for _, _, x in cells_of(table, phase)]
    if _are_numbers(cells):
        return [float(x) for x in cells]
    places = list(dict.fromkeys(cells))
    return [float(places.index(x)) for x in cells]


def figure(table: pa.Table, phase: Phase) -> go.Figure:
    """A line over the field, one for each value of the facet; runs are dots, seeds make the band.

    Args:
        table: A sweep's table.
        phase: Its `x`, `facet` and `score`; `y` is None.

    Raises:
        SweepError: As of `score_of`.

    Example:
        >>> runs = pa.table({"p": [0.1, 0.1, 0.2], "final_loss": [1.0, 3.0, 5.0]})
        >>> [float(y) for trace in figure(runs, Phase(x="p")).data for y in trace.y if "+" in trace.mode]
        [2.0, 5.0]
    """
    name = score_of(table, phase)
    values, is_share = table[name].to_pylist(), pa.types.is_boolean(table.schema.field(name).type)
    cells, at = cells_of(table, phase), positions(table, phase)
    across = np.array(sorted(set(at)))
    facets = list(dict.fromkeys(facet for facet, _, _ in cells))
    series, bands, numbers = {}, {}, {}
    dots: list[tuple[float, float, int]] = []
    for facet in facets:
        key = "mean" if phase.facet is None else f"{leaf(phase.facet)} = {facet}"
        means, low, high = (np.full(len(across), np.nan) for _ in range(3))
        numbers[key] = np.full(len(across), -1)
        for number, ((own, _, _), rows) in enumerate(cells.items()):
            known = [float(values[row]) for row in rows if values[row] is not None]
            if own != facet or not known:
                continue
            place = int(np.searchsorted(across, at[number]))
            means[place], numbers[key][place] = np.mean(known), number
            low[place], high[place] = _interval(known, is_share)
            dots += [(at[number], value, number) for value in known if not is_share]
        series[key], bands[key] = means, (low, high)
    unit = (table.schema.field(name).metadata or {}).get(b"unit", b"").decode()
    numeric = [x for x in across if x > 0] if _are_numbers([x for _, _, x in cells]) else []
    log_x = bool(len(numeric) == len(across) and across[-1] >= FROM_ONE_TO_LOG * across[0])
    y_title = f"{_named(name)} ({clean(unit)})" if unit else _named(name)
    drawn = lines(across, series, x_title=clean(leaf(phase.x)), y_title=y_title, bands=bands, log_x=log_x)
    for trace in drawn.data:
        if trace.name in numbers and trace.mode == "lines+markers":  # and not the band of that name
            trace.customdata = numbers[trace.name]
    if dots:
        x, y, cell = zip(*dots, strict=True)
        look: dict[str, Any] = {"mode": "markers", "marker": {"color": GREY, "size": 5, "opacity": 0.6}}
        drawn.add_scatter(x=x, y=y, customdata=cell, name="a run", hoverinfo="skip", showlegend=True, **look)
    if not numeric:
        names = {place: value_name(x) for place, (_, _, x) in zip(at, cells, strict=True)}
        drawn.update_xaxes(tickmode="array", tickvals=across, ticktext=[names[place] for place in across])
    return drawn


def _interval(values: Sequence[float], is_share: bool) -> tuple[float, float]:
    """The ends of the 95 % interval of a mean over seeds; NaN for one seed, which has none."""
    n, mean = len(values), float(np.mean(values))
    if is_share:
        return wilson(mean, n)
    if n < 2:
        return np.nan, np.nan
    half = float(stdtrit(n - 1, 0.975) * standard_error(np.array(values)))  # Student's t: seeds are few
    return mean - half, mean + half


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)


def _is_drawable(column: pa.ChunkedArray) -> bool:
    kind = column.type
    numbers = pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_integer(kind)
    return numbers and column.null_count < len(column)


def _named(score: str) -> str:
    return words(leaf(score))
