"""The trap at p = 1 as a saddle: the rate at which it is left, and where an escape ends."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int
from scipy.stats import chisquare

import mechmarkov as mm
from experiments.claims import Finding, holds, share, wilson
from experiments.figures import fill, intervals, marker, style, titled
from experiments.harness import Measured, first_time, trained
from experiments.random_walks.common import (
    FLOAT64,
    POPULATION,
    attention,
    curve,
    value_matrix,
)
from mechmarkov.theory.walk import reduced_walk
from mechmarkov.theory.walk.trap_spectrum import trap_spectrum

ETA, EPS = 0.01, 0.1  # small steps, so that a rate can be seen; those of the paper are 100 times as long
ESCAPED_SHARES = 1.0  # attention spread over a token's mean share: a run has left the trap
START = 5  # V and attention need a few steps to fall into step along the mode that grows
LINEAR = (1e-10, 0.03)  # of that amplitude: above rounding in float64, below where second order counts
SCALES = (1e-12, 1e-9, 1e-6, 1e-4)


def predicted_rates(K: int, N: int, norm: float, steps: int) -> np.ndarray:
    """The growth rate of attention by lag class after each step of the exact trap's own drift."""
    ahead = reduced_walk.deterministic_displacements(K, N)
    certain = np.ones(1)
    states = reduced_walk.descend(
        ahead, certain, n_states=K, position_norm_sq=norm**2, eta=ETA, eps=EPS, steps=steps
    )
    rates = []
    for state in states:
        passed = reduced_walk.forward(state, ahead)
        alpha, z = float(state.profile[0]), float(passed.scores[0, 0])
        theory = trap_spectrum(
            n_states=K,
            length=N,
            position_norm=norm,
            alpha=alpha,
            query_mass=float(passed.attention[-1]),
            slope=-1 / (z + EPS),
        )
        rates.append(theory.growth_position)
    return np.array(rates)


@dataclass(frozen=True, eq=False)
class Escape:
    """One run near the trap.

    Attributes:
        scale: Standard deviation of its start.
        left: The first step at which the spread is a token's mean share; inf for never.
        predicted: The same from its amplitude at step START on, by the rates of the closed form.
        seen: Steps of linear growth, START or later.
        rate: The growth rate at those, per unit of eta t.
    """

    scale: float
    left: float
    predicted: float
    seen: Int[np.ndarray, " seen"]
    rate: Float[np.ndarray, " seen"]


def escape(run: mm.Run, rates: Float[np.ndarray, " step"]) -> Escape:
    """A run's escape, measured and predicted."""
    amplitude = curve(run, "attention_spread") * (run.config.n_ctx - 1)
    growth = np.concatenate([[0.0], np.cumsum(np.log1p(ETA * rates))])
    will = START + first_time(amplitude[START] * np.exp(growth[START:] - growth[START]) > ESCAPED_SHARES)
    seen = np.flatnonzero((amplitude[:-1] > LINEAR[0]) & (amplitude[:-1] < LINEAR[1]))
    seen = seen[seen >= START]
    rate = np.expm1(np.log(amplitude[seen + 1] / amplitude[seen])) / ETA
    return Escape(float(run.recipe["init"]["std"]), first_time(amplitude > ESCAPED_SHARES), will, seen, rate)


def escape_rates(quick: bool) -> Measured:
    """How fast runs leave the trap, over the scale of the start and the type of numbers."""
    steps, seeds = (200, 2) if quick else (400, 16)
    scales = SCALES[::2] if quick else SCALES
    changes = [POPULATION, f"optimiser.lr={ETA}", f"steps={steps}", f"checkpoints=[{steps}]"]
    base = mm.load_recipe("walk-k6-one").with_set([*changes, "init.scheme=normal"])
    shape = base.model.shape(base.source.n_states)
    rates = predicted_rates(shape.n_states, shape.n_ctx, shape.norm, steps)
    found: dict[str, list[Escape]] = {}
    for dtype in ("float64", "float32"):
        recipes = [base.with_set([f"model.dtype={dtype}", f"init.std={scale}"]) for scale in scales]
        found[dtype] = [escape(run, rates) for runs in trained(recipes, range(seeds)) for run in runs]
    double, single = found["float64"], found["float32"]
    errors = np.concatenate([one.rate / rates[one.seen] - 1 for one in double])
    off = np.array([one.left / one.predicted - 1 for one in _both_finite(double)])
    apart = [_median(single, scale) / _median(double, scale) for scale in scales]
    close = int((np.abs(off) < 0.1).sum())
    typical, late = float(np.median(np.abs(errors))), float(np.median(np.abs(off)))
    claims = [
        Finding(
            "escape_rate",
            f"{share(close, len(off))} runs leave within 10 % of the predicted step, largest difference "
            f"{float(np.abs(off).max()):.1%}; median difference of the rate over {len(errors)} steps "
            f"{typical:.1%}",
            holds(typical < 0.05 and late < 0.1),
            f"K=6, N=97, whole population, float64, eta={ETA}, starts of sd {scales[0]:g} to {scales[-1]:g}"
            f", {seeds} seeds each; the rate along the drift of the reduced system; steps where attention "
            f"varies by {LINEAR[0]:g} to {LINEAR[1]:g} of a token's share. Predicted from step {START} on",
            "sampled",
            (close, len(off)),
        ),
        Finding(
            "number_type",
            "; ".join(
                f"sd {scale:g}: float64 step {_median(double, scale):.0f}, float32 step "
                f"{_median(single, scale):.0f}"
                for scale in scales
            ),
            holds(not 0.9 < apart[0] < 1.1 and 0.9 < apart[-1] < 1.1),
            "median over seeds of the first step at which attention varies by a token's share, inf: never; "
            "float32 rounds at 6e-8 of a logit, so that a smaller start is lost or drowned",
            "trained at another",
            (
                sum(
                    abs(b.left / a.left - 1) > 0.1
                    for a, b in zip(double[:seeds], single[:seeds], strict=True)
                ),
                seeds,
            ),
        ),
    ]
    figures = {"escape-rates": _rates_figure(rates, double[::seeds]), "escape-steps": _steps_figure(found)}
    return Measured(claims, figures)


def _both_finite(found: list[Escape]) -> list[Escape]:
    return [one for one in found if np.isfinite(one.left) and np.isfinite(one.predicted)]


def _median(found: list[Escape], scale: float) -> float:
    return float(np.median([one.left for one in found if one.scale == scale]))


def _rates_figure(rates: Float[np.ndarray, " step"], shown: list[Escape]) -> go.Figure:
    last = max((int(one.seen[-1]) for one in shown if len(one.seen)), default=len(rates) - 1)
    figure = go.Figure(go.Scatter(y=rates[: last + 1], name="lowest eigenvalue, closed form", line=style(0)))
    for i, one in enumerate(shown, start=1):
        name = f"run, start of sd {one.scale:g}"
        figure.add_scatter(x=one.seen, y=one.rate, mode="markers", marker=marker(i, 6), name=name)
    title = f"Leaving the trap: growth of attention by lag class (p = 1, K = 6, N = 97, eta = {ETA})"
    return titled(figure, title, "step", "growth rate (per unit of eta t)", yaxis_type="log")


def _steps_figure(found: dict[str, list[Escape]]) -> go.Figure:
    figure, top = go.Figure(), 0.0
    for i, (dtype, escapes) in enumerate(found.items()):
        x, y = zip(*((one.predicted, one.left) for one in _both_finite(escapes)), strict=True)
        figure.add_scatter(x=x, y=y, mode="markers", marker=marker(i), name=dtype)
        top = max(top, *x, *y)
    figure.add_scatter(x=[0, top], y=[0, top], mode="lines", line=style(2), name="as predicted")
    title = "When runs leave the trap, over starts of sd 1e-12 to 1e-4"
    return titled(figure, title, "predicted step", "measured step")


def lag_class(run: mm.Run, step: int) -> tuple[int, float]:
    """The lag class (lag modulo K) with the most attention, and its share of the attention on tokens."""
    K = run.source.n_states
    by_lag = attention(run, step).mean(0)
    by_class = np.bincount((1 + np.arange(len(by_lag))) % K, by_lag, minlength=K)
    return int(by_class.argmax()), float(by_class.max() / by_class.sum())


def lag_classes(quick: bool) -> Measured:
    """Where escapes end: which lag class, with what accuracy, and what they make of V."""
    seeds, steps = (96, 200) if quick else (600, 200)
    changes = [POPULATION, FLOAT64, f"steps={steps}", f"checkpoints=[{steps}]", "init.scheme=normal"]
    recipe = mm.load_recipe("walk-k6-one").with_set([*changes, "init.std=1e-6"])
    (runs,) = trained([recipe], range(seeds))
    K, P = runs[0].source.n_states, np.array(runs[0].source.P)
    ends = [lag_class(run, steps) for run in runs]
    counts = Counter(m for m, _ in ends)
    hits = np.array([counts[m] for m in range(K)])
    p_value = float(chisquare(hits).pvalue)
    perfect = sum(curve(run, "accuracy")[-1] == 1 for run in runs)
    matched = sum(
        bool((value_matrix(run, steps).argmax(0) == np.linalg.matrix_power(P, m).argmax(1)).all())
        for run, (m, _) in zip(runs, ends, strict=True)
    )
    parents = [curve(run, "parent_attention")[-1] for run in runs]
    looks = sum(value > 0.5 for value in parents)
    low, part, high = wilson(hits[1], seeds)
    one_class = float(np.median([part for _, part in ends]))
    how = f"K=6, N=97, whole population, float64, start of sd 1e-6, {seeds} seeds, {steps} steps at eta=1"
    claims = [
        Finding(
            "class_by_start",
            f"classes 0 to 5: {', '.join(map(str, hits))} of {seeds}; chi-squared p = {p_value:.2f}; the "
            f"parent's {part:.3f} [{low:.3f}, {high:.3f}]",
            holds(p_value > 0.01),
            f"{how}; class: the lag modulo K with the most attention (median share {one_class:.3f})",
            "sampled",
            sample=(seeds, low, high),
            number=f"the parent's {part:.3f} [{low:.3f}, {high:.3f}]",
        ),
        Finding(
            "escape_ends",
            f"accuracy 1 in {perfect} of {seeds}; V's columns peak where (P^m)^T does in {matched}",
            holds(perfect >= 0.98 * seeds and matched >= 0.98 * seeds),
            how,
            "sampled",
            (min(perfect, matched), seeds),
        ),
        Finding(
            "parent_at_one",
            f"accuracy 1 in {perfect} of {seeds} runs, more than half of the attention on the parent in "
            f"{looks}; median {float(np.median(parents)):.1e}",
            holds(looks > seeds / 2),
            f"{how}. At p = 1 every token tells the label, so accuracy and parent score part",
            "trained at another",
            (looks, seeds),
        ),
    ]
    return Measured(claims, {"lag-classes": _classes_figure(hits, seeds)})


def _classes_figure(hits: np.ndarray, seeds: int) -> go.Figure:
    K = len(hits)
    bars = intervals([wilson(n, seeds) for n in hits])
    figure = go.Figure(go.Bar(x=np.arange(K), **bars, marker=fill(0), name="runs, 95 %"))
    figure.add_scatter(x=[-0.5, K - 0.5], y=[1 / K] * 2, mode="lines", line=style(1), name="uniform")
    title = f"Which lag class an escape from the trap chooses ({seeds} seeds, p = 1, K = 6, N = 97)"
    return titled(figure, title, "lag class m (lag modulo K; 1 holds the parent)", "share of runs")
