"""Figure 6: walks from a small random start, and what step size its curves belong to."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.figures import REFERENCE, style, titled
from experiments.harness import Claim, Measured, first_time, holds, trained, when
from experiments.random_walks.common import PAPER, RECIPES, curve, thin

PRINTED = 0.01
REPORTED = 400  # steps after which the fair walk is near 0.5, read off the figure
SUMMED = 1000  # the number of training sequences: what a summed loss multiplies the step size by
FAIR, SURE = 0.48, 0.99  # accuracy that counts as near 1/2, and as 1


def small_start(quick: bool) -> Measured:
    """The paper's start at the printed step size, and at larger ones."""
    etas = (PRINTED, 10.0) if quick else (PRINTED, 7.0, 10.0)
    seeds, sequences = (1, 500) if quick else (2, SUMMED)
    steps = 400 if quick else 1000
    base = mm.load_recipe(RECIPES / "small-start.toml").with_set(
        [f"data.n_train={sequences}", f"steps={steps}", f"checkpoints=[{steps}]"]
    )
    curves, times = {}, {}
    for p, level in ((0.5, FAIR), (1.0, SURE)):
        recipes = [base.with_set([f"source.p={p}", f"optimiser.lr={eta}"]) for eta in etas]
        for eta, runs in zip(etas, trained(recipes, range(seeds)), strict=True):
            curves[p, eta] = np.array([curve(run, "accuracy") for run in runs])
            times[p, eta] = [first_time(rows >= level, stays=None) for rows in curves[p, eta]]
    fair = {eta: np.median(np.minimum(times[0.5, eta], 10 * steps)) for eta in etas}
    best = min(etas, key=lambda eta: abs(np.log(fair[eta] / REPORTED)))
    ends = {key: float(rows[:, -1].mean()) for key, rows in curves.items()}
    learns_as_printed = fair[PRINTED] < steps
    calibrated = abs(np.log(fair[best] / REPORTED)) < np.log(1.5)
    escaped = np.isfinite(times[1.0, best]).any()
    how = (
        f"K=6, N=97, V and W of sd 0.01, unit columns, {sequences} sequences, {seeds} seed(s), {steps} "
        f"steps; steps until training accuracy stays above {FAIR} (p = 1/2) or {SURE} (p = 1)"
    )
    table = "; ".join(
        f"eta {eta:g}: p = 1/2 at {when(times[0.5, eta])}, p = 1 at {when(times[1.0, eta])}" for eta in etas
    )
    claims = [
        Claim(
            "From a small random start at eta = 0.01 the fair walk is learned in some hundreds of steps",
            f"{PAPER}, figure 6",
            f"eta {PRINTED}: accuracy {ends[0.5, PRINTED]:.3f} at the end; steps until learned, {table}",
            holds(learns_as_printed, corrected=calibrated),
            f"{how}. A mean loss at the printed eta learns nothing; the curve is that of an eta of about "
            f"{best:g}, as of a loss summed over the 1000 sequences (0.01 x 1000 = 10)",
            paper=f"accuracy near 0.5 after about {REPORTED} steps",
        ),
        Claim(
            "From that start the deterministic walk is slower than the fair one, and not learned by the end",
            f"{PAPER}, figure 6",
            f"at the eta that gives the fair walk's curve ({best:g}): p = 1 at {when(times[1.0, best])}, p "
            f"= 1/2 at {when(times[0.5, best])}; at eta {PRINTED}: accuracy {ends[1.0, PRINTED]:.3f}, as "
            f"little as the fair walk's {ends[0.5, PRINTED]:.3f}",
            holds(not escaped),
            f"{how}. A random start is off the trap, which is a saddle: the deterministic walk leaves it as "
            "soon as the fair one learns",
            paper="accuracy below 1.0 after 1000 steps",
        ),
    ]
    return Measured(claims, {"small-start": _figure(curves, best, steps)})


def _figure(curves: dict[tuple[float, float], np.ndarray], best: float, steps: int) -> go.Figure:
    figure, kept = go.Figure(), thin(steps)
    for i, (p, eta) in enumerate([(0.5, PRINTED), (1.0, PRINTED), (0.5, best), (1.0, best)]):
        label = f"p = {p:g}, eta = {eta:g}" + (" (printed)" if eta == PRINTED else "")
        middle = np.median(curves[p, eta], axis=0)[kept]
        figure.add_scatter(x=kept, y=middle, name=label, line=style(i))
    figure.add_hline(y=0.5, line=REFERENCE, annotation_text="optimum at p = 1/2")
    figure.add_vline(x=REPORTED, line=REFERENCE, annotation_text="p = 1/2 learned, as reported")
    title = "Figure 6: accuracy from a small random start (sd 0.01), K = 6, N = 97"
    return titled(figure, title, "step", "training accuracy")
