"""A probe as the report's template wants it: its figures as data, at every step where there are several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from mechmarkov.probing.results import AttentionView, Figure, Outcome
from mechmarkov.report import text
from mechmarkov.report.payload import figure_data, script_json
from mechmarkov.report.scales import share_scales

MOST_STEPS = 16  # of a trajectory, spread over it: every one of them is every figure once more


@dataclass(frozen=True)
class FigureCard:
    """A figure as the template wants it; `json` is the data that the renderer reads."""

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
    ([0, 1, 2], [], 16)
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
            moving = [same for drawn in at_step for same in drawn if same.title == figure.title]
            # What is drawn over training is not there at a single step.
            moving = moving if len(moving) == len(shown) else []
            cards.append(figure_card(f"figure-{number}-{i}", figure, moving))
    except Exception as error:
        return ProbeCard(name, outcome, [], f"{type(error).__name__}: {error}")
    return ProbeCard(name, outcome, cards, "")


def figure_card(name: str, figure: Figure, moving: Sequence[Figure] = ()) -> FigureCard:
    """The card of a figure, or of the same at each step of the slider."""
    share_scales([each.content for each in moving])
    drawn = [figure_data(each) for each in moving or [figure]]
    data: dict[str, Any] = {"kind": figure.kind, "at_step": drawn} if moving else drawn[0]
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
        moves=bool(moving),
        note=note,
        json=Markup(script_json(data)),
    )
