"""The reviewers' question on larger random starts."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Measured, wilson
from experiments.random_walks.reviewers_common import COLOURS, claim, curve, holds


def larger_start(quick: bool) -> Measured:
    """Weights N(0, sd²): what a larger start does to the fair and the deterministic walk."""
    sds = (1e-4, 0.03) if quick else (1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1)
    seeds = range(4 if quick else 12)
    base = mm.load_recipe("walk-k6-half").with_set(
        [
            "model.n_ctx=25",
            "model.n_positions=63",
            "data.n_train=300",
            "checkpoints=[50]",
            "init.scheme=normal",
        ]
    )
    shares: dict[float, dict[float, tuple[float, float, float]]] = {0.5: {}, 1.0: {}}
    parents: dict[float, tuple[float, float, float]] = {}
    lost = {0.5: 0, 1.0: 0}
    for p, share in shares.items():
        for sd in sds:
            recipe = base.with_set([f"source.p={p}", f"init.std={sd}"])
            members = [mm.Member(recipe, seed) for seed in seeds]
            runs = [run for run in mm.train_members(members) if isinstance(run, mm.Run)]
            lost[p] += len(seeds) - len(runs)
            level = 0.45 if p == 0.5 else 0.95
            share[sd] = wilson(sum(bool(curve(r, "accuracy")[50] > level) for r in runs), len(seeds))
            if p == 1.0:
                parents[sd] = wilson(
                    sum(bool(curve(r, "parent_attention")[50] > 0.5) for r in runs), len(seeds)
                )
    small, large = sds[0], 0.03
    figure = go.Figure()
    for i, (p, label) in enumerate(
        [(0.5, "fair walk: accuracy above 0.45"), (1.0, "p = 1: accuracy above 0.95")]
    ):
        _share(figure, shares[p], label, i)
    _share(figure, parents, "p = 1: attention on the parent above 0.5", 2)
    figure.update_layout(
        title="Larger random starts turn the contrast round (K = 6, N = 25, 50 steps)",
        xaxis={
            "title": "sd of the start of V and u (position logits have sd 32 times that)",
            "type": "log",
            "exponentformat": "power",
        },
        yaxis_title="share of seeds, 95 % Wilson",
        yaxis_range=[-0.05, 1.05],
    )
    how = (
        f"{len(seeds)} seeds, |p|² = 32, 300 sequences, 50 steps; runs whose loss is undefined (a score "
        f"below "
        f"-eps) count as not learned: {lost[0.5]} at p = 1/2, {lost[1.0]} at p = 1"
    )
    return Measured(
        [
            claim(
                "larger_start",
                "The fair walk is learned from larger random starts too",
                "share of seeds with accuracy above 0.45: " + _text(shares[0.5]),
                holds(shares[0.5][large][0] > 0.9),
                how
                + ". A start that already looks at one far position stays there: V learns P^m for that lag",
            ),
            claim(
                "larger_start",
                "The deterministic walk stays trapped from random starts",
                "share of seeds with accuracy above 0.95: " + _text(shares[1.0]),
                "holds"
                if shares[1.0][large][1] < 0.1
                else "holds with a correction"
                if shares[1.0][small][1] < 0.1
                else "does not hold",
                how + ". Any lag will do at p = 1, so a start that looks at one position has solved it",
            ),
        ],
        {"reviewers-larger-start": figure},
    )


def _share(figure: go.Figure, found: dict[float, tuple[float, float, float]], label: str, i: int) -> None:
    low, value, high = (np.array(column) for column in zip(*found.values(), strict=True))
    figure.add_scatter(
        x=list(found),
        y=value,
        error_y={"array": high - value, "arrayminus": value - low, "symmetric": False},
        name=label,
        mode="lines+markers",
        marker={"symbol": i, "size": 9},
        line={"color": COLOURS[i], "dash": ["solid", "dash", "dot"][i]},
    )


def _text(found: dict[float, tuple[float, float, float]]) -> str:
    return "; ".join(f"sd {sd:g}: {v:.2f} [{a:.2f}, {b:.2f}]" for sd, (a, v, b) in found.items())
