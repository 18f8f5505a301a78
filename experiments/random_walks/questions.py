"""Figures 7 and 10: questions about fruit, with and without one more layer."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Measured, Verdict, wilson
from experiments.random_walks.common import (
    PAPER,
    RECIPES,
    first_time,
    row,
    style,
    titled,
)
from experiments.random_walks.relu_layer import Trained, train

LENGTH = {1: 17, 2: 19}
LEARNED = 0.99
RAW_LOG = mm.Objective(kind="raw_log", eps=0.1, read="last", query=True)
CROSS_ENTROPY = mm.Objective(kind="cross_entropy", read="last", query=True)
NO_LAYER = "no further layer"


def recipe_of(task: int, *changes: str) -> mm.Recipe:
    """Figure 7's recipe for one of its tasks."""
    base = mm.load_recipe(RECIPES / "questions.toml")
    return base.with_set([f"source.task={task}", f"model.n_ctx={LENGTH[task]}", *changes])


def plain(task: int, seeds: int, *changes: str) -> np.ndarray:
    """Training accuracy `[seed, step]` of the walk model itself."""
    runs = mm.train(recipe_of(task, *changes), seeds=range(seeds))
    return np.array([run.metrics["accuracy"]["value"].numpy() for run in runs])


def questions(quick: bool) -> Measured:
    """Figure 7: one question of counts, one of order."""
    seeds, long = (4, 200) if quick else (8, 1000)
    curves = {task: plain(task, seeds) for task in LENGTH}
    longer = plain(2, 2, "optimiser.lr=1", f"steps={long}", f"checkpoints=[{long}]")
    times = [first_time(curve, LEARNED) for curve in curves[1]]
    learned = sum(t is not None for t in times)
    stuck = sum(abs(curve[-1] - 0.5) < 0.1 for curve in curves[2])
    low, share, high = wilson(learned, seeds)
    known = [t for t in times if t is not None]
    how = (
        f"16 and 18 words, one-hot, V and W of sd 0.01, unit columns, eta=0.1, mean loss, 1000 sentences, "
        f"{seeds} seeds; all 32 or 2 sentences are among them, so training and test accuracy are one"
    )
    claims = [
        row(
            "questions",
            "Task 1 (which fruit is more frequent) is learned",
            f"{PAPER}, figure 7",
            "accuracy 1.0 within 100 steps",
            f"{learned} of {seeds} seeds at 1.0 after 100 steps ({share:.2f} [{low:.2f}, {high:.2f}]), "
            f"median step {np.median(known) if known else float('nan'):.0f}",
            learned >= 0.9 * seeds,
            how,
        ),
        row(
            "questions",
            "Task 2 (which fruit comes first) is not learned, though it has but two sentences",
            f"{PAPER}, figure 7",
            "accuracy about 0.5 after 100 steps",
            f"{stuck} of {seeds} seeds within 0.1 of 0.5 after 100 steps (mean "
            f"{curves[2][:, -1].mean():.3f}); with ten times the step size after {long} steps: "
            f"{', '.join(f'{value:.3f}' for value in longer[:, -1])}",
            stuck >= 0.9 * seeds,
            how,
        ),
    ]
    return Measured(claims, {"questions": _figure({(NO_LAYER, t): c for t, c in curves.items()}, 7)})


def extra_layer(quick: bool) -> Measured:
    """Figure 10: the same with one more layer, under the paper's loss and one where words compete."""
    seeds = range(8)
    steps = 200
    cases = {
        "raw log, eta 0.1": (RAW_LOG, 0.1, False),
        "raw log, eta 0.1, biases": (RAW_LOG, 0.1, True),
        "cross-entropy, eta 1": (CROSS_ENTROPY, 1.0, False),
        "cross-entropy, eta 1, biases": (CROSS_ENTROPY, 1.0, True),
    }
    if quick:
        del cases["raw log, eta 0.1, biases"], cases["cross-entropy, eta 1, biases"]
    found: dict[tuple[str, int], Trained] = {}
    for name, (objective, eta, biases) in cases.items():
        for task in LENGTH:
            source = mm.FruitQuestions(task=task)
            found[name, task] = train(
                source,
                objective,
                seeds=seeds,
                eta=eta,
                steps=steps,
                biases=biases,
                sequences=256 if quick else 1024,
            )
    shares = {key: float((run.accuracy[-1] >= LEARNED).float().mean()) for key, run in found.items()}
    as_printed, corrected = shares["raw log, eta 0.1", 1], shares["cross-entropy, eta 1", 1]
    at20 = int((found["raw log, eta 0.1", 1].accuracy[20] >= LEARNED).sum())
    twos = [float(run.accuracy[-1].mean()) for (_, task), run in found.items() if task == 2]
    told = "; ".join(
        f"{name}: {shares[name, 1] * len(seeds):.0f} of {len(seeds)} (cosine of the answers' rows of A "
        f"{float(found[name, 1].agreement.median()):.4f})"
        for name in cases
    )
    how = (
        f"A relu(V X S), 19 hidden units, all of sd 0.01, unit columns, {'256' if quick else '1024'} "
        f"sentences, {len(seeds)} seeds, {steps} steps of full-batch gradient descent"
    )
    claims = [
        row(
            "extra_layer",
            "With one more layer, A relu(V X S), task 1 is still learned",
            f"{PAPER}, figure 10",
            "accuracy 1.0 in about 20 steps",
            f"at 1.0 after {steps} steps: {told}; under the raw log loss after 20 steps: {at20}",
            "holds"
            if as_printed >= 0.9
            else "holds with a correction"
            if corrected >= 0.9
            else "does not hold",
            f"{how}. The loss -log(score + eps) of the right word leaves the other words alone: from a small "
            "start both answers' scores grow along one and the same hidden direction, and what tells them "
            "apart freezes as the loss flattens. Where words compete (cross-entropy) it is learned",
        ),
        row(
            "extra_layer",
            "With one more layer task 2 is still not learned",
            f"{PAPER}, figure 10",
            "accuracy about 0.5",
            f"mean accuracy after {steps} steps: {', '.join(f'{value:.3f}' for value in twos)}",
            all(abs(value - 0.5) < 0.1 for value in twos),
            f"{how}; losses and biases as for task 1",
        ),
    ]
    if not quick:
        pairs = [(name, f"{name}, biases") for name in cases if f"{name}, biases" in cases]
        change = max(abs(shares[a, task] - shares[b, task]) for a, b in pairs for task in LENGTH)
        without, with_ = (_typical(found[name, 1]) for name in ("cross-entropy, eta 1", pairs[-1][1]))
        alike: Verdict = "holds" if with_ < 1.2 * without else "holds with a correction"
        claims.append(
            row(
                "extra_layer",
                "Biases change nothing",
                f"{PAPER}, figure 10",
                "no difference",
                f"largest change of the share of seeds that learn a task in {steps} steps: {change:.2f}; "
                f"median step at which task 1 is learned under cross-entropy: {without:.0f} without, "
                f"{with_:.0f} with",
                alike if change <= 0.1 else "does not hold",
                f"{how}; the same with b and c of sd 0.01 in A relu(V X S + b) + c",
            )
        )
    names = [name for name in cases if "biases" not in name]
    curves = {(n, t): found[n, t].accuracy.T.numpy() for n in names for t in LENGTH}
    return Measured(claims, {"extra-layer": _figure(curves, 10)})


def _typical(run: Trained) -> float:
    """The median over seeds of the step at which a task is learned, inf for never."""
    times = [first_time(curve, LEARNED) for curve in run.accuracy.T]
    return float(np.median([np.inf if time is None else time for time in times]))


def _figure(curves: dict[tuple[str, int], np.ndarray], number: int) -> go.Figure:
    figure = go.Figure()
    for i, ((name, task), curve) in enumerate(curves.items()):
        figure.add_scatter(y=curve.mean(0), name=f"task {task}, {name}", line=style(i))
    steps = next(iter(curves.values())).shape[1] - 1
    figure.add_scatter(
        x=[0, steps], y=[0.5, 0.5], mode="lines", line={"color": "grey", "width": 1}, name="a guess"
    )
    title = f"Figure {number}: questions about fruit, mean over seeds"
    return titled(figure, title, "step", "accuracy")
