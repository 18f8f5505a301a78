"""Figures that several probes draw: values over training, a table over states, a value for each head."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from jaxtyping import Float, Int

from mechmarkov.probing.figure import Figure
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import GREY, heatmap, lines
from mechmarkov.utils.text import words

BOUNDED = ("score", "share", "probability", "cosine", "accuracy", "progress")  # what lies between 0 and 1


def over_training(
    title: str,
    caption: str,
    data: xr.Dataset,
    series: Mapping[str, np.ndarray],
    y_title: str,
    *,
    score: str = "",
    **options: Any,
) -> list[Figure]:
    """Lines over the training steps; no figure where `data` is of fewer than two steps.

    Args:
        title: The title of the figure.
        caption: What to read from it.
        data: The data of a run at its probed steps.
        series: Name to values `[step]`.
        y_title: What the values are, with their unit.
        score: The score that the values are, for its null.
        options: Further ones of `report.figures.lines`.
    """
    if data.sizes.get("step", 1) < 2:
        return []
    steps = data["step"].values.astype(float)
    figure = lines(steps, series, x_title="step", y_title=y_title, training_steps=True, **options)
    bounded = all(np.nanmin(v, initial=0) >= 0 and np.nanmax(v, initial=0) <= 1 for v in series.values())
    linear = figure.layout.yaxis.type == "linear"
    if linear and bounded and any(word in y_title for word in BOUNDED):
        figure.update_yaxes(range=[0, 1.02])
    return [Figure(title, caption, "plotly", figure, score=score)]


def with_null(figure: Figure, scores: Mapping[str, Score]) -> Figure:
    """A figure with the null of its score across: a band over null models, a line where it is exact."""
    score = scores.get(figure.score)
    if score is None or score.null is None or not isinstance(figure.content, go.Figure):
        return figure
    low, middle, high = score.null if isinstance(score.null, tuple) else (score.null,) * 3
    drawn = go.Figure(figure.content)
    if drawn.layout.yaxis.range is None:  # a null far away does not squeeze the curves
        values = np.concatenate([np.ravel(np.asarray(t.y, float)) for t in drawn.data if t.y is not None])
        lowest, highest = (float(end(values, initial=0.0)) for end in (np.nanmin, np.nanmax))
        room = 0.05 * (highest - lowest) or 1.0
        drawn.update_yaxes(range=[lowest - room, highest + room])
    shown = {"name": f"null of {words(figure.score)}", "showlegend": True, "layer": "below"}
    if low == high:
        drawn.add_hline(middle, line={"color": GREY, "width": 1.5, "dash": "dot"}, **shown)
    else:
        drawn.add_hrect(low, high, fillcolor=GREY, opacity=0.35, line_width=0, **shown)
    return replace(figure, content=drawn.update_layout(showlegend=True))


def fitted_target(
    table: Float[np.ndarray, "state_from state_to"],
    target: Float[np.ndarray, "state_from state_to"],
    aim: str,
) -> tuple[Float[np.ndarray, "state_from state_to"], str]:
    """A target at the scale that fits a table best, and what to say of it; as it is next to a table of zeros.

    Args:
        table: The table of the model, centred.
        target: What it should be up to scale, centred likewise.
        aim: The target's name.

    >>> fitted_target(2 * np.eye(2), np.eye(2), "P")[1], fitted_target(np.zeros((2, 2)), np.eye(2), "P")[1]
    ('The target is 2 times P, the scale that fits best.', 'The model says the same of every state.')
    """
    if not table.any():
        return target, "The model says the same of every state."
    scale = float((table * target).sum() / ((target**2).sum() or 1.0))
    return scale * target, f"The target is {scale:.3g} times {aim}, the scale that fits best."


def lag_heatmap(
    mass: Float[np.ndarray, "head lag"], heads: Sequence[str], lags: Int[np.ndarray, " lag"], value_title: str
) -> go.Figure:
    """Returns what each head gives each lag, between 0 and 1."""
    return heatmap(
        mass,
        heads,
        [str(lag) for lag in lags],
        row_title="head",
        column_title="lag",
        value_title=value_title,
        limits=(0, 1),
    )
