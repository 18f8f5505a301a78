"""The circuit of a model as a picture: its components from tokens to logits, and what each path is worth."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.models.components import head_index, split_input
from mechmarkov.probing.outcome import Findings
from mechmarkov.report.circuit_layout import NUMBER_SIZE, Box, arrange, bend, free_place
from mechmarkov.report.figures import GREY, PALETTE
from mechmarkov.report.headline import at_step, named_heads, notes
from mechmarkov.utils.text import format_number, label

MIN_SHARE = 0.02  # of the largest effect; paths below it are not drawn
MIN_EFFECT_NATS = 0.01  # where no path is worth more, all are drawn faintly: there is no circuit
_WIDEST = 7.0  # pixels of a path
# Queries, keys and values are told apart by dash as well as by colour.
_SIDES = {
    "Q": ("queries", PALETTE[3], "3px,3px"),
    "K": ("keys", PALETTE[2], "10px,4px"),
    "V": ("values", PALETTE[1], "solid"),
    "": ("output", PALETTE[0], "solid"),
}
_KNOWN_AS = {"embed": "the tokens", "pos_embed": "the positions", "logits": "the prediction"}
_FAINT = {"width": 1, "color": GREY}
NO_CIRCUIT = "No path is worth 0.01 nats: there is no circuit."


def circuit(result: Findings, at: int = -1) -> go.Figure:
    """Parts and paths: a path is as wide as the loss rises (nats) when it alone is cut, by `ablation`.

    The circuit that the verdict names is in colour, with arrowheads and numbers; every other path is grey. A path
    is drawn where its interval excludes zero and it is worth 2 % of the largest. Where none is worth 0.01 nats,
    all are drawn faintly.

    Args:
        result: Of the probes.
        at: Which of its steps; widths are on the last step's scale.

    Raises:
        KeyError: The result has no `ablation`; the error says why.
    """
    data = result["ablation"].data
    effects = path_effects(data, at)
    largest = _largest(effects)
    scale = max(largest if at == -1 else _largest(path_effects(data)), MIN_EFFECT_NATS)
    matters = largest >= MIN_EFFECT_NATS
    now = result if at == -1 else at_step(result, at)
    heads = named_heads(now) if matters else []
    names = {split_input(end)[0] for path in effects for end in path}
    texts = {name: "<br>".join(_words(now, name)) for name in sorted(names)}
    boxes, width, height = arrange(texts)
    taken = list(boxes.values())
    figure = go.Figure()
    known = certain(data, at)
    if not matters:
        figure.add_annotation(text=NO_CIRCUIT, x=0.5, y=0.0, xref="paper", yref="paper", yanchor="top", showarrow=False)
    for side, (what, colour, dash) in _SIDES.items():  # one order of the legend, whatever is drawn
        if matters:
            look = {"width": 3, "color": colour, "dash": dash}
            figure.add_scatter(x=[None], y=[None], mode="lines", line=look, name=what, hoverinfo="skip")
    for (sender, receiver), effect in sorted(effects.items(), key=lambda item: abs(item[1])):
        if matters and ((sender, receiver) not in known or abs(effect) < MIN_SHARE * largest):
            continue
        component, side = split_input(receiver)
        x, y = bend(boxes[sender], boxes[component], side)
        what, colour, dash = _SIDES[side]
        size = 1 + (_WIDEST - 1) * min(1.0, abs(effect) / scale)
        ends = {sender, component} - {"embed", "pos_embed", "logits"}
        named = bool(ends) and ends <= set(heads)
        line = {"width": size, "color": colour, "dash": dash} if named else {**_FAINT, "dash": dash}
        row = {"sender": sender, "receiver": receiver, "nats": effect}  # for the data as CSV
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line=line,
            showlegend=False,
            hoverinfo="text",
            text=f"{label(sender)} → {label(receiver)}: {format_number(effect)} nats",
            meta={"row": row, "grey": matters and not named, "share": abs(effect) / (largest or 1.0)},
        )
        if not named:
            continue
        _arrowhead(figure, x, y, boxes[component], colour, size)
        place = free_place(x, y, f"{effect:.2g}", taken)
        if place is not None:
            taken.append(place)
            _write(figure, place.x, place.y, f"{effect:.2g}", size=NUMBER_SIZE)
    for name, box in boxes.items():
        look = {"bordercolor": PALETTE[1] if name in heads else GREY, "borderwidth": 3 if name in heads else 1}
        _write(figure, box.x, box.y, texts[name], borderpad=4, captureevents=head_index(name) is not None, **look)
        figure.layout.annotations[-1].name = name
    figure.update_layout(
        height=height + 56,
        margin={"l": 0, "r": 0, "t": 0, "b": 56},
        xaxis={"visible": False, "range": [-width / 2, width / 2], "fixedrange": True},
        yaxis={"visible": False, "range": [0, height], "fixedrange": True},
        legend={"orientation": "h", "y": 0, "yanchor": "top", "x": 0.5, "xanchor": "center"},
        hovermode="closest",
        meta={"least": width},  # pixels in which no component lies on another
        showlegend=matters,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure


def _write(figure: go.Figure, x: float, y: float, text: str, size: int = 12, **box: object) -> None:
    look = {"showarrow": False, "font": {"size": size}, "bgcolor": "#ffffff", "borderpad": 1, **box}
    figure.add_annotation(x=x, y=y, text=text, **look)


def _arrowhead(figure: go.Figure, x: np.ndarray, y: np.ndarray, box: Box, colour: str, size: float) -> None:
    """An arrow's head where a path enters a component's box."""
    inside = (np.abs(x - box.x) < box.width / 2 + 4) & (np.abs(y - box.y) < box.height / 2 + 4)
    tip = max(1, int(np.argmax(inside)))
    figure.add_annotation(
        x=x[tip],
        y=y[tip],
        ax=x[tip - 1],
        ay=y[tip - 1],
        axref="x",
        ayref="y",
        text="",
        arrowhead=2,
        arrowcolor=colour,
        arrowwidth=max(1.5, min(size, 3.0)),
        arrowsize=1.2,
    )


def _largest(effects: Mapping[tuple[str, str], float]) -> float:
    return max((abs(effect) for effect in effects.values()), default=0.0)


def certain(data: xr.Dataset, at: int = -1) -> set[tuple[str, str]]:
    """The paths whose interval excludes zero; all of them where no interval was measured."""
    everything = set(path_effects(data, at))
    if "path_effect_low" not in data:
        return everything
    low, high = path_effects(data, at, "path_effect_low"), path_effects(data, at, "path_effect_high")
    return {path for path in everything if low.get(path, 0.0) > 0 or high.get(path, 0.0) < 0}


def path_effects(
    data: xr.Dataset, at: int = -1, name: str = "path_effect"
) -> dict[tuple[str, str], float]:
    """How much the loss rises (nats) with one path at its mean, or at zero where it has no mean."""
    now = data[name][at].sel(measure="loss")
    kinds = [kind for kind in ("mean", "zero") if kind in now["path_kind"].values]
    found = {}
    for i, (sender, receiver) in enumerate(zip(data["sender"].values, data["receiver"].values, strict=True)):
        values = [float(now.sel(path_kind=kind)[i]) for kind in kinds]
        finite = [value for value in values if np.isfinite(value)]
        if finite:
            found[str(sender), str(receiver)] = finite[0]
    return found


def _words(result: Findings, name: str) -> list[str]:
    known = [_KNOWN_AS[name]] if name in _KNOWN_AS else []
    return [f"<b>{label(name)}</b>", *known, *notes(result, name)]
