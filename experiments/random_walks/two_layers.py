"""An ordinary small decoder of one and of two layers on the walk."""

from itertools import product

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.figures import style, titled
from experiments.harness import Measured, first_time, trained
from experiments.random_walks.common import RECIPES, curve, outcome

K = 6
Cell = tuple[int, float, int]  # layers, p, n_ctx: the label is token n_ctx + 1


def two_layers(quick: bool) -> Measured:
    """An ordinary decoder of one and two layers, fair and deterministic, K dividing N - 1 or not."""
    base, seeds = mm.load_recipe(RECIPES / "two-layers.toml"), range(2 if quick else 16)
    steps = 200 if quick else 300
    cells = [(1, 1.0, 13), (2, 1.0, 13)] if quick else list(product((1, 2), (0.5, 1.0), (13, 16)))
    runs: dict[Cell, list[mm.Run]] = {}
    for layers, p, n_ctx in cells:
        changes = [f"model.n_layers={layers}", f"source.p={p}", f"model.n_ctx={n_ctx}", f"steps={steps}"]
        recipe = base.with_set([*changes, f"checkpoints=[{steps}]"])
        (runs[layers, p, n_ctx],) = trained([recipe], seeds)
    losses = {cell: np.stack([_smooth_loss(run) for run in found]) for cell, found in runs.items()}
    half_way = {
        cell: [first_time(loss < _half_way(cell[1])) for loss in rows] for cell, rows in losses.items()
    }
    learned = {cell: [_learned(run, cell[1]) for run in found] for cell, found in runs.items()}
    one, two = (1, 1.0, 13), (2, 1.0, 13)
    shown = "; ".join(
        f"{_name(cell)}: {sum(learned[cell])}/{len(seeds)}, half way at step {np.median(half_way[cell]):.0f}"
        for cell in cells
    )
    how = (
        "attention only, width 16, learned positions, N(0, 0.02²), AdamW 1e-2, cross-entropy, 32 fresh "
        f"sequences a step, {steps} steps, {len(seeds)} seeds; learned: accuracy above 0.9 of the best; "
        "half way: between log 6 and the lowest loss, median"
    )
    claims = [
        Finding(
            "decoder_trap",
            shown,
            holds(not any(learned[one])),
            f"{how}. A random start is off the saddle, and any lag class will do",
            "trained at another",
            (len(seeds) - sum(learned[one]), len(seeds)),
        ),
        Finding(
            "second_layer_helps",
            shown,
            holds(all(learned[two]) and np.median(half_way[two]) < np.median(half_way[one])),
            f"{how}. Under a causal mask a flat first layer weighs early tokens more: the token mean that "
            "the second layer reads is no longer the same for every label",
            "trained at another",
            (sum(b < a for a, b in zip(half_way[one], half_way[two], strict=True)), len(seeds)),
        ),
    ]
    return Measured(claims, {"two-layers": _figure(losses)})


def _name(cell: Cell) -> str:
    layers, p, n_ctx = cell
    return f"{layers} layer{'s' * (layers > 1)}, p = {p:g}, N - 1 = {n_ctx - 1}"


def _smooth_loss(run: mm.Run) -> Float[np.ndarray, " step"]:
    """The loss (nats), mean over ten steps."""
    return np.convolve(curve(run, "loss"), np.ones(10) / 10, "valid")


def _half_way(p: float) -> float:
    """Half way between the loss of a guess and the lowest there is (nats)."""
    return (np.log(K) + (np.log(2) if p == 0.5 else 0)) / 2


def _learned(run: mm.Run, p: float) -> bool:
    return outcome(run, -1, 1000).accuracy[1] > 0.9 * max(p, 1 - p)


def _figure(losses: dict[Cell, Float[np.ndarray, "seed step"]]) -> go.Figure:
    figure = go.Figure()
    for cell, rows in losses.items():
        layers, p, n_ctx = cell
        line = style(layers - 1 + 2 * (p == 1), dash="solid" if n_ctx == 13 else "dash")
        figure.add_scatter(
            x=np.arange(0, rows.shape[1], 4), y=np.median(rows, 0)[::4], name=_name(cell), line=line
        )
    figure.add_hline(y=np.log(K), line_dash="dot", annotation_text="chance: log 6")
    title = "An ordinary small decoder: at p = 1 the trap is a delay (median loss over seeds)"
    return titled(figure, title, "training step (AdamW)", "cross-entropy (nats)")
