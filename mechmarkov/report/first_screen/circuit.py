"""The circuit of a model as a picture: its components from tokens to logits, and what each path is worth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


ENDS = {"embed", "pos_embed", "logits"}  # of all paths: what is embedded, and what is predicted
Path = tuple[str, str]  # sender and receiver, such as ("L0H1", "L1H0.K")


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A path as it is drawn.

    Attributes:
        sender: The component that it leaves.
        receiver: The component that it enters, with the input of a head, such as "L1H0.K".
        effect: The rise of the loss with only this path cut (nats).
        x: Its points (pixels).
        y: Likewise.
        named: Whether it is one of the circuit's.
    """

    sender: str
    receiver: str
    effect: float
    x: np.ndarray
    y: np.ndarray
    named: bool

    @property
    def joins_parts(self) -> bool:
        """Returns whether it leads from a head or MLP to another."""
        return len({self.sender, split_input(self.receiver)[0]} - ENDS) == 2


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
    matters = largest >= MIN_EFFECT_NATS
    heads = parts_of(chosen_tiles(result)) if matters else ()
    names = sorted({split_input(end)[0] for path in effects for end in path})
    texts = {name: "<br>".join(_words(result, name, heads)) for name in names}
    boxes, width, height = arrange(texts)
    known, least = certain(data), MIN_SHARE * largest
    sure = {path: effect for path, effect in effects.items() if path in known and abs(effect) >= least}
    paths = _laid_out(sure if matters else effects, boxes, heads, MIN_COLOURED_SHARE * largest)
    figure = go.Figure()
    _draw_legend(figure) if matters else _draw_nothing(figure)
    widest = max(largest if scale is None else scale, MIN_EFFECT_NATS)
    for path in paths:
        _draw_path(figure, path, boxes, widest, largest or 1.0, can_hide=matters and not path.named)
    numbers = _draw_numbers(figure, [path for path in paths if path.named], list(boxes.values()))
    for name, box in boxes.items():
        look = {**(_NAMED if name in heads else _OTHER), "borderpad": 4, "bgcolor": "#ffffff"}
        clickable = head_index(name) is not None
        annotate(figure, box.x, box.y, texts[name], 12, name=name, captureevents=clickable, **look)
    reach = [float(np.abs(path.x).max()) + 6 for path in paths]
    reach += [abs(box.x) + box.width / 2 + 2 for box in (*boxes.values(), *numbers)]
    return figure.update_layout(**_layout(max(width, 2 * max(reach)), height, matters))


def _laid_out(
    effects: Mapping[tuple[str, str], float], boxes: Mapping[str, Box], heads: Sequence[str], least: float
) -> list[_Drawn]:
    """The paths by their size, the largest last and so on top."""
    of_the_circuit = {path: effect for path, effect in effects.items() if is_between(path, heads)}
    main = main_paths(of_the_circuit, least)
    drawn = []
    for (sender, receiver), effect in sorted(effects.items(), key=lambda item: abs(item[1])):
        component, side = split_input(receiver)
        x, y = bend(boxes[sender], boxes[component], side, boxes.values())
        drawn.append(_Drawn(sender, receiver, effect, x, y, (sender, receiver) in main))
    return drawn


def _draw_legend(figure: go.Figure) -> None:
    """Queries, keys, values and output, in one order."""
    for what, colour, dash in _SIDES.values():
        look = {"width": 3, "color": colour, "dash": dash}
        figure.add_scatter(x=[None], y=[None], mode="lines", line=look, name=what, hoverinfo="skip")


def _draw_nothing(figure: go.Figure) -> None:
    """The reason why no circuit is in colour."""
    corner = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "top", "align": "left"}
    figure.add_annotation(text=NO_CIRCUIT, x=0, y=1, showarrow=False, **corner)


def _draw_path(
    figure: go.Figure,
    path: _Drawn,
    boxes: Mapping[str, Box],
    widest: float,
    largest: float,
    *,
    can_hide: bool,
) -> None:
    """A line, and an arrowhead where the path is one of the circuit's.

    Args:
        figure: The picture, which is changed.
        path: The path.
        boxes: The components' places.
        widest: The effect that the widest line stands for (nats).
        largest: The largest effect in the picture (nats): small paths can be hidden by their share of it.
        can_hide: Whether this is one of them.
    """
    component, side = split_input(path.receiver)
    _, colour, dash = _SIDES[side]
    size = 1 + (_WIDEST - 1) * min(1.0, abs(path.effect) / widest)
    line = {"width": size if path.named else 1, "color": colour if path.named else GREY, "dash": dash}
    text = f"{label(path.sender)} → {label(path.receiver)}: {format_number(path.effect)} nats"
    row = {"sender": path.sender, "receiver": path.receiver, "nats": path.effect}  # for the data as CSV
    meta = {"row": row, "grey": can_hide, "share": abs(path.effect) / largest}
    shown = {"showlegend": False, "hoverinfo": "text", "text": text}
    figure.add_scatter(x=path.x, y=path.y, mode="lines", line=line, meta=meta, **shown)
    if path.named:
        _arrowhead(figure, path.x, path.y, boxes[component], colour, size)


def _draw_numbers(figure: go.Figure, paths: Sequence[_Drawn], taken: list[Box]) -> list[Box]:
    """The largest effects next to their paths where there is room; their places."""
    lines = [(path.x, path.y) for path in paths]
    least = MIN_NUMBER_SHARE * max((abs(path.effect) for path in paths), default=0.0)
    # A path from one named part to another is what makes them a circuit: its number comes first.
    order = sorted(paths, key=lambda path: (not path.joins_parts, -abs(path.effect)))
    numbers: list[Box] = []
    for path in [path for path in order if abs(path.effect) >= least][:MAX_NUMBERS]:
        text = f"{path.effect:.2g}"
        place = free_place(path.x, path.y, text, [*taken, *numbers], lines)
        if place is not None:
            point, box = place
            numbers.append(box)
            shift = box.x - path.x[point]  # in pixels on every screen: the number stays at its path
            annotate(figure, path.x[point], box.y, text, NUMBER_SIZE, xshift=shift, bgcolor="#ffffff")
    return numbers


def _layout(width: float, height: float, legend: bool) -> dict[str, Any]:
    return {
        "height": height + 10,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 10},
        "xaxis": {"visible": False, "range": [-width / 2, width / 2], "fixedrange": True},
        "yaxis": {"visible": False, "range": [0, height], "fixedrange": True},
        "legend": {"y": 1, "yanchor": "top", "x": 1, "xanchor": "right", "bgcolor": "rgba(0,0,0,0)"},
        "hovermode": "closest",
        "meta": {"least": width},  # pixels in which no component lies on another
        "showlegend": legend,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }


def _arrowhead(figure: go.Figure, x: np.ndarray, y: np.ndarray, box: Box, colour: str, size: float) -> None:
    """An arrow's head where a path enters a component's box."""
    inside = (np.abs(x - box.x) < box.width / 2 + 3) & (np.abs(y - box.y) < box.height / 2 + 5)
    tip = max(1, int(np.argmax(inside)) - 1)
    start = max(0, tip - _HEAD_POINTS)
    place = {"x": x[tip], "y": y[tip], "ax": x[start], "ay": y[start], "axref": "x", "ayref": "y"}
    width = max(1.5, min(size, 3.0))
    figure.add_annotation(text="", arrowhead=2, arrowcolor=colour, arrowwidth=width, **place)


def _costs_more_than_its_head(claims: Claims, effects: Mapping[tuple[str, str], float]) -> bool:
    """Returns whether some path of a part is clearly worth more than all of the part."""
    whole = {claim.subject[0]: claim.value or 0.0 for claim in claims.where("is_needed")}
    ends = [(split_input(end)[0], effect) for path, effect in effects.items() for end in path]
    return any(part in whole and effect > max(_MORE * whole[part], MIN_EFFECT_NATS) for part, effect in ends)


def _words(result: Findings, name: str, named: Sequence[str]) -> list[str]:
    known = [_KNOWN_AS[name]] if name in _KNOWN_AS else []
    return [f"<b>{label(name)}</b>", *known, *notes(result.claims, name, named)]


def largest_effect(effects: Mapping[Path, float]) -> float:
    """The largest effect of one path on the loss, in size (nats): the scale of the drawn widths; 0 of none.

    >>> largest_effect({("embed", "L0H0.V"): 0.25, ("L0H0", "logits"): -0.5})
    0.5
    """
    return max((abs(effect) for effect in effects.values()), default=0.0)


def certain(data: xr.Dataset) -> set[Path]:
    """The paths whose interval excludes zero; all of them where no interval was measured."""
    if "path_effect_low" not in data:
        return set(path_effects(data))
    low, high = path_effects(data, "path_effect_low"), path_effects(data, "path_effect_high")
    return {path for path in low if low[path] > 0 or high[path] < 0}


def path_effects(data: xr.Dataset, name: str = "path_effect") -> dict[Path, float]:
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


def is_between(path: Path, named: Sequence[str]) -> bool:
    """Returns whether a path has no other ends than named parts, what is embedded and the logits.

    From `embed` to `logits` it is the direct path, which is named `direct`.

    >>> is_between(("L0H1", "L1H0.K"), ["L0H1"]), is_between(("embed", "logits"), ["direct"])
    (False, True)
    """
    ends = {split_input(end)[0] for end in path} - ENDS
    return ends <= {*named} if ends else "direct" in named and path[0] == "embed"


def main_paths(effects: Mapping[Path, float], least: float) -> set[Path]:
    """Returns the paths that are worth that much, and the largest out of each part and into it."""
    main = {path for path, effect in effects.items() if abs(effect) >= least}
    for end in (0, 1):
        by_part: dict[str, Path] = {}
        for path in sorted(effects, key=lambda path: abs(effects[path])):
            by_part[split_input(path[end])[0]] = path
        main |= set(by_part.values())
    return main
