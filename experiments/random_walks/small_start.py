"""Figures 6 and 11 to 13: walks from a small random start, as printed and at other step sizes."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Evidence, Finding, holds, share
from experiments.figures import REFERENCE, style, titled
from experiments.harness import Measured, first_time, over_seeds, trained, when
from experiments.random_walks.common import (
    RECIPES,
    attention,
    cosine_to,
    curve,
    kl_to_law,
    thin,
    value_matrix,
)

PRINTED = 0.01
SUMMED = 10.0  # the printed step size where the loss is a sum over the 1000 sequences
SLOW = 2.0  # at which the deterministic walk leaves the trap between steps 700 and 1000, as in figure 12
ETAS = {PRINTED: "as printed", SLOW: "eta 2", SUMMED: "a loss summed over the sequences, eta 10"}
REPORTED = 400  # steps after which the fair walk is near 0.5, read off the figure
FAIR, SURE = 0.48, 0.99  # accuracy that counts as near 1/2, and as 1
LIKE, MOST = 0.9, 0.9  # cosine and attention that count as V like the matrix, and attention close to 1
CONSTANT = 0.1  # |V - mean| / |V| below which V counts as close to the all-ones matrix
LARGER = 10  # times the uniform attention


def small_start(quick: bool) -> Measured:
    """The paper's start at the printed step size, and at larger ones."""
    steps, seeds = 400 if quick else 1000, range(1 if quick else 48)
    etas = (PRINTED, SUMMED) if quick else tuple(ETAS)
    marks = [round(steps * share_) for share_ in (0.1, 0.4, 0.7, 1.0)]
    every = steps // 20
    base = mm.load_recipe(RECIPES / "small-start.toml").with_set(
        [f"data.n_train={500 if quick else 1000}", f"steps={steps}", f"checkpoints={{every={every}}}"]
    )
    runs = {
        (p, eta): trained([base.with_set([f"source.p={p}", f"optimiser.lr={eta}"])], seeds)[0]
        for p in (0.5, 1.0)
        for eta in etas
    }
    curves = {key: np.array([curve(run, "accuracy") for run in found]) for key, found in runs.items()}
    divergence = {key: np.array([kl_to_law(run) for run in found]) for key, found in runs.items()}
    how = (
        f"K=6, N=97, M=1000, V and W of sd 0.01, unit columns, {500 if quick else 1000} sequences, {steps} "
        f"steps; {len(seeds)} seeds"
    )
    claims = []
    for eta in etas:
        claims += _accuracies(eta, curves, how)
        if eta != PRINTED:  # there nothing is learned: `printed_kl` asks on fresh seeds
            claims.append(_distances(eta, divergence, how))
        if not quick:
            claims += _weights(eta, runs, marks, how)
    kept, kl_steps = thin(steps), list(range(0, steps + 1, every))
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


def printed_kl(quick: bool) -> Measured:
    """Fresh seeds as printed: which walk loses half of the KL at the start first, if any does."""
    steps, seeds = 400 if quick else 1000, range(48, 49 if quick else 64)
    base = mm.load_recipe(RECIPES / "small-start.toml").with_set(
        [f"data.n_train={500 if quick else 1000}", f"steps={steps}", f"checkpoints={{every={steps // 20}}}"]
    )
    half, left = {}, {}
    for p in (0.5, 1.0):
        (runs,) = trained([base.with_set([f"source.p={p}", f"optimiser.lr={PRINTED}"])], seeds)
        rows = np.array([kl_to_law(run) for run in runs])
        half[p] = [first_time(row < row[0] / 2, runs[0].steps.numpy()) for row in rows]
        left[p] = rows[:, -1] / rows[:, 0]
    sooner = [a < b for a, b in zip(half[0.5], half[1.0], strict=True)]
    return Measured(
        [
            _finding(
                "small_start_kl",
                PRINTED,
                f"half of the KL is lost at step {when(half[0.5])} at p = 1/2, {when(half[1.0])} at p = 1; "
                f"share left at the end {over_seeds(left[0.5], 4)} and {over_seeds(left[1.0], 4)}",
                sooner,
                f"K=6, N=97, M=1000, V and W of sd 0.01, unit columns, {steps} steps; seeds {seeds[0]} to "
                f"{seeds[-1]}. Faster: half of the KL at the start is lost sooner at p = 1/2. What is left "
                "at the end, by which other step sizes are compared, was less at p = 1/2 in 21 of 48 "
                "earlier seeds: both walks keep nearly all of it",
            )
        ]
    )


def _finding(key: str, eta: float, told: str, hits: Sequence[bool], how: str) -> Finding:
    """What the seeds say at a step size; as printed is the paper's own setting."""
    n = sum(hits)
    evidence: Evidence = "trained at the paper's setting" if eta == PRINTED else "trained at another"
    return Finding(
        key,
        f"{share(n, len(hits))} seeds; {told}",
        holds(n > len(hits) / 2),
        how,
        evidence,
        (n, len(hits)),
        case=ETAS[eta],
    )


def _accuracies(eta: float, curves: dict[tuple[float, float], np.ndarray], how: str) -> list[Finding]:
    """Figure 6 (a) and (c)."""
    fair = [first_time(rows >= FAIR, stays=None) for rows in curves[0.5, eta]]
    sure = [first_time(rows >= SURE, stays=None) for rows in curves[1.0, eta]]
    near = [REPORTED / 2 <= step <= 2 * REPORTED for step in fair]
    never = [not np.isfinite(step) for step in sure]
    level = f"accuracy from {FAIR} (p = 1/2) or {SURE} (p = 1) on; around 400: from 200 to 800"
    return [
        _finding("small_start_fair", eta, f"learned at step {when(fair)}", near, f"{how}; {level}"),
        _finding("small_start_sure", eta, f"learned at step {when(sure)}", never, f"{how}; {level}"),
    ]


def _distances(eta: float, divergence: dict[tuple[float, float], np.ndarray], how: str) -> Finding:
    """Figure 6 (b) and (d): which of the two laws is learned faster."""
    left = {p: divergence[p, eta][:, -1] / divergence[p, eta][:, 0] for p in (0.5, 1.0)}
    faster = [bool(a < b) for a, b in zip(left[0.5], left[1.0], strict=True)]
    return _finding(
        "small_start_kl",
        eta,
        f"share of the KL that is left: {over_seeds(left[0.5], 2)} at p = 1/2, {over_seeds(left[1.0], 2)} at "
        f"p = 1; in nats {over_seeds(divergence[0.5, eta][:, -1])} and "
        f"{over_seeds(divergence[1.0, eta][:, -1])}",
        faster,
        f"{how}; 500 fresh walks; outputs with negative ones as zero, plus eps = 0.1, that sum to one",
    )


def _weights(
    eta: float, runs: dict[tuple[float, float], list[mm.Run]], marks: list[int], how: str
) -> list[Finding]:
    """Figures 11 to 13: V and attention, of the fair walk at the end, of the other on the way."""
    cosines = [cosine_to(value_matrix(run, marks[-1]), np.array(run.source.P)) for run in runs[0.5, eta]]
    looks = [float(attention(run, marks[-1]).mean(0)[0]) for run in runs[0.5, eta]]
    parent = [a > LIKE and b > MOST for a, b in zip(cosines, looks, strict=True)]
    off = np.array([[_off(value_matrix(run, step)) for step in marks] for run in runs[1.0, eta]])
    peak = np.array([[attention(run, step).mean(0).max() for step in marks] for run in runs[1.0, eta]])
    uniform = 1 / runs[1.0, eta][0].config.n_ctx
    constant = (off[:, :3] < CONSTANT).all(1) & (off[:, 3] > CONSTANT)
    even = (peak[:, :3] < LARGER * uniform).all(1) & (peak[:, 3] > LARGER * uniform)
    told = ", ".join(f"{step}: {over_seeds(off[:, i], 2)}" for i, step in enumerate(marks))
    seen = ", ".join(f"{step}: {over_seeds(peak[:, i], 2)}" for i, step in enumerate(marks))
    return [
        _finding(
            "figure_11",
            eta,
            f"cosine of V to the matrix {over_seeds(cosines)}, attention on the parent {over_seeds(looks)}",
            parent,
            f"{how}; both above {LIKE}, at step {marks[-1]}",
        ),
        _finding(
            "figure_12",
            eta,
            f"|V - mean| / |V| at steps {told}",
            [bool(x) for x in constant],
            f"{how}; close to all-ones: below {CONSTANT} until step {marks[2]}, above it at {marks[3]}",
        ),
        _finding(
            "figure_13",
            eta,
            f"largest attention on a token at steps {seen}",
            [bool(x) for x in even],
            f"{how}; much larger: {LARGER} times the uniform share, at step {marks[3]} only",
        ),
    ]


def _off(V: np.ndarray) -> float:
    """How far a matrix is from a multiple of the all-ones matrix, as a share of its norm."""
    return float(np.linalg.norm(V - V.mean()) / np.linalg.norm(V))


def _figure(curves: dict[tuple[float, float], np.ndarray], steps: list[int]) -> go.Figure:
    """The median over seeds of each pair of p and eta."""
    figure = go.Figure()
    for i, (p, eta) in enumerate(sorted(curves, key=lambda pair: pair[1])):
        label = f"p = {p:g}, eta = {eta:g}" + " (printed)" * (eta == PRINTED)
        figure.add_scatter(x=steps, y=np.median(curves[p, eta], axis=0), name=label, line=style(i))
    return figure
