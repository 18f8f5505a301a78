"""Larger random starts of the walk model."""

import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Finding, holds, wilson
from experiments.figures import intervals, marker, style, titled
from experiments.harness import Measured
from experiments.random_walks.common import SHORT_WALK, curve

Shares = dict[float, tuple[float, float, float]]  # by the start's sd: (low, value, high)
LARGE = 0.03  # of the starts: the one on which the claims are judged


def larger_start(quick: bool) -> Measured:
    """Weights N(0, sd²): what a larger start does to the fair and the deterministic walk."""
    sds = (1e-4, LARGE) if quick else (1e-4, 1e-3, 3e-3, 0.01, LARGE, 0.1)
    seeds = 4 if quick else 16
    runs = {p: {sd: _train(p, sd, seeds) for sd in sds} for p in (0.5, 1.0)}
    lost = {p: sum(seeds - len(found) for found in by_sd.values()) for p, by_sd in runs.items()}
    fair = _above(runs[0.5], "accuracy", 0.45, seeds)
    sure = _above(runs[1.0], "accuracy", 0.95, seeds)
    parents = _above(runs[1.0], "parent_attention", 0.5, seeds)
    how = (
        f"{seeds} seeds, |p|² = 32, 300 sequences, 50 steps; runs whose loss is undefined (a score below "
        f"-eps) count as not learned: {lost[0.5]} at p = 1/2, {lost[1.0]} at p = 1"
    )
    claims = [
        Finding(
            "larger_fair",
            f"share of seeds with accuracy above 0.45: {_text(fair)}",
            holds(fair[LARGE][0] > 0.9),
            f"{how}. A start that already looks at one far position stays there: V learns P^m for that lag",
            "trained at another",
            (round(fair[LARGE][1] * seeds), seeds),
        ),
        Finding(
            "larger_sure",
            f"share of seeds with accuracy above 0.95: {_text(sure)}",
            holds(sure[LARGE][1] < 0.1, corrected=sure[sds[0]][1] < 0.1),
            f"{how}. Any lag will do at p = 1, so a start that looks at one position has solved it",
            "trained at another",
            (seeds - round(sure[LARGE][1] * seeds), seeds),
        ),
    ]
    return Measured(claims, {"larger-start": _figure(fair, sure, parents)})


def _train(p: float, sd: float, seeds: int) -> list[mm.Run]:
    """The runs that did not diverge."""
    start = ["init.scheme=normal", f"init.std={sd}"]
    recipe = mm.load_recipe("walk-k6-half").with_set(
        [*SHORT_WALK, "checkpoints=[50]", f"source.p={p}", *start]
    )
    runs = mm.training.train_members([mm.training.Member(recipe, seed) for seed in range(seeds)])
    return [run for run in runs if isinstance(run, mm.Run)]


def _above(runs: dict[float, list[mm.Run]], metric: str, level: float, seeds: int) -> Shares:
    """The share of seeds with a metric above a level at step 50, by the start's sd."""
    return {sd: wilson(sum(curve(r, metric)[50] > level for r in found), seeds) for sd, found in runs.items()}


def _text(found: Shares) -> str:
    return "; ".join(f"sd {sd:g}: {v:.2f} [{a:.2f}, {b:.2f}]" for sd, (a, v, b) in found.items())


def _figure(fair: Shares, sure: Shares, parents: Shares) -> go.Figure:
    figure = go.Figure()
    names = {
        "fair walk: accuracy above 0.45": fair,
        "p = 1: accuracy above 0.95": sure,
        "p = 1: attention on the parent above 0.5": parents,
    }
    for i, (name, found) in enumerate(names.items()):
        figure.add_scatter(
            x=list(found),
            **intervals(list(found.values())),
            name=name,
            mode="lines+markers",
            marker=marker(i),
            line=style(i),
        )
    title = "Larger random starts turn the contrast round (K = 6, N = 25, 50 steps)"
    x = "sd of the start of V and u (position logits have sd 32 times that)"
    figure.update_xaxes(type="log", exponentformat="power")
    return titled(figure, title, x, "share of seeds, 95 % Wilson", yaxis_range=[-0.05, 1.05])
