"""A probe as the report's template wants it: its figures as data, at every step where there are several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.outcome import Outcome
from mechmarkov.report.payload import figure_data, script_json
from mechmarkov.report.scales import share_scales
from mechmarkov.utils import text

MOST_STEPS = 14  # of a trajectory, spread over it: every one of them is every figure once more
OVER_TRAINING = ("step", "training step")  # the titles of an x axis that is the training itself


@dataclass(frozen=True)
class FigureCard:
    """A figure as the template wants it; `json` is the data that the renderer reads.

    `moves` says that the slider moves it: to another step, or a mark along an axis that is the training.
    """

    id: str
    title: str
    caption: str
    kind: str
    heads: list[str]
    sequences: int
    moves: bool
    note: str
    json: Markup


@dataclass(frozen=True)
class ProbeCard:
    """A probe as the template wants it; `problem` says why figures are missing, where they are."""

    name: str
    outcome: Outcome
    figures: list[FigureCard]
    problem: str


def shown_steps(steps: Sequence[int]) -> list[int]:
    """Indices of the steps that the slider offers, first and last among them; none for a single step.

    >>> shown_steps([0, 10, 20]), shown_steps([50]), len(shown_steps(range(1000)))
    ([0, 1, 2], [], 14)
    """
    if len(steps) < 2:
        return []
    return np.unique(np.linspace(0, len(steps) - 1, MOST_STEPS).round().astype(int)).tolist()


def probe_card(number: int, name: str, outcome: Outcome, steps: Sequence[int]) -> ProbeCard:
    """The card of a probe; one that fails to draw says so, and the report is otherwise whole."""
    shown = shown_steps(steps) if outcome.data.sizes.get("step") == len(steps) else []
    try:
        figures = outcome.figures()
        at_step = [outcome.probe.figures(outcome.data.isel(step=[i])) for i in shown]
        cards = []
        for i, figure in enumerate(figures, 1):
            marks = step_marks(figure, steps, shown)
            moving = [same for drawn in at_step for same in drawn if same.title == figure.title]
            # What is drawn over training is not there at a single step, and has the step marked instead.
            moving = [] if marks or len(moving) != len(shown) else moving
            cards.append(figure_card(f"figure-{number}-{i}", figure, moving, marks))
    except Exception as error:
        return ProbeCard(name, outcome, [], f"{type(error).__name__}: {error}")
    return ProbeCard(name, outcome, cards, "")


def step_marks(figure: Figure, steps: Sequence[int], shown: Sequence[int]) -> list[float]:
    """Where on a figure's x axis the shown steps lie; none where that axis is not the training.

    A heat map has a column for each step, and the steps' places are their columns.
    """
    content = figure.content
    if isinstance(content, AttentionView) or content.layout.xaxis.title.text not in OVER_TRAINING:
        return []
    if any(trace.type == "heatmap" for trace in content.data):
        return [float(i) for i in shown]
    return [float(steps[i]) for i in shown]


def figure_card(
    name: str, figure: Figure, moving: Sequence[Figure] = (), marks: Sequence[float] = ()
) -> FigureCard:
    """The card of a figure, of the same at each step of the slider, or of one with each step's mark on it."""
    share_scales([each.content for each in moving])
    drawn = [figure_data(each) for each in moving or [figure]]
    data: dict[str, Any] = {"kind": figure.kind, "at_step": drawn} if moving else drawn[0]
    if marks:
        data["marks"] = list(marks)
    heads: list[str] = []
    sequences, note = 1, ""
    if isinstance(figure.content, AttentionView):
        views = [view for each in drawn for view in (each, *each.get("others", ()))]
        data["strongest"] = max(view["strongest"] for view in views)
        heads, sequences = views[0]["heads"], 1 + len(figure.content.others)
        note = f"The strongest colour is {text.format_number(data['strongest'])}."
        if len(views[0]["tokens"]) < views[0]["positions"]:
            note += f" The last {len(views[0]['tokens'])} of {views[0]['positions']} positions are shown."
    return FigureCard(
        id=name,
        title=figure.title,
        caption=figure.caption,
        kind=figure.kind,
        heads=heads,
        sequences=sequences,
        moves=bool(moving or marks),
        note=note,
        json=Markup(script_json(data)),
    )
