"""The circuit of a model as a picture: its components from tokens to logits, and what each path is worth."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.models.components import head_index, split_input
from mechmarkov.probing.outcome import Findings
from mechmarkov.report.circuit_layout import NUMBER_SIZE, arrange, bend, free_place
from mechmarkov.report.figures import PALETTE
from mechmarkov.utils.text import format_number, label

MIN_SHARE = 0.02  # of the largest effect; paths below it are not drawn
MIN_EFFECT_NATS = 0.01  # where no path is worth more, all are drawn faintly: there is no circuit
_WIDEST = 7.0  # pixels of a path
# Queries, keys and values are told apart by dash as well as by colour.
_SIDES = {
    "": ("added to the residual stream", PALETTE[0], "solid"),
    "V": ("read as values", PALETTE[1], "solid"),
    "K": ("read as keys", PALETTE[2], "10px,4px"),
    "Q": ("read as queries", PALETTE[3], "3px,3px"),
}
_KNOWN_AS = {"embed": "the tokens", "pos_embed": "the positions", "logits": "the prediction"}
_FAINT = {"width": 1, "color": "#8a929b"}


def circuit(result: Findings, at: int = -1) -> go.Figure:
    """Parts and paths: a path is as wide as the loss rises (nats) when it alone is cut, by `ablation`.

    A part carries its share of the bigram (`storage`, Shapley) and a head the lag that it attends to most
    (`attention`), where these were asked. Paths worth less than 2 % of the largest are left out; where none
    is worth 0.01 nats, all are drawn faintly.

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
    names = {split_input(end)[0] for path in effects for end in path}
    texts = {name: "<br>".join(_words(result, name, at)) for name in sorted(names)}
    boxes, width, height = arrange(texts)
    taken = list(boxes.values())
    figure = go.Figure()
    named: set[str] = set()
    for (sender, receiver), effect in sorted(effects.items(), key=lambda item: -abs(item[1])):
        if matters and abs(effect) < MIN_SHARE * largest:
            continue
        component, side = split_input(receiver)
        x, y = bend(boxes[sender], boxes[component], side)
        what, colour, dash = _SIDES[side]
        size = 1 + (_WIDEST - 1) * min(1.0, abs(effect) / scale)
        line = {"width": size, "color": colour, "dash": dash} if matters else _FAINT
        group = what if matters else "worth nothing"
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line=line,
            name=group,
            legendgroup=group,
            showlegend=group not in named,
            hoverinfo="text",
            text=f"{label(sender)} → {label(receiver)}: {format_number(effect)} nats",
            meta={"row": {"sender": sender, "receiver": receiver, "nats": effect}},  # for the data as CSV
        )
        named.add(group)
        place = free_place(x, y, f"{effect:.2g}", taken) if matters else None
        if place is not None:
            taken.append(place)
            _write(figure, place.x, place.y, f"{effect:.2g}", size=NUMBER_SIZE)
    for name, box in boxes.items():
        _write(figure, box.x, box.y, texts[name], bordercolor=PALETTE[0], borderpad=4)
    figure.update_layout(
        height=height + 70,
        margin={"l": 0, "r": 0, "t": 0, "b": 70},
        xaxis={"visible": False, "range": [-width / 2, width / 2], "fixedrange": True},
        yaxis={"visible": False, "range": [0, height], "fixedrange": True},
        legend={"orientation": "h", "y": 0, "yanchor": "top", "x": 0.5, "xanchor": "center"},
        hovermode="closest",
        meta={"least": width},  # pixels in which no component lies on another
        showlegend=True,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure


def _write(figure: go.Figure, x: float, y: float, text: str, size: int = 12, **box: object) -> None:
    look = {"showarrow": False, "font": {"size": size}, "bgcolor": "#ffffff", "borderpad": 1, **box}
    figure.add_annotation(x=x, y=y, text=text, **look)


def _largest(effects: Mapping[tuple[str, str], float]) -> float:
    return max((abs(effect) for effect in effects.values()), default=0.0)


def path_effects(data: xr.Dataset, at: int = -1) -> dict[tuple[str, str], float]:
    """How much the loss rises (nats) with one path at its mean, or at zero where it has no mean."""
    now = data["path_effect"][at].sel(measure="loss")
    kinds = [kind for kind in ("mean", "zero") if kind in now["path_kind"].values]
    found = {}
    for i, (sender, receiver) in enumerate(zip(data["sender"].values, data["receiver"].values, strict=True)):
        values = [float(now.sel(path_kind=kind)[i]) for kind in kinds]
        finite = [value for value in values if np.isfinite(value)]
        if finite:
            found[str(sender), str(receiver)] = finite[0]
    return found


def part_notes(result: Findings, name: str, at: int = -1) -> list[str]:
    """What is known of a part: its share of the bigram, the lag a head attends to."""
    notes = []
    share = _share(result, name, at)
    if share is not None and share >= MIN_SHARE:
        notes.append(f"{share:.0%} of the bigram")
    head = head_index(name)
    if head is not None and "attention" in result.outcomes:
        mass = result.outcomes["attention"].data["lag_mass"][at][head]
        if np.isfinite(mass.values).any():
            best = mass[int(np.nanargmax(mass.values))]
            notes.append(f"{float(best):.0%} at lag {int(best['lag'])}")
    return notes


def _share(result: Findings, name: str, at: int) -> float | None:
    """A component's share of the bigram; None where there is none, or no path is said to hold it."""
    storage = result.outcomes.get("storage")
    if storage is None:
        return None
    if at == -1:
        score = storage.scores.get(f"share_{name}")
        return score.value if score is not None and isinstance(score.value, float) else None
    if "share" not in storage.data or name not in storage.data["path"].values:
        return None
    share = float(storage.data["share"][at].sel(path=name))
    return share if np.isfinite(share) else None


def _words(result: Findings, name: str, at: int) -> list[str]:
    known = [_KNOWN_AS[name]] if name in _KNOWN_AS else []
    return [f"<b>{label(name)}</b>", *known, *part_notes(result, name, at)]
