"""The circuit of a model as a picture: its components from tokens to logits, and what each path is worth."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.claims.claim import Claims
from mechmarkov.models.components import head_index, split_input
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.outcome import Findings
from mechmarkov.report.figures import GREY, PALETTE, annotate
from mechmarkov.report.first_screen.circuit_layout import NUMBER_SIZE, Box, arrange, bend, free_place
from mechmarkov.report.first_screen.headline import chosen_tiles
from mechmarkov.report.first_screen.headline import named_parts as parts_of
from mechmarkov.report.first_screen.readings import MIN_EFFECT_NATS, notes
from mechmarkov.utils.text import format_number, label

MIN_SHARE = 0.02  # of the largest effect; paths below it are not drawn
MIN_COLOURED_SHARE = 0.1  # of the largest effect; below, a path is grey where its parts have a larger one
MAX_NUMBERS = 6  # next to paths, the largest
MIN_NUMBER_SHARE = 0.2  # of the largest of them
_MORE = 1.2  # times what a head is worth, from which on a path to it is called worth more
_WIDEST = 5.0  # pixels of a path
_HEAD_POINTS = 6  # of a path, under an arrow's head
# Queries, keys and values are told apart by dash as well as by colour.
_SIDES = {
    "Q": ("queries", PALETTE[3], "3px,3px"),
    "K": ("keys", PALETTE[2], "10px,4px"),
    "V": ("values", PALETTE[1], "solid"),
    "": ("output", PALETTE[0], "solid"),
}
_KNOWN_AS = {"embed": "the tokens", "pos_embed": "the positions", "logits": "the prediction"}
_NAMED: dict[str, Any] = {"bordercolor": PALETTE[1], "borderwidth": 3}
_OTHER: dict[str, Any] = {"bordercolor": GREY, "borderwidth": 1}
_CAPTION = "Rise of the loss (nats) when only that path {}. Coloured: paths of the named parts; grey: others."
_SHARPER = " A path cut by itself leaves the rest out of balance, which can cost more than losing the part."
_OF_A_STATE = " Queries, keys and values are C, B and x of the state space."
_CUT, _RESAMPLED = "is cut", "is taken from another sequence (positions: zero)"
_NO_CAPTION = "All measured paths, faintly: none is clearly worth 0.01 nats."
Key = TypeVar("Key")
NO_CIRCUIT = "No path is clearly<br>worth 0.01 nats."


def circuit_figures(results: Mapping[Key, Findings]) -> dict[Key, Figure]:
    """The circuits of those steps or runs that have one, on one scale: the largest effect of them all."""
    data = {key: result.outcomes["ablation"].data for key, result in results.items() if "ablation" in result}
    effects = {key: path_effects(worth) for key, worth in data.items() if "path_effect" in worth}
    scale = max(map(largest_effect, effects.values()), default=None)
    figures = {}
    for key, worth in effects.items():
        caption = _CAPTION.format(_RESAMPLED if is_resampled(data[key]) else _CUT)
        sharper = not is_resampled(data[key]) and _costs_more_than_its_head(results[key].claims, worth)
        caption += _SHARPER if sharper else ""
        head = results[key].claims.first("is_induction_head")
        caption += _OF_A_STATE if head is not None and head.condition("its own convolution") else ""
        caption = caption if largest_effect(worth) >= MIN_EFFECT_NATS else _NO_CAPTION
        figures[key] = Figure("The circuit", caption, "plotly", circuit(results[key], scale))
    return figures


def circuit(result: Findings, scale: float | None = None) -> go.Figure:
    """Parts and paths: a path is as wide as the loss rises (nats) when only it is cut, by `ablation`.

    The circuit that the verdict names is in colour, with arrowheads and numbers: the paths between its parts
    that are worth a tenth of the largest, and the largest of each part. Every other path is grey. A path is
    drawn where its interval excludes zero and it is worth 2 % of the largest. Where none is worth
    0.01 nats, all are drawn faintly.

    Args:
        result: The result of the probes; its last step is drawn.
        scale: What the widest path is worth (nats), the largest effect by default.

    Raises:
        KeyError: The result has no `ablation`; the error says why.
    """
    data = result["ablation"].data
    effects = path_effects(data)
    largest = largest_effect(effects)
    scale = max(largest if scale is None else scale, MIN_EFFECT_NATS)
    matters = largest >= MIN_EFFECT_NATS
    heads = parts_of(chosen_tiles(result)) if matters else ()
    names = {split_input(end)[0] for path in effects for end in path}
    texts = {name: "<br>".join(_words(result, name, heads)) for name in sorted(names)}
    boxes, width, height = arrange(texts)
    taken = list(boxes.values())
    figure = go.Figure()
    known, named_parts = certain(data), []
    reach: list[float] = []  # how far from the middle anything is drawn
    if not matters:
        corner = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "top", "align": "left"}
        figure.add_annotation(text=NO_CIRCUIT, x=0, y=1, showarrow=False, **corner)
    for what, colour, dash in _SIDES.values() if matters else ():  # one order of the legend
        look = {"width": 3, "color": colour, "dash": dash}
        figure.add_scatter(x=[None], y=[None], mode="lines", line=look, name=what, hoverinfo="skip")
    told = {
        path: effect
        for path, effect in effects.items()
        if not matters or (path in known and abs(effect) >= MIN_SHARE * largest)
    }
    of_the_circuit = {path: effect for path, effect in told.items() if _is_between(path, heads)}
    main = _main_paths(of_the_circuit, MIN_COLOURED_SHARE * largest)
    for (sender, receiver), effect in sorted(told.items(), key=lambda item: abs(item[1])):
        component, side = split_input(receiver)
        x, y = bend(boxes[sender], boxes[component], side, boxes.values())
        reach.append(float(np.abs(x).max()) + 6)
        _, colour, dash = _SIDES[side]
        size = 1 + (_WIDEST - 1) * min(1.0, abs(effect) / scale)
        ends = {sender, component} - {"embed", "pos_embed", "logits"}
        named = (sender, receiver) in main
        line = {"width": size if named else 1, "color": colour if named else GREY, "dash": dash}
        text = f"{label(sender)} → {label(receiver)}: {format_number(effect)} nats"
        row = {"sender": sender, "receiver": receiver, "nats": effect}  # for the data as CSV
        meta = {"row": row, "grey": matters and not named, "share": abs(effect) / (largest or 1.0)}
        shown = {"showlegend": False, "hoverinfo": "text", "text": text}
        figure.add_scatter(x=x, y=y, mode="lines", line=line, meta=meta, **shown)
        if named:
            _arrowhead(figure, x, y, boxes[component], colour, size)
            named_parts.append((x, y, effect, len(ends) == 2))
    lines = [(x, y) for x, y, *_ in named_parts]
    least = MIN_NUMBER_SHARE * max((abs(effect) for *_, effect, _ in named_parts), default=0.0)
    # A path from one named part to another is what makes them a circuit: its number comes first.
    order = sorted(named_parts, key=lambda path: (not path[3], -abs(path[2])))
    numbered = [path for path in order if abs(path[2]) >= least][:MAX_NUMBERS]
    for x, y, effect, _ in numbered:
        place = free_place(x, y, f"{effect:.2g}", taken, lines)
        if place is not None:
            point, box = place
            taken.append(box)
            shift = box.x - x[point]  # in pixels on every screen: the number stays at its path
            annotate(figure, x[point], box.y, f"{effect:.2g}", NUMBER_SIZE, xshift=shift, bgcolor="#ffffff")
    for name, box in boxes.items():
        look = {**(_NAMED if name in heads else _OTHER), "borderpad": 4, "bgcolor": "#ffffff"}
        clickable = head_index(name) is not None
        annotate(figure, box.x, box.y, texts[name], 12, name=name, captureevents=clickable, **look)
    reach += [abs(box.x) + box.width / 2 + 2 for box in taken]  # numbers next to paths among them
    width = max(width, 2 * max(reach))
    figure.update_layout(
        height=height + 10,
        margin={"l": 0, "r": 0, "t": 0, "b": 10},
        xaxis={"visible": False, "range": [-width / 2, width / 2], "fixedrange": True},
        yaxis={"visible": False, "range": [0, height], "fixedrange": True},
        legend={"y": 1, "yanchor": "top", "x": 1, "xanchor": "right", "bgcolor": "rgba(0,0,0,0)"},
        hovermode="closest",
        meta={"least": width},  # pixels in which no component lies on another
        showlegend=matters,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure


def _arrowhead(figure: go.Figure, x: np.ndarray, y: np.ndarray, box: Box, colour: str, size: float) -> None:
    """An arrow's head where a path enters a component's box."""
    inside = (np.abs(x - box.x) < box.width / 2 + 3) & (np.abs(y - box.y) < box.height / 2 + 5)
    tip = max(1, int(np.argmax(inside)) - 1)
    start = max(0, tip - _HEAD_POINTS)
    place = {"x": x[tip], "y": y[tip], "ax": x[start], "ay": y[start], "axref": "x", "ayref": "y"}
    width = max(1.5, min(size, 3.0))
    figure.add_annotation(text="", arrowhead=2, arrowcolor=colour, arrowwidth=width, **place)


def _is_between(path: tuple[str, str], named: Sequence[str]) -> bool:
    """Returns whether a path has no other ends than named parts, what is embedded and the logits."""
    ends = {split_input(end)[0] for end in path} - {"embed", "pos_embed", "logits"}
    return ends <= {*named} if ends else "direct" in named and path[0] == "embed"


def _main_paths(effects: Mapping[tuple[str, str], float], least: float) -> set[tuple[str, str]]:
    """Returns the paths that are worth that much, and the largest out of each part and into it."""
    main = {path for path, effect in effects.items() if abs(effect) >= least}
    for end in (0, 1):
        by_part: dict[str, tuple[str, str]] = {}
        for path in sorted(effects, key=lambda path: abs(effects[path])):
            by_part[split_input(path[end])[0]] = path
        main |= set(by_part.values())
    return main


def _costs_more_than_its_head(claims: Claims, effects: Mapping[tuple[str, str], float]) -> bool:
    """Returns whether some path of a part is clearly worth more than all of the part."""
    whole = {claim.subject[0]: claim.value or 0.0 for claim in claims.where("is_needed")}
    ends = [(split_input(end)[0], effect) for path, effect in effects.items() for end in path]
    return any(part in whole and effect > max(_MORE * whole[part], MIN_EFFECT_NATS) for part, effect in ends)


def largest_effect(effects: Mapping[tuple[str, str], float]) -> float:
    """The largest effect of one path on the loss, in size (nats): the scale of the drawn widths; 0 of none.

    >>> largest_effect({("embed", "L0H0.V"): 0.25, ("L0H0", "logits"): -0.5})
    0.5
    """
    return max((abs(effect) for effect in effects.values()), default=0.0)


def certain(data: xr.Dataset) -> set[tuple[str, str]]:
    """The paths whose interval excludes zero; all of them where no interval was measured."""
    if "path_effect_low" not in data:
        return set(path_effects(data))
    low, high = path_effects(data, "path_effect_low"), path_effects(data, "path_effect_high")
    return {path for path in low if low[path] > 0 or high[path] < 0}


def path_effects(data: xr.Dataset, name: str = "path_effect") -> dict[tuple[str, str], float]:
    """Returns the rise of the last step's loss (nats) with one path at its mean, or zero if it has none.

    Of a model trained on scores, which are nobody's at a mean, with another sequence's output in it.
    """
    now = data[name][-1].sel(measure="loss").transpose("path_kind", "path")
    values = np.full(data.sizes["path"], np.nan)
    for kind in ("zero", "resample") if is_resampled(data) else ("zero", "mean"):
        if kind in now["path_kind"].values:
            of_kind = now.sel(path_kind=kind).values
            values = np.where(np.isfinite(of_kind), of_kind, values)
    ends = zip(map(str, data["sender"].values), map(str, data["receiver"].values), strict=True)
    return {path: value for path, value in zip(ends, values.tolist(), strict=True) if np.isfinite(value)}


def is_resampled(data: xr.Dataset) -> bool:
    """Returns whether paths are drawn by what another sequence's output in them costs."""
    on_scores = data.attrs.get("objective", "cross_entropy") != "cross_entropy"
    if not on_scores or "resample" not in data["path_kind"].values:
        return False
    return bool(np.isfinite(data["path_effect"][-1].sel(path_kind="resample")).any())


def _words(result: Findings, name: str, named: Sequence[str]) -> list[str]:
    known = [_KNOWN_AS[name]] if name in _KNOWN_AS else []
    return [f"<b>{label(name)}</b>", *known, *notes(result.claims, name, named)]
