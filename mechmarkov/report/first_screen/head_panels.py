"""What a reader gets who chooses a head: its attention, its value circuit next to the target, its worth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from jaxtyping import Bool

from mechmarkov.models.components import head_index
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.outcome import Findings
from mechmarkov.report.attention_scale import ATTENTION_SCALE, FLAT_LOG2, multiples, shown_end
from mechmarkov.report.cards import FigureCard, figure_card
from mechmarkov.report.figures import PALETTE, bars, heatmap, matched
from mechmarkov.report.first_screen.headline import chosen_tiles, named_parts
from mechmarkov.report.first_screen.readings import notes
from mechmarkov.report.probe_figures import fitted_target
from mechmarkov.report.words.sentences import phrase
from mechmarkov.theory.kernel import FLOOR, double_centred

_HEIGHT = 460  # pixels, in which every position has its name
_MAX_FRAMES = 12  # of a shape: 400 letters of a page's JSON
_POWERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "P": lambda P: P,
    "sqrt P": np.sqrt,
    "log P": lambda P: np.log(np.maximum(P, FLOOR)),
}


@dataclass(frozen=True)
class HeadPanel:
    """A head's panel: at each step a line of what is known, and figures that move.

    `outlined` says that its attention outlines what an ideal head in its place reads.
    """

    name: str
    said: list[str]
    cards: list[FigureCard]
    outlined: bool


def head_panels(states: Sequence[Findings]) -> list[HeadPanel]:
    """A panel for each head, of the findings at each step; none without attention or ablation."""
    last = states[-1].outcomes
    if "effect" not in getattr(last.get("ablation"), "data", ()):
        return []
    if "example" not in getattr(last.get("attention"), "data", ()):
        return []
    panels = []
    for name in map(str, last["ablation"].data["component"].values):
        if head_index(name) is None or any("ablation" not in now or "attention" not in now for now in states):
            continue
        drawn = [{figure.key: figure for figure in _inside(now, name)} for now in states]
        cards = [
            figure_card(f"figure-{name}-{i}", figure, [at.get(key) for at in drawn] if len(drawn) > 1 else ())
            for i, (key, figure) in enumerate(drawn[-1].items())
        ]
        seen = drawn[-1]["attention"].content
        outlined = isinstance(seen, go.Figure) and bool(seen.layout.shapes)
        panels.append(HeadPanel(name, [_said(now, name) for now in states], cards, outlined))
    return panels


_CAPTION = (
    "Attention as a multiple of uniform attention: white is uniform or less, the darkest is 8 times or more."
)


def _said(now: Findings, name: str) -> str:
    """Returns what is known of a head, with the loss that it is worth."""
    needed = now.claims.first("is_needed", subject=name)
    if needed is not None and not needed.is_shown:  # a loss on scores may rely on it all the same
        needed = now.claims.first("is_relied_on", subject=name) or needed
    worth = [] if needed is None else [phrase(needed)]
    return f"{name}: {', '.join([*notes(now.claims, name, named_parts(chosen_tiles(now))), *worth])}"


def _inside(now: Findings, name: str) -> list[Figure]:
    """Attention on one sequence; where there is one table to hold, the value circuit next to its target."""
    index = head_index(name)
    assert index is not None
    attention = now["attention"].data.isel(step=-1, sequence=0)
    pattern = attention["example"].isel(layer=index[0], head=index[1]).values
    tokens = [str(token) for token in attention["example_token"].values]
    n_keys = int(attention["key"].size)
    seen = multiples(pattern, n_keys)
    places = [f"{i}: {token}" for i, token in enumerate(tokens, n_keys - len(tokens))]
    # Where only the last row says something, the loss is read there.
    if len(tokens) > 1 and seen[:-1].max() < FLAT_LOG2:
        figure = bars(places, pattern[-1], y_title="attention", lie=True).update_xaxes(range=[0, 1.02])
        caption = "Attention of the last position."
    else:
        figure = heatmap(
            seen,
            places,
            places,
            row_title="attends",
            column_title="is attended to",
            limits=(0, 1),
            most_ticks=len(places),
        )
        figure.update_traces(ATTENTION_SCALE).update_yaxes(scaleanchor="x").update_layout(height=_HEIGHT)
        who, keys = ideal_keys(now, name, tokens)
        outline(figure, keys)
        caption = _CAPTION + f" Outlined: what an ideal {who} reads." * bool(keys.any())
    caption += shown_end(len(tokens), n_keys)
    drawn = [Figure(f"Where {name} looks", caption, "plotly", figure, key="attention")]
    tables = _tables(now, name)
    if tables:
        labels = [str(label) for label in now["alignment"].data.attrs["labels"]]
        circuit, target, told = tables
        pair = matched(
            circuit, target, labels, row_title="state read", column_title="next state", diverging=True
        )
        drawn.append(Figure(f"What {name} says of the next state", told, "plotly", pair, key="value circuit"))
    return drawn


def ideal_keys(now: Findings, name: str, tokens: Sequence[str]) -> tuple[str, Bool[np.ndarray, "query key"]]:
    """Returns the name of an ideal head in the place of a named one, and what it reads; nothing of others."""
    n = len(tokens)
    claims = now.claims
    head = claims.first("is_induction_head", subject=name, status="shown")
    if head is not None:  # keys that follow a copy of the current token
        before = np.array([None, *tokens[:-1]], dtype=object)
        return "induction head", np.tril(before[None] == np.array(tokens, dtype=object)[:, None])
    reads = claims.everywhere().first("attends_to", subject=name, status="shown")
    feeds = claims.first("feeds", subject=name, status="shown")
    if (feeds and feeds.condition("previous token")) or (reads and reads.object == ("previous token",)):
        return "previous-token head", np.eye(n, k=-1, dtype=bool)
    if reads is None or "parent" not in reads.object:
        return "", np.zeros((n, n), dtype=bool)
    attrs = now["attention"].data.attrs
    return "head on the parent", np.eye(n, k=1 - attrs["source_lag"] - attrs["parent_lag"], dtype=bool)


def outline(figure: go.Figure, cells: Bool[np.ndarray, "row column"]) -> None:
    """A frame around each of the cells of a heat map, in shapes whose paths no page cuts."""
    frames = [f"M{x - 0.5},{y - 0.5}H{x + 0.5}V{y + 0.5}H{x - 0.5}Z" for y, x in np.argwhere(cells).tolist()]
    for i in range(0, len(frames), _MAX_FRAMES):
        path = "".join(frames[i : i + _MAX_FRAMES])
        figure.add_shape(type="path", path=path, line={"color": PALETTE[1], "width": 1.5})


def _tables(now: Findings, name: str) -> tuple[np.ndarray, np.ndarray, str] | None:
    """The value circuit of a head and what the loss aims at, centred and to scale, and what to say of it."""
    alignment = now.outcomes.get("alignment")
    if alignment is None or name not in alignment.data["path"].values:
        return None
    data: xr.Dataset = alignment.data.sel(path=name).isel(step=-1)
    target = alignment.scores["target"].value if "target" in alignment.scores else None
    if target not in _POWERS:
        return None
    circuit = double_centred(np.nan_to_num(data["circuit"].values))
    ideal = double_centred(np.nan_to_num(_POWERS[str(target)](data["law"].values)))
    ideal, caption = fitted_target(circuit, ideal, str(target))
    return circuit, ideal, f"Centred. {caption}"
