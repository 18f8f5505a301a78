"""The learning curve: loss over training between the exact predictors' losses, events in their places."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from mechmarkov.claims.claim import Claim
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.outcome import Findings
from mechmarkov.report.figures import DASHES, GREY, PALETTE, annotate, lines
from mechmarkov.report.first_screen.readings import came, closest_laws, course, drawn_losses, losses_of
from mechmarkov.report.symlog import symlog, symlog_ticks
from mechmarkov.report.words.came import was_there, what_came
from mechmarkov.report.words.names import bare_law, event
from mechmarkov.utils.text import format_number, listed

_HEIGHT = 290  # pixels
_MIN_BAND = 0.12  # of the axis; a narrower band has no room for its name
_MIN_UPRIGHT = 0.04  # likewise; in a wider one the name stands upright
_ROW = 0.057  # of the axis' height: a line of text; nearer levels share one text
_LETTER = 6.0  # pixels of a letter
_LEVEL_LETTERS = 19  # of a row of a law's name
_EVENT_LETTERS = 21  # of a row of an event's name
_PLOTS = np.array([(190, 250), (520, 250), (1056, 250)])  # pixels between the axes: phone, 1280, 1920
_HEADROOM = 0.35  # of the way from the best loss to the uniform's, above the latter


def learning_curve(result: Findings) -> Figure | None:
    """Loss in nats at each probed step, or how often the model is right; None without losses.

    With one step it is a point between the lines of the exact predictors. `course` says which is drawn.
    """
    behaviour = losses_of(result)
    if behaviour is None:
        return None
    data, drawn = behaviour.data, course(behaviour)
    steps, values, known = data["step"].values.astype(float), drawn.values, drawn.levels
    laws = dict.fromkeys(["uniform", data.attrs["unigram"], data.attrs["bigram"]])
    levels = {bare_law(name): known[name] for name in laws if name in known}
    best = bare_law(data.attrs["best"]) if "best" in data.attrs else ""
    levels = {name: level for name, level in levels.items() if name != best}
    levels[f"{best} (best)" if best else "best"] = known["best"]
    low, high = min(*levels.values(), float(values.min())), max(*levels.values(), float(values[-1]))
    if drawn.of_loss:  # a loss far above the laws' at the start would flatten the rest
        high = max(high, min(float(values.max()), high + _HEADROOM * (high - low)))
    room = 0.08 * (high - low) or 0.1
    y_title = "loss (nats)" if drawn.of_loss else "right predictions"
    figure = lines(steps, {"loss": values}, x_title="training step", y_title=y_title, training_steps=True)
    figure.update_traces(line={"width": 3}, marker={"size": 7}, name="loss" if drawn.of_loss else y_title)
    end = float(symlog(steps[-1])) or 1.0
    for level in levels.values():
        figure.add_hline(level, line={"color": GREY, "width": 1, "dash": "dash"})
    for names, level in _joined(levels, _ROW * (high - low + 2 * room)):
        annotate(figure, 1.0, level, names, xref="paper", xanchor="left", xshift=4, align="left")
    if len(steps) > 1:
        # By KL, which a loss on scores does not lower: next to accuracies it would look like a contradiction.
        bands = closest_laws(result) if drawn.of_loss else []
        _add_bands(figure, steps, bands)
        heads = [claim for claim in came(result) if claim.relation == "came_by" and not was_there(claim)]
        _add_events(figure, heads, steps, values, [*levels.values()], low - room, high + 2.2 * room)
    else:
        at = float(symlog(steps[-1]))
        place = {"xanchor": "right" if at else "left", "yanchor": "bottom", "yshift": 6}
        annotate(figure, at, float(values[-1]), "this model", 13, **place)
        figure.update_xaxes(visible=False)
    ticks = symlog_ticks(steps[-1])
    figure.update_xaxes(range=[-0.02 * end, 1.02 * end], title=None, fixedrange=True, showgrid=False, **ticks)
    figure.update_yaxes(range=[low - room, high + 2.2 * room], fixedrange=True, showgrid=False)
    if not drawn.of_loss:
        figure.update_yaxes(tickformat=".0%")
    margin = {"l": 8, "r": 122, "t": 34, "b": 8}  # at the top are the names of what is shaded
    figure.update_layout(height=_HEIGHT, margin=margin, showlegend=False, dragmode=False)
    what = "Cross-entropy of the predictions" if drawn.of_loss else "How often the likeliest state is next"
    caption = f"{what}. Dashed: exact predictors."
    if len(steps) > 1:
        caption += " Shaded: the closest by KL, up to the next probed step." if bands else ""
        n_phases = len(result.claims.where("passed", probe="dynamics"))
        caption += " Unshaded: open." if drawn.of_loss and len(bands) < n_phases else ""
        caption += " Arrows: a head is halfway to an ideal one." if heads else ""
        caption += " Upright: the slider's step. Steps: symlog."
    if float(values.max()) > high + room:
        caption += f" It begins at {format_number(float(values[0]))} nats."
    what = "loss" if drawn.of_loss else "accuracy"
    title = f"{what.capitalize()} over training" if len(steps) > 1 else f"Where the {what} stands"
    return Figure(title, caption, "plotly", figure)


def overlaid_curves(results: Mapping[str, Findings]) -> Figure | None:
    """The loss above the best possible of several runs; None where under two have losses, or all are points.

    The unigram is dotted in the run's colour: runs may have different sources.
    """
    figure, n_drawn = None, 0
    for name, result in results.items():
        behaviour = losses_of(result)
        if behaviour is None:
            continue
        data, (loss, known) = behaviour.data, drawn_losses(behaviour)
        steps, colour = data["step"].values.astype(float), PALETTE[n_drawn % len(PALETTE)]
        excess = {name: loss - known["best"]}
        drawn = lines(
            steps, excess, x_title="training step", y_title="nats above the best", training_steps=True
        )
        drawn.update_traces(line={"color": colour, "dash": DASHES[n_drawn % len(DASHES)]}, showlegend=True)
        figure = drawn if figure is None else figure.add_traces(drawn.data)
        unigram = known[data.attrs["unigram"]] - known["best"]
        figure.add_hline(unigram, line={"color": colour, "width": 1, "dash": "dot"})
        n_drawn += 1
    if figure is None or n_drawn < 2 or all(len(result.steps) < 2 for result in results.values()):
        return None
    last = max(float(np.max(result.steps)) for result in results.values())
    figure.update_layout(showlegend=True).update_xaxes(**symlog_ticks(last)).update_yaxes(rangemode="tozero")
    caption = "Cross-entropy above the best possible. Dotted: the unigram, in its run's colour."
    return Figure("Loss over training, overlaid", caption, "plotly", figure)


def _joined(levels: Mapping[str, float], row: float) -> list[tuple[str, float]]:
    """Levels from the lowest, under one name where names of rows this high would lie on each other."""
    groups: list[list[tuple[str, float]]] = []
    for name, level in sorted(levels.items(), key=lambda item: item[1]):
        rows = [(text, level) for text in wrap(name, _LEVEL_LETTERS)]
        if groups and level - np.mean([at for _, at in groups[-1]]) < row * (len(groups[-1]) + len(rows)) / 2:
            groups[-1] = rows + groups[-1]
        else:
            groups.append(rows)
    texts = ["<br>".join(name for name, _ in group) for group in groups]
    means = [float(np.mean([level for _, level in group])) for group in groups]
    return list(zip(texts, means, strict=True))


def _add_bands(figure: go.Figure, steps: np.ndarray, laws: Sequence[tuple[Claim, float]]) -> None:
    """Shade from the first step at which a law is clearly the closest until another one is."""
    start, end = float(symlog(steps[0])), float(symlog(steps[-1]))
    colours = {name: at for at, name in enumerate(dict.fromkeys(claim.object for claim, _ in laws))}
    free = -np.inf  # where names above the plot end, in pixels of a phone
    for claim, stop in laws:
        left = float(symlog(claim.value or 0.0))
        right = float(symlog(stop)) if np.isfinite(stop) else 1.1 * end
        colour = PALETTE[colours[claim.object] % len(PALETTE)]
        figure.add_vrect(left, right, fillcolor=colour, opacity=0.13, line_width=0, layer="below")
        middle, width = (left + min(right, end)) / 2, (min(right, end) - left) / (end - start)
        name = what_came(claim)
        rows = name.split(" ")  # for a phone's width
        half = _LETTER * max(map(len, rows)) / 2
        at = (middle - start) / (end - start) * float(_PLOTS[0][0])
        if width > _MIN_BAND and at - half > free:
            free = at + half
            annotate(figure, middle, 1.0, "<br>".join(rows), yref="paper", yanchor="bottom")
        elif width > _MIN_UPRIGHT:
            annotate(figure, middle, 0.99, name, yref="paper", yanchor="top", textangle=-90)


def _add_events(
    figure: go.Figure,
    came: Sequence[Claim],
    steps: np.ndarray,
    loss: np.ndarray,
    levels: Sequence[float],
    bottom: float,
    top: float,
) -> None:
    """Name each head near its place on the curve, off the lines; those of one step share their arrow."""
    if not came:
        return
    at = np.linspace(0, 1, 200)
    drawn = np.minimum(np.interp(at * symlog(steps[-1]), symlog(steps), loss), top)
    curve = np.stack([at, (top - drawn) / (top - bottom)], axis=-1)
    along = at[::8]  # a text on a line of a law is less bad than one on the curve
    lines = [np.stack([along, 0 * along + (top - level) / (top - bottom)], axis=-1) for level in levels]
    taken = [np.concatenate([curve, *lines]) * plot for plot in _PLOTS]
    for step, group in groupby(came, key=lambda claim: claim.value or 0.0):
        rows = wrap(listed([event(head.object[0], head) for head in group]), _EVENT_LETTERS)
        tip = curve[int(np.abs(at * symlog(steps[-1]) - symlog(step)).argmin())]
        size = np.array([6.5 * max(map(len, rows)), 15.0 * len(rows)])
        offset = _free_place(tip, size, taken)
        box = _box(offset, size)
        taken = [np.concatenate([old, tip * plot + box]) for old, plot in zip(taken, _PLOTS, strict=True)]
        figure.add_annotation(
            x=float(symlog(step)),
            y=float(min(np.interp(step, steps, loss), top)),
            text="<br>".join(rows),
            arrowhead=2,
            arrowcolor=GREY,
            ax=float(offset[0]),
            ay=float(offset[1]),
            font={"size": 11},
            bgcolor="#ffffff",  # over the lines
        )


def _box(centre: Float[np.ndarray, "2"], size: Float[np.ndarray, "2"]) -> Float[np.ndarray, "point 2"]:
    grid = np.stack(np.meshgrid(np.linspace(-0.5, 0.5, 9), np.linspace(-0.5, 0.5, 5)), axis=-1)
    return centre + grid.reshape(-1, 2) * size


def _free_place(
    tip: Float[np.ndarray, "2"], size: Float[np.ndarray, "2"], taken: list[Float[np.ndarray, "point 2"]]
) -> Float[np.ndarray, "2"]:
    """Returns where a text of this size covers the fewest taken points, in pixels from its arrow's tip.

    The tip is a share of the plot's width and height; points are pixels, for each of `_PLOTS`.
    """

    def cost(offset: Float[np.ndarray, "2"]) -> int:
        covered = outside = 0
        for points, plot in zip(taken, _PLOTS, strict=True):
            centre = tip * plot + offset
            covered += int((np.abs(points - centre) < size / 2 + 2).all(-1).sum())
            box = _box(centre, size)
            outside += int(((box < 0) | (box > plot)).sum())
        return covered + 5 * outside

    sides = np.array([(-1, 1), (1, -1), (0, 1), (-1, 0.3), (0, -1), (1, 1), (-1, -1)])
    return min((side * (size / 2 + gap) for gap in (14, 30, 50) for side in sides), key=cost)
