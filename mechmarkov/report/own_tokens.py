"""The panel of a sequence of one's own: laws side by side, attention, logit lens, patches."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from mechmarkov.models.components import head_name
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.report.cards import FigureCard, figure_card
from mechmarkov.report.figures import heatmap, lines, matched
from mechmarkov.utils.text import counted, format_number, label, words

MAX_ROWS = 200  # of the table; it shows the end of what is longer
MAX_TOLD = 3  # states of a law
ROW = 16  # pixels of a heat map's position
MOST_HEIGHT = 1200


@dataclass(frozen=True)
class Row:
    """A position of the table: what is read there, what follows, and what model and source say of it."""

    position: int
    token: str
    following: str
    model: str
    law: str
    divergence: str


@dataclass(frozen=True)
class Panel:
    """The panel as the template shows it; `changes` name the states to change, one at each step."""

    figures: list[FigureCard]
    rows: list[Row]
    left_out: int
    law: str
    without: str
    changes: list[str]


def panel(data: xr.Dataset, *, moving: bool = True) -> Panel:
    """The figures and the table of a sequence; with `moving` a patch for each state that is changed."""
    best = data.attrs["best"]
    places = [f"{i}: {label(str(token))}" for i, token in enumerate(data["token"].values)]
    order = np.argsort(-np.abs(_clean(data) - data["corrupted"].values), kind="stable")
    patches = [_patch(data, places, int(i)) for i in order]
    figures = [figure_card("own-laws", _laws(data, places, best))]
    if data.sizes["read"] > 1:
        figures.append(figure_card("own-divergence", _divergence(data)))
    if "attention" in data:
        figures.append(figure_card("own-attention", _attention(data, places)))
    figures.append(figure_card("own-lens", _lens(data, places)))
    figures.append(figure_card("own-patch", patches[0], patches if moving and len(patches) > 1 else ()))
    without = "" if "attention" in data else "No layer has attention weights, so that none are shown."
    why = data.attrs["why_not_best"]
    law = data.attrs["best_in_words"] + (f" (of the best possible: {why})" if why else "")
    rows = table(data)
    changes = [_change(data, int(i)) for i in order] if moving else []
    return Panel(figures, rows[-MAX_ROWS:], max(0, len(rows) - MAX_ROWS), law, without, changes)


def table(data: xr.Dataset) -> list[Row]:
    """Returns what model and source say after each position that is read, the likeliest states first."""
    best = data.attrs["best"]
    tokens, laws = [str(token) for token in data["token"].values], data["law"].sel(predictor=best).values
    states = [label(str(state)) for state in data["state"].values]
    far = data["divergence"].sel(predictor=best).values
    rows = []
    for number, position in enumerate(data["read_position"].values.tolist()):
        following = tokens[position + 1] if position + 1 < len(tokens) else ""
        model, law = (_told(of[number], states) for of in (data["model"].values, laws))
        divergence = format_number(float(far[number]), 3)
        rows.append(Row(position, tokens[position], following, model, law, divergence))
    return rows


def _clean(data: xr.Dataset) -> float:
    """The probability of the state that is most likely at the end of the unchanged sequence."""
    return float(data["clean"].values[_target(data)])


def _target(data: xr.Dataset) -> int:
    return int(data["target"].values[0])


def _change(data: xr.Dataset, i: int) -> str:
    """Returns which state is put where, and how the probability at the end changes with it."""
    position = int(data["changed"].values[i])
    here = label(str(data["token"].values[position]))
    to = label(str(data["state"].values[int(data["changed_to"].values[i])]))
    before, after = format_number(_clean(data), 2), format_number(float(data["corrupted"].values[i]), 2)
    return f"At position {position}, {to} instead of {here}: probability {before} to {after}"


def _laws(data: xr.Dataset, places: list[str], best: str) -> Figure:
    read = [places[int(i)] for i in data["read_position"].values]
    states = [str(state) for state in data["state"].values]
    law = data["law"].sel(predictor=best).values
    drawn = matched(
        data["model"].values,
        law,
        states,
        row_labels=read,
        row_title="after position",
        column_title="next state",
        value_title="probability",
        names=("the model", "the source"),
    )
    drawn.update_layout(height=min(MOST_HEIGHT, 250 + ROW * len(read)))
    said = f"Probability of the next state. The source: {data.attrs['best_in_words']}."
    return Figure("What comes next: the model and its source", said, "plotly", drawn)


def _divergence(data: xr.Dataset) -> Figure:
    series = {
        words(str(name)): data["divergence"].sel(predictor=name).values for name in data["predictor"].values
    }
    positions = data["read_position"].values.astype(float)
    drawn = lines(positions, series, x_title="position", y_title="KL from law to model (nats)")
    said = "KL from each exact law to the model's prediction, on this sequence. 0 is equal."
    return Figure("Which law the model follows, position by position", said, "plotly", drawn)


def _attention(data: xr.Dataset, places: list[str]) -> Figure:
    patterns = data["attention"].values
    heads = [
        head_name(int(layer), head) for layer in data["layer"].values for head in range(patterns.shape[1])
    ]
    tokens = [str(token) for token in data["token"].values]
    view = AttentionView(tokens, patterns.reshape(-1, len(places), len(places)), heads)
    said = "Rows attend, columns are attended to; hover for the number."
    return Figure("Where each head looks", said, "attention", view)


def _depths(data: xr.Dataset) -> list[str]:
    return ["embedding", *(f"after layer {depth - 1}" for depth in data["depth"].values[1:])]


def _lens(data: xr.Dataset, places: list[str]) -> Figure:
    """By position where there are several: how far each depth is from the final prediction."""
    lens = data["lens"].values
    said = "Each depth of the residual stream through the last norm, if there is one, and the unembedding. "
    if data.sizes["read"] == 1:
        states = [str(state) for state in data["state"].values]
        drawn = heatmap(
            lens[:, 0],
            _depths(data),
            states,
            column_title="next state",
            value_title="probability",
            limits=(0, 1),
        )
        return Figure("Logit lens", said + "Colour: its probability of the next state.", "plotly", drawn)
    read = data["read_position"].values
    final = data["model"].values.argmax(-1)
    held = np.take_along_axis(lens, np.broadcast_to(final[None, :, None], (len(lens), len(read), 1)), -1)[
        ..., 0
    ]
    drawn = heatmap(
        held,
        _depths(data),
        [places[int(i)] for i in read],
        column_title="position",
        value_title="probability",
        limits=(0, 1),
    )
    top = data["state"].values[lens.argmax(-1)]
    hover = [
        [f"{depth}, {places[int(i)]}: most likely {label(str(top[d, j]))}" for j, i in enumerate(read)]
        for d, depth in enumerate(_depths(data))
    ]
    drawn.update_traces(
        hovertext=hover, hovertemplate="%{hovertext}; the model's final state %{z:.4~g}<extra></extra>"
    )
    said += "Colour: its probability of the state that the model finally holds most likely."
    return Figure("Logit lens", said, "plotly", drawn)


def _patch(data: xr.Dataset, places: list[str], i: int) -> Figure:
    clean, corrupted = _clean(data), float(data["corrupted"].values[i])
    target = label(str(data["state"].values[_target(data)]))
    drawn = heatmap(
        data["patched"].values[i],
        _depths(data),
        places,
        column_title="position of the patch",
        value_title=f"probability of {target}",
        limits=(min(clean, corrupted), max(clean, corrupted)) if clean != corrupted else (0, 1),
    )
    said = (
        f"{_change(data, i)}, of {target} after the end. A cell: the same with the residual stream of the "
        "unchanged sequence put in at one depth and position."
    )
    return Figure("A patch of one position", said, "plotly", drawn, key="patch")


def _told(law: np.ndarray, states: list[str]) -> str:
    """The likeliest states of a law with their probabilities, and how many are left out."""
    order = np.argsort(-law, kind="stable")[:MAX_TOLD]
    more = f" and {counted(len(law) - MAX_TOLD, 'other')}" if len(law) > MAX_TOLD else ""
    return ", ".join(f"{states[i]}: {law[i]:.3f}" for i in order) + more
