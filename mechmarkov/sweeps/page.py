"""The sweep's page: its picture and, for each cell, the runs behind it with their learning curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa

from mechmarkov.probing.figure import Figure
from mechmarkov.report.cards import figure_card
from mechmarkov.report.figures import lines
from mechmarkov.report.html import fill, write_page
from mechmarkov.report.words.grids import of_sweep
from mechmarkov.sweeps import curve
from mechmarkov.sweeps.phase import MAX_REASON, cell_names, cells_of, happened, headings, places, undecided
from mechmarkov.sweeps.spec import Phase
from mechmarkov.utils.text import format_number, label

MAX_RUNS_LISTED = 16  # of a cell
MAX_RUNS_DRAWN = 4000  # of the page: 50 points each are 4 MB

Curve = Mapping[str, Sequence[int] | Sequence[float]]


@dataclass(frozen=True)
class RunLine:
    """A run of a cell, as the template wants it.

    Attributes:
        name: Its seed and, where others of the cell have that seed too, its number.
        key: The key of its row in the sweep's table.
        event: Whether the diagram's event happened: yes, no, or undecided and why.
        loss: The last in training; how the run ended where there is none.
        report: Its report's address from the page; empty where there is none.
        kept: Whether its run file is there.
    """

    name: str
    key: str
    event: str
    loss: str
    report: str
    kept: bool


@dataclass(frozen=True)
class CellRuns:
    """The runs behind a cell of the phase diagram; `more` are not listed."""

    name: str
    runs: list[RunLine]
    more: int


def write(
    picture: go.Figure,
    table: pa.Table,
    phase: Phase,
    path: Path,
    curves: Mapping[str, Curve],
    levels: Mapping[str, Mapping[str, float]],
    *,
    name: str = "",
) -> None:
    """Write the page in the report's style, whole or not at all.

    Args:
        picture: The phase diagram of the table, or a score over one field.
        table: One row a run (`mechmarkov.sweeps.table.table`).
        phase: What the diagram shows.
        path: The page; reports and runs are looked for in the folder `runs` next to it.
        curves: The `step` and `loss` of a run by its key, for those that have them.
        levels: The losses of exact predictors by a run's key, by name, in nats.
        name: The sweep's title.
    """
    title, caption = headings(phase, name)
    if phase.y is None:
        title, caption = curve.heading(table, phase), f"{name} · {curve.LEGEND}" if name else curve.LEGEND
    where = cells_of(table, phase)
    cells = []
    for name, rows in zip(cell_names(list(where), phase), where.values(), strict=True):
        listed = _runs(table.take(rows[:MAX_RUNS_LISTED]), phase, path.parent)
        cells.append(CellRuns(name, listed, len(rows) - len(listed)))
    few = table.num_rows <= MAX_RUNS_DRAWN
    drawn = [_curves(cell, curves, levels) for cell in cells] if few else []
    of_two = phase.y is not None
    diagram = Figure("Phase diagram" if of_two else title, caption, "plotly", picture)
    marks = places(list(where)) if of_two else curve.positions(table, phase)
    cards = [figure_card("figure-phase", diagram, marks=marks)]
    known = [figure for figure in drawn if figure is not None]
    if known:
        _share_range([figure.content for figure in known])
        cards.append(figure_card("figure-curves", known[0], drawn))
    came = happened(table, phase.event)
    conclusion = of_sweep(phase.event, [[came[row] for row in rows] for rows in where.values()])
    content: dict[str, Any] = {
        "conclusion": conclusion,
        "cards": cards,
        "cells": cells,
        "event": phase.event,
        "most": 0 if few else MAX_RUNS_DRAWN,
        "clicked": "a cell of the diagram" if of_two else "a point of the line",
    }
    write_page(lambda: fill("sweep.html.j2", cards, steps=range(len(cells)), title=title, **content), path)


def _runs(listed: pa.Table, phase: Phase, folder: Path) -> list[RunLine]:
    words = {True: "yes", False: "no"}
    rows = listed.to_pylist()
    several = len({row["seed"] for row in rows}) < len(rows)
    runs = []
    events = zip(rows, happened(listed, phase.event), undecided(listed, phase.event), strict=True)
    for number, (row, event, why) in enumerate(events, 1):
        report, loss = f"runs/{row['key']}/report.html", row.get("final_loss")
        runs.append(
            RunLine(
                name=f"run {number}, seed {row['seed']}" if several else f"seed {row['seed']}",
                key=row["key"],
                event="undecided" + (f": {label(why, MAX_REASON)}" if why else "")
                if event is None
                else words[event],
                loss=row["status"] if loss is None else format_number(loss),
                report=report if (folder / report).is_file() else "",
                kept=(folder / "runs" / f"{row['key']}.pt").is_file(),
            )
        )
    return runs


def _curves(
    cell: CellRuns, curves: Mapping[str, Curve], levels: Mapping[str, Mapping[str, float]]
) -> Figure | None:
    """A line for each run of a cell that has a curve; None where no run has one."""
    known = {run: curves[run.key] for run in cell.runs if run.key in curves}
    if not known:
        return None
    # The runs of a cell may differ in how long they trained.
    steps = np.unique([float(step) for curve in known.values() for step in curve["step"]])
    series = {
        run.name: np.interp(steps, curve["step"], curve["loss"], left=np.nan, right=np.nan)
        for run, curve in known.items()
    }
    exact = [dict(levels.get(run.key, {})) for run in known]
    are_alike = all(each == exact[0] for each in exact)
    drawn = lines(
        steps,
        series,
        x_title="training step",
        y_title="training loss",
        references=exact[0] if are_alike else {},
        training_steps=True,
        markers=False,
    )
    caption = "Mean training loss since the point before."
    if cell.more:
        caption += f" The first {len(cell.runs)} runs."
    caption += " Grey: exact predictors." if are_alike else " Sources differ, and with them exact predictors."
    return Figure(f"Learning curves at {cell.name}", caption, "plotly", drawn)


def _share_range(drawn: Sequence[go.Figure]) -> None:
    """One y axis for all cells, which need not begin at zero."""
    values = np.concatenate([np.asarray(trace.y, dtype=float) for figure in drawn for trace in figure.data])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = 0.05 * (high - low) or 0.1
    for figure in drawn:
        figure.update_yaxes(range=[low - room, high + room])
