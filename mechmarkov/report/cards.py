"""A probe as the report's template wants it: its figures as data, at every step where there are several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.notebook import MAX_TEXT
from mechmarkov.probing.outcome import Outcome
from mechmarkov.probing.score import standing
from mechmarkov.report.attention_scale import FLAT_LOG2, LOG2_DARKEST, multiples, shown_end
from mechmarkov.report.payload import figure_data, script_json
from mechmarkov.report.probe_figures import with_null
from mechmarkov.report.scales import share_scales
from mechmarkov.report.symlog import is_symlog, symlog
from mechmarkov.utils import text

HEADLINE_SCORES = 3  # rows that stand open; the others are folded
FLAT_NOTE = " Here no key gets visibly more than uniform attention."
MAX_TITLE = 300  # letters
FIGURE_HEIGHT, ATTENTION_HEIGHT = 360, 520  # pixels, before it is drawn
OVER_TRAINING = ("step", "training step")  # the titles of an x axis that is the training itself


@dataclass(frozen=True)
class FigureCard:
    """A figure as the template wants it; `json` is the data that the renderer reads.

    `outlined` says that thumbnails outline what an ideal head reads.
    `moves` says that the slider moves it: to another step, or a mark along an axis that is the training.
    `height` is kept free for it until it is drawn, in pixels.
    """

    id: str
    title: str
    caption: str
    kind: str
    heads: list[str]
    sequences: int
    outlined: bool
    moves: bool
    height: int
    json: Markup


@dataclass(frozen=True)
class ProbeCard:
    """A probe as the template wants it; `problem` says why figures are missing, where they are."""

    name: str
    outcome: Outcome
    figures: list[FigureCard]
    problem: str

    @property
    def stands(self) -> Literal["outside", "within", "unknown"]:
        """Returns whether one of the three headline scores is outside its null, or all with one within."""
        first = list(self.outcome.scores.values())[:HEADLINE_SCORES]
        known = [stands for score in first if (stands := standing(score))]
        if not known:
            return "unknown"
        return "within" if set(known) == {"within"} else "outside"


def probe_figures(number: int, outcome: Outcome, steps: Sequence[int]) -> tuple[list[FigureCard], str]:
    """The figures of a probe; of one that fails to draw none, and why: the report is otherwise whole.

    A figure drawn over training stays and has the slider's step marked. Any other moves with the slider,
    bound by its key; where a step has no figure of that key, the page says so.
    """
    shown = range(len(steps)) if 1 < len(steps) == outcome.data.sizes.get("step") else []
    try:
        figures = {figure.key: with_null(figure, outcome.scores) for figure in outcome.figures()}
        at_step = [{figure.key: figure for figure in outcome.figures(i)} for i in shown]
        keys = dict.fromkeys([*figures, *(key for drawn in at_step for key in drawn)])
        cards = []
        for i, key in enumerate(keys, 1):
            moving = [drawn.get(key) for drawn in at_step]
            figure = figures.get(key) or next(one for one in reversed(moving) if one is not None)
            marks = step_marks(figure, steps, shown) if key in figures else []
            moves = not marks and any(moving)
            cards.append(figure_card(f"figure-{number}-{i}", figure, moving if moves else (), marks))
    except Exception as error:  # a probe from anywhere may fail to draw; the page is otherwise whole
        return [], text.error_line(error)
    return cards, ""


def step_marks(figure: Figure, steps: Sequence[int], shown: Sequence[int]) -> list[float]:
    """Returns where on a figure's x axis the shown steps lie; none where that axis is not the training.

    A heat map has a column for each step, and the steps' places are their columns. Lines may be on a symlog
    axis.
    """
    content = figure.content
    if isinstance(content, AttentionView) or content.layout.xaxis.title.text not in OVER_TRAINING:
        return []
    if any(trace.type == "heatmap" for trace in content.data):
        return [float(i) for i in shown]
    places = [float(steps[i]) for i in shown]
    return symlog(np.array(places)).tolist() if is_symlog(content) else places


def figure_card(
    name: str,
    figure: Figure,
    moving: Sequence[Figure | None] = (),
    marks: Sequence[float | tuple[int, int, int]] = (),
) -> FigureCard:
    """The card of a figure, of one at each step of the slider (None where a step has none), or with marks.

    A mark is a place along the x axis, or a cell as panel, column and row.
    """
    share_scales([each.content for each in moving if each is not None])
    at_step = [None if each is None else _with_words(each) for each in moving]
    if all(each == at_step[0] for each in at_step):  # the same at every step: nothing moves
        at_step, moving = [], ()
    data: dict[str, Any] = {"kind": figure.kind, "at_step": at_step} if moving else _with_words(figure)
    if marks:
        data["marks"] = list(marks)
    heads, sequences, outlined, caption = [], 1, False, figure.caption
    if not isinstance(figure.content, AttentionView):
        height = int(figure.content.layout.height or FIGURE_HEIGHT)
    else:
        height = ATTENTION_HEIGHT
        drawn = [each for each in at_step or [data] if each is not None]
        views = [view for each in drawn for view in (each, *each.get("others", ()))]
        data["darkest"] = LOG2_DARKEST
        heads, sequences = views[0]["heads"], 1 + len(figure.content.others)
        note = f" White is uniform attention or less, the darkest {2**LOG2_DARKEST:g} times uniform or more."
        if outlined := "ideal" in views[0]:
            note += " The small pictures outline what an ideal head reads. "
            note += "CircuitsVis draws the large one and has no outlines."
        note += shown_end(len(views[0]["tokens"]), views[0]["positions"])
        caption += note + FLAT_NOTE * is_flat(figure.content)
        for each, view in zip(drawn, [one.content for one in moving if one] or [figure.content], strict=True):
            each["caption"] += note + FLAT_NOTE * is_flat(view)
    json, moves = Markup(script_json(data)), bool(moving or marks)
    return FigureCard(
        name, figure.title, caption, figure.kind, heads, sequences, outlined, moves, height, json
    )


def is_flat(view: AttentionView) -> bool:
    """Returns whether no head gives any key visibly more than uniform attention does."""
    return bool(multiples(view.patterns, view.n_keys or len(view.tokens)).max(initial=0.0) < FLAT_LOG2)


def _with_words(figure: Figure) -> dict[str, Any]:
    """A figure's data, and its title and caption, which may name what is shown at only one step."""
    title, caption = text.clean(figure.title), text.clean(figure.caption)
    words = {"title": text.shorten(title, MAX_TITLE), "caption": text.shorten(caption, MAX_TEXT)}
    return figure_data(figure) | words
