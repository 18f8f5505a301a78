"""What a reader gets who chooses a head of the circuit: its attention, its value circuit beside the target."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mechmarkov.models.components import head_index
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.outcome import Findings
from mechmarkov.report.cards import LOG2_DARKEST, FigureCard, figure_card
from mechmarkov.report.figures import DIVERGING
from mechmarkov.report.headline import notes
from mechmarkov.theory.kernel import FLOOR, double_centred, row_centred

_POWERS = {"P": lambda P: P, "sqrt P": np.sqrt, "log P": lambda P: np.log(np.maximum(P, FLOOR))}


@dataclass(frozen=True)
class HeadPanel:
    """A head's panel: at each step a line of what is known, and one figure that moves."""

    name: str
    said: list[str]
    card: FigureCard


def head_panels(states: Sequence[Findings]) -> list[HeadPanel]:
    """A panel for each head, of the findings at each step; none where attention or ablation was not measured."""
    last = states[-1].outcomes
    if "effect" not in getattr(last.get("ablation"), "data", ()):
        return []
    if "example" not in getattr(last.get("attention"), "data", ()):
        return []
    panels = []
    for name in map(str, last["ablation"].data["component"].values):
        if head_index(name) is None or any("ablation" not in now or "attention" not in now for now in states):
            continue
        drawn = [Figure(f"Inside {name}", _CAPTION, "plotly", _inside(now, name)) for now in states]
        card = figure_card(f"figure-head-{name}", drawn[-1], drawn if len(drawn) > 1 else ())
        panels.append(HeadPanel(name, [_said(now, name) for now in states], card))
    return panels


_CAPTION = (
    "Attention as a multiple of uniform attention: white is uniform or less, the darkest is 8 times or more. "
    "The value circuit and its target share one scale; each is centred and divided by its norm."
)


def _said(now: Findings, name: str) -> str:
    """What is known of a head, with the loss that it is worth."""
    data = now["ablation"].data.isel(step=-1).sel(measure="loss", kind="mean", component=name)
    value, low, high = (float(data[f"effect{end}"]) for end in ("", "_low", "_high"))
    worth = f"with its output at its mean the loss rises by {value:.3g} nats ({low:.2g} to {high:.2g})"
    return f"{name}: {', '.join([*notes(now, name), worth])}"


def _inside(now: Findings, name: str) -> go.Figure:
    """Attention on one sequence and, where there is one table to hold, the value circuit beside its target."""
    index = head_index(name)
    assert index is not None
    attention = now["attention"].data.isel(step=-1, sequence=0)
    pattern = attention["example"].isel(layer=index[0], head=index[1]).values
    tables = _tables(now, name)
    figure = make_subplots(1, 1 + len(tables), subplot_titles=["attention", *tables], horizontal_spacing=0.06)
    tokens = [str(token) for token in attention["example_token"].values]
    figure.add_heatmap(z=np.round(multiples(pattern, int(attention["key"].size)), 3), **ATTENTION_SCALE, row=1, col=1)
    labels = [str(label) for label in now["alignment"].data.attrs["labels"]] if tables else []
    largest = max((float(np.abs(table).max()) for table in tables.values()), default=1.0) or 1.0
    for column, table in enumerate(tables.values(), 2):
        scale = {"zmin": -largest, "zmax": largest, "colorscale": DIVERGING, "showscale": False}
        figure.add_heatmap(z=np.round(table, 4), x=labels, y=labels, **scale, row=1, col=column)
    figure.update_xaxes(constrain="domain", showgrid=False, automargin=True, ticks="", type="category")
    figure.update_yaxes(constrain="domain", showgrid=False, automargin=True, ticks="", type="category")
    figure.update_yaxes(autorange="reversed")
    for column in range(1, 2 + len(tables)):
        figure.update_yaxes(scaleanchor="x" if column == 1 else f"x{column}", col=column)
    ticks = {"tickvals": list(range(len(tokens)))[::4], "ticktext": tokens[::4], "type": "linear"}
    figure.update_xaxes(**ticks, row=1, col=1)
    figure.update_yaxes(**ticks, row=1, col=1)
    return figure.update_layout(height=280, margin={"l": 8, "r": 8, "t": 28, "b": 8}, template="none")


ATTENTION_SCALE = {
    "zmin": 0.0,
    "zmax": LOG2_DARKEST,
    "colorscale": [[0.0, "#ffffff"], [1.0, "#08306b"]],
    "showscale": False,
}


def multiples(pattern: np.ndarray, n_keys: int) -> np.ndarray:
    """Attention `[query, key]` as log2 of its multiple of uniform attention, 0 where it is uniform or less.

    Args:
        pattern: The last rows of a causal pattern; its last row sees all keys.
        n_keys: How many keys the last row sees.
    """
    n = len(pattern)
    seen = n_keys - n + 1 + np.arange(n)[:, None]
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log2(np.maximum(pattern * seen, 1e-9)), 0.0, LOG2_DARKEST))


def _tables(now: Findings, name: str) -> dict[str, np.ndarray]:
    """The value circuit of a head and what the loss aims at, both centred and of norm one."""
    alignment = now.outcomes.get("alignment")
    if alignment is None or name not in alignment.data["path"].values:
        return {}
    data: xr.Dataset = alignment.data.sel(path=name).isel(step=-1)
    target = alignment.scores["target"].value if "target" in alignment.scores else None
    if target not in _POWERS:
        return {}
    centre = row_centred if target == "log P" else double_centred
    pair = {"value circuit": data["circuit"].values, f"target: {target}": _POWERS[str(target)](data["law"].values)}
    centred = {title: centre(np.nan_to_num(table)) for title, table in pair.items()}
    return {title: table / (np.linalg.norm(table) or 1.0) for title, table in centred.items()}
