"""Figure 6: walks from a small random start, and what step size its curves belong to."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Finding, holds, of_runs
from experiments.figures import REFERENCE, style, titled
from experiments.harness import Measured, first_time, over_seeds, trained, when
from experiments.random_walks.common import RECIPES, curve, kl_to_law, thin

PRINTED = 0.01
TIMES_SEQUENCES = 10.0  # the printed step size where the loss is a sum over the 1000 sequences
REPORTED = 400  # steps after which the fair walk is near 0.5, read off the figure
SUMMED = 1000  # the number of training sequences: what a summed loss multiplies the step size by
NEAR_NATS = 0.05  # of KL; the untrained model is log 3 = 1.1 nats from the fair walk
FAIR, SURE = 0.48, 0.99  # accuracy that counts as near 1/2, and as 1


def small_start(quick: bool) -> Measured:
    """The paper's start at the printed step size, and at larger ones."""
    steps, sequences = (400, 500) if quick else (1000, SUMMED)
    seeds, etas = range(1 if quick else 16), (PRINTED, TIMES_SEQUENCES)
    base = mm.load_recipe(RECIPES / "small-start.toml").with_set(
        [f"data.n_train={sequences}", f"steps={steps}", f"checkpoints={{every={steps // 20}}}"]
    )
    curves, times, divergence = {}, {}, {}
    for p, level in ((0.5, FAIR), (1.0, SURE)):
        for eta in etas:
            recipe = base.with_set([f"source.p={p}", f"optimiser.lr={eta}"])
            (runs,) = trained([recipe], seeds)
            curves[p, eta] = np.array([curve(run, "accuracy") for run in runs])
            divergence[p, eta] = np.array([kl_to_law(run) for run in runs])
            times[p, eta] = [first_time(rows >= level, stays=None) for rows in curves[p, eta]]
    best = TIMES_SEQUENCES
    ends = {key: float(rows[:, -1].mean()) for key, rows in curves.items()}
    as_printed, summed = times[0.5, PRINTED], times[0.5, best]
    in_time = [REPORTED / 2 < step < 2 * REPORTED for step in summed]
    direction, learned = of_runs(int(np.isfinite(as_printed).sum()), sum(in_time), len(in_time))
    ends_at = {p: divergence[p, best][:, -1] for p in (0.5, 1.0)}
    near = (ends_at[0.5] < NEAR_NATS).tolist()
    stays = [not np.isfinite(step) for step in times[1.0, best]]
    how = (
        f"K=6, N=97, V and W of sd 0.01, unit columns, {sequences} sequences, {steps} steps; "
        f"{len(seeds)} seeds; steps until training accuracy stays above {FAIR} (p = 1/2) or {SURE} (p = 1)"
    )
    table = "; ".join(
        f"eta {eta:g}: p = 1/2 at {when(times[0.5, eta])}, p = 1 at {when(times[1.0, eta])}" for eta in etas
    )
    claims = [
        Finding(
            "small_start_fair",
            f"eta {PRINTED}: accuracy {ends[0.5, PRINTED]:.3f} at the end; steps until learned, {table}",
            direction,
            f"{how}. A mean loss at the printed eta learns nothing; the curve is that of an eta of about "
            f"{best:g}, as of a loss summed over the 1000 sequences (0.01 x 1000 = 10)",
            "other setting",
            learned,
        ),
        Finding(
            "small_start_sure",
            f"at the eta that gives the fair walk's curve ({best:g}): p = 1 at {when(times[1.0, best])}, p "
            f"= 1/2 at {when(times[0.5, best])}; at eta {PRINTED}: accuracy {ends[1.0, PRINTED]:.3f}, as "
            f"little as the fair walk's {ends[0.5, PRINTED]:.3f}",
            holds(all(stays)),
            f"{how}. A random start is off the trap, which is a saddle: the deterministic walk leaves it as "
            "soon as the fair one learns",
            "other setting",
            (sum(stays), len(stays)),
        ),
        Finding(
            "small_start_kl",
            f"KL after {steps} steps at eta {best:g}: p = 1/2 {over_seeds(ends_at[0.5])}, p = 1 "
            f"{over_seeds(ends_at[1.0])} nats; before training {divergence[0.5, best][0, 0]:.3f} and "
            f"{divergence[1.0, best][0, 0]:.3f}",
            holds(all(near)),
            f"{how}; 500 fresh walks; outputs with negative ones as zero, plus eps = 0.1, that sum to one",
            "other setting",
            (sum(near), len(near)),
        ),
    ]
    kept, kl_steps = thin(steps), list(range(0, steps + 1, steps // 20))
    figure = _figure({key: rows[:, kept] for key, rows in curves.items()}, kept)
    figure.add_hline(y=0.5, line=REFERENCE, annotation_text="optimum at p = 1/2")
    figure.add_vline(x=REPORTED, line=REFERENCE, annotation_text="p = 1/2 learned, as reported")
    title = "Figure 6: accuracy from a small random start (sd 0.01), K = 6, N = 97"
    kl_title = "Figure 6: KL from the law of the next state to the outputs"
    return Measured(
        claims,
        {
            "small-start": titled(figure, title, "step", "training accuracy"),
            "small-start-kl": titled(_figure(divergence, kl_steps), kl_title, "step", "KL (nats)"),
        },
    )


def _figure(curves: dict[tuple[float, float], np.ndarray], steps: list[int]) -> go.Figure:
    """The median over seeds of each pair of p and eta."""
    figure = go.Figure()
    for i, (p, eta) in enumerate(sorted(curves, key=lambda pair: pair[1])):
        label = f"p = {p:g}, eta = {eta:g}" + (" (printed)" if eta == PRINTED else "")
        figure.add_scatter(x=steps, y=np.median(curves[p, eta], axis=0), name=label, line=style(i))
    return figure
