"""The circuit of a model as a picture: its parts from tokens to logits, and what each path is worth."""

import re
from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.probing.results import Result
from mechmarkov.report.figures import PALETTE
from mechmarkov.report.text import format_number, label

LEAST_SHARE = 0.02  # of the largest effect; paths below it are not drawn
WIDEST = 9.0
_PART = re.compile(r"L(\d+)(?:H(\d+)|\.mlp)$")
# Queries, keys and values are told apart by dash as well as by colour.
_SIDES = {
    "": ("what is added to the stream", PALETTE[0], "solid"),
    "V": ("into values", PALETTE[1], "solid"),
    "K": ("into keys", PALETTE[2], "dash"),
    "Q": ("into queries", PALETTE[3], "dot"),
}


def circuit(result: Result) -> go.Figure:
    """Parts and paths: a path is as wide as the loss rises (nats) when it alone is cut, by `ablation`.

    A part carries its share of the bigram (`storage`, Shapley) and a head the lag that it attends to most
    (`attention`), where these were asked. Paths worth less than 2 % of the largest are left out.

    Raises:
        KeyError: The result has no `ablation`; the error says why.
    """
    effects = path_effects(result["ablation"].data)
    places = _places({end.split(".")[0] if "H" in end else end for path in effects for end in path})
    largest = max((abs(effect) for effect in effects.values()), default=0.0)
    figure = go.Figure()
    named: set[str] = set()
    for (sender, receiver), effect in sorted(effects.items(), key=lambda item: -abs(item[1])):
        if abs(effect) >= LEAST_SHARE * largest > 0:
            side = receiver.rsplit(".", 1)[1] if "H" in receiver else ""
            width = 1 + (WIDEST - 1) * abs(effect) / largest
            _draw_path(figure, places, (sender, receiver), side, effect, width, legend=side not in named)
            named.add(side)
    figure.add_scatter(
        x=[place[0] for place in places.values()],
        y=[place[1] for place in places.values()],
        mode="markers",
        marker={"size": 16, "color": PALETTE[5], "line": {"width": 2, "color": PALETTE[0]}},
        hoverinfo="skip",
        showlegend=False,
    )
    for name, (x, y) in places.items():
        text = "<br>".join([f"<b>{label(name)}</b>", *part_notes(result, name)])
        figure.add_annotation(x=x, y=y, text=text, showarrow=False, yanchor="bottom", yshift=10)
    across = max(place[1] for place in places.values())
    lowest = min(place[1] for place in places.values())
    figure.update_layout(
        height=int(150 + 95 * (across - lowest + 1)),
        margin={"l": 20, "r": 20, "t": 30, "b": 20},
        xaxis={"visible": False, "range": [-0.6, max(place[0] for place in places.values()) + 0.6]},
        yaxis={"visible": False, "range": [lowest - 0.6, across + 0.9]},
        legend={"orientation": "h", "y": -0.02},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure


def path_effects(data: xr.Dataset) -> dict[tuple[str, str], float]:
    """How much the loss rises (nats) with one path at its mean, or at zero where it has no mean."""
    now = data["path_effect"].isel({str(data["path_effect"].dims[0]): -1}).sel(measure="loss")
    kinds = [kind for kind in ("mean", "zero") if kind in now["path_kind"].values]
    found = {}
    for i, (sender, receiver) in enumerate(zip(data["sender"].values, data["receiver"].values, strict=True)):
        values = [float(now.sel(path_kind=kind)[i]) for kind in kinds]
        finite = [value for value in values if np.isfinite(value)]
        if finite:
            found[str(sender), str(receiver)] = finite[0]
    return found


def part_notes(result: Result, name: str) -> list[str]:
    """What is known of a part: its share of the bigram, the lag a head attends to."""
    notes = []
    if "storage" in result.outcomes:
        share = result.outcomes["storage"].scores.get(f"share_{name}")
        if share is not None and isinstance(share.value, float) and share.value >= LEAST_SHARE:
            notes.append(f"{share.value:.0%} of the bigram")
    head = _PART.match(name)
    if head and head[2] and "attention" in result.outcomes:
        data = result.outcomes["attention"].data
        mass = data["lag_mass"].isel({str(data["lag_mass"].dims[0]): -1})[int(head[1]), int(head[2])]
        lag = int(np.nanargmax(mass.values))
        notes.append(f"{float(mass[lag]):.0%} at lag {int(mass['lag'][lag])}")
    return notes


def _places(names: set[str]) -> Mapping[str, tuple[float, float]]:
    """Where each part is drawn: layers from left to right, heads side by side, MLPs behind them."""
    parts = {name: match for name in sorted(names) if (match := _PART.match(name))}
    heads = max((int(match[2]) for match in parts.values() if match[2]), default=0) + 1
    middle = (heads - 1) / 2
    mlps = 1 if any(not match[2] for match in parts.values()) else 0
    layers = max((int(match[1]) for match in parts.values()), default=-1) + 1
    places = {"embed": (0.0, middle - 0.5), "pos_embed": (0.0, middle + 0.5)}
    for name, match in parts.items():
        x = 1 + int(match[1]) * (1 + mlps)
        # Parts of two layers are not drawn on one line: a path past a part would hide behind it.
        lift = 0.35 * (int(match[1]) % 2)
        places[name] = (x, int(match[2]) + lift) if match[2] else (x + 1.0, middle - 0.8 + lift)
    places["logits"] = (1.0 + layers * (1 + mlps), middle)
    return {name: place for name, place in places.items() if name in names}


def _draw_path(
    figure: go.Figure,
    places: Mapping[str, tuple[float, float]],
    path: tuple[str, str],
    side: str,
    effect: float,
    width: float,
    *,
    legend: bool,
) -> None:
    sender, receiver = path
    what, colour, dash = _SIDES[side]
    start, end = places[sender], places[receiver.rsplit(".", 1)[0] if side else receiver]
    # Paths between the same two parts bow apart, and one past a layer goes round it.
    bow = {"": 0.0, "V": 0.0, "K": -0.2, "Q": 0.2}[side] - (0.45 if end[0] - start[0] > 1.5 else 0.0)
    half = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + bow)
    figure.add_scatter(
        x=[start[0], half[0], end[0]],
        y=[start[1], half[1], end[1]],
        mode="lines",
        line={"width": width, "color": colour, "dash": dash, "shape": "spline"},
        name=what,
        legendgroup=side,
        showlegend=legend,
        hoverinfo="text",
        text=f"{label(sender)} → {label(receiver)}: {format_number(effect)} nats",
    )
    figure.add_annotation(
        x=half[0],
        y=half[1],
        text=f"{effect:.2g}",
        showarrow=False,
        yanchor="top",
        yshift=-6 if bow < 0 else 0,
    )
