"""Figures 7 and 10: questions about fruit, with and without one more layer."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Evidence, Finding, holds, share
from experiments.figures import REFERENCE, style, titled
from experiments.harness import Measured, first_time, over_seeds, trained, when
from experiments.random_walks.common import RECIPES, curve, kl_to_law
from experiments.random_walks.relu_layer import Trained, train

LENGTH = {1: 17, 2: 19}
STEPS = range(0, 101, 5)  # of which the weights are kept
LEARNED = 0.99
RAW_LOG = mm.Objective(kind="raw_log", eps=0.1, read="last", query=True)
CROSS_ENTROPY = mm.Objective(kind="cross_entropy", read="last", query=True)
NO_LAYER = "no further layer"
PRINTED, AS_THEY_ARE = "raw log, eta 0.1", "raw log, eta 0.1, columns as they are"
BIASED, COMPETING, COMPETING_BIASED = "raw log, biases", "cross-entropy, eta 1", "cross-entropy, biases"
LAYERS: dict[str, tuple[mm.Objective, dict[str, Any]]] = {
    PRINTED: (RAW_LOG, {"eta": 0.1, "biases": False}),
    AS_THEY_ARE: (RAW_LOG, {"eta": 0.1, "biases": False, "unit_columns": False}),
    BIASED: (RAW_LOG, {"eta": 0.1, "biases": True}),
    COMPETING: (CROSS_ENTROPY, {"eta": 1.0, "biases": False}),
    COMPETING_BIASED: (CROSS_ENTROPY, {"eta": 1.0, "biases": True}),
}
WITHIN = 100  # steps, in which the paper's runs approach 1.0
LAYER_STEPS = 200
SEEDS = 16


def recipe_of(task: int, *changes: str) -> mm.Recipe:
    """Figure 7's recipe for one of its tasks."""
    base = mm.load_recipe(RECIPES / "questions.toml")
    return base.with_set([f"source.task={task}", f"model.n_ctx={LENGTH[task]}", *changes])


def plain(task: int, *changes: str) -> np.ndarray:
    """Training accuracy `[seed, step]` of the walk model itself, two seeds."""
    (runs,) = trained([recipe_of(task, *changes)], range(2))
    return accuracy_of(runs)


def accuracy_of(runs: list[mm.Run]) -> np.ndarray:
    """Training accuracy `[seed, step]`."""
    return np.array([curve(run, "accuracy") for run in runs])


def questions(quick: bool) -> Measured:
    """Figure 7: one question of counts, one of order."""
    seeds, long = (4, 200) if quick else (SEEDS, 1000)
    runs = {task: trained([recipe_of(task)], range(seeds))[0] for task in LENGTH}
    curves = {task: accuracy_of(found) for task, found in runs.items()}
    divergence = {task: np.array([kl_to_law(run) for run in found]) for task, found in runs.items()}
    longer = plain(2, "optimiser.lr=1", f"steps={long}", f"checkpoints=[{long}]")
    surer = (divergence[2][:, -1] > divergence[1][:, -1]).tolist()
    times = [first_time(rows >= LEARNED, stays=None) for rows in curves[1]]
    learned = int(np.isfinite(times).sum())
    stuck = int((np.abs(curves[2][:, -1] - 0.5) < 0.1).sum())
    how = (
        "16 and 18 words, one-hot, V and W of sd 0.01, unit columns, eta=0.1, mean loss, 1000 sentences, "
        f"{seeds} seeds; all 32 or 2 sentences are among them, so training and test accuracy are one"
    )
    theirs: Evidence = "trained at the paper's setting"
    ends = {task: over_seeds(rows[:, -1]) for task, rows in divergence.items()}
    claims = [
        Finding(
            "task_1",
            f"{share(learned, seeds)} seeds at 1.0 after 100 steps, at step {when(times)}",
            holds(learned >= 0.9 * seeds),
            how,
            theirs,
            (learned, seeds),
        ),
        Finding(
            "task_2",
            f"{stuck} of {seeds} seeds within 0.1 of 0.5 after 100 steps (mean "
            f"{curves[2][:, -1].mean():.3f}); with ten times the step size after {long} steps: "
            f"{', '.join(f'{value:.3f}' for value in longer[:, -1])}",
            holds(stuck >= 0.9 * seeds),
            how,
            theirs,
            (stuck, seeds),
        ),
        Finding(
            "task_kl",
            f"{share(sum(surer), seeds)} seeds; KL after 100 steps: task 1 {ends[1]}, task 2 {ends[2]} nats; "
            f"before training {divergence[1][0, 0]:.3f} and {divergence[2][0, 0]:.3f}",
            holds(sum(surer) > seeds / 2),
            f"{how}; outputs with negative ones as zero, plus eps = 0.1, that sum to one: eps is most "
            "of both",
            theirs,
            (sum(surer), seeds),
        ),
    ]
    kl = go.Figure()
    for i, (task, rows) in enumerate(divergence.items()):
        kl.add_scatter(x=list(STEPS), y=rows.mean(0), name=f"task {task}", line=style(i))
    kl_title = "Figure 7: KL from the answer to the outputs, mean over seeds"
    return Measured(
        claims,
        {
            "questions": _figure({(NO_LAYER, t): c for t, c in curves.items()}, 7),
            "questions-kl": titled(kl, kl_title, "step", "KL (nats)"),
        },
    )


def _layers(quick: bool) -> dict[tuple[str, int], Trained]:
    """Models with one more layer, by case and task."""
    common = {"steps": LAYER_STEPS, "sequences": 256 if quick else 1024}
    return {
        (name, task): train(
            mm.sources.FruitQuestions(task=task),
            objective,
            seeds=range(4 if quick else SEEDS),
            **how,
            **common,
        )
        for name, (objective, how) in LAYERS.items()
        for task in LENGTH
        if not (quick and name not in (PRINTED, COMPETING))
    }


def extra_layer(quick: bool) -> Measured:
    """Figure 10: the same with one more layer, as printed, and where words compete."""
    found = _layers(quick)
    n = found[PRINTED, 1].accuracy.shape[1]
    how = (
        f"A relu(V X S), 19 hidden units, all of sd 0.01, -log(score + 0.1), eta = 0.1, M = 1000, "
        f"{256 if quick else 1024} sentences, {n} seeds; learned: accuracy 1.0 at step {WITHIN}"
    )
    theirs: Evidence = "trained at the paper's setting"
    claims = []
    for name, case in (
        (PRINTED, "columns of unit length, as in section 5"),
        (AS_THEY_ARE, "columns as they are"),
    ):
        if (name, 1) not in found:
            continue
        one, two = (found[name, task] for task in LENGTH)
        passed = int((one.accuracy[: WITHIN + 1] >= LEARNED).any(0).sum())
        claims += [
            Finding(
                "layer_task_1",
                f"{share(learned(one), n)} seeds, {int((one.accuracy[-1] >= LEARNED).sum())} at step "
                f"{LAYER_STEPS}; {share(passed, n)} passed 1.0 for a while; cosine of the two answers' "
                f"rows of A {float(one.agreement.median()):.4f}",
                holds(learned(one) > n / 2),
                f"{how}. The loss leaves the other words alone: both answers' scores grow along one hidden "
                "direction, and what tells them apart freezes as the loss flattens",
                theirs,
                (learned(one), n),
                case=case,
            ),
            Finding(
                "layer_task_2",
                f"{share(n - learned(two), n)} seeds; mean accuracy at step {WITHIN} "
                f"{float(two.accuracy[WITHIN].mean()):.3f}",
                holds(learned(two) < n / 2),
                how,
                theirs,
                (n - learned(two), n),
                case=case,
            ),
        ]
    other = found[COMPETING, 1]
    claims.append(
        Finding(
            "layer_competing",
            f"{share(learned(other), n)} seeds; task 2 in {learned(found[COMPETING, 2])}",
            holds(learned(other) > n / 2),
            f"{how}, but cross-entropy and eta = 1: words compete, and what they share has no gradient",
            "trained at another",
            (learned(other), n),
        )
    )
    if not quick:
        claims.append(_biases(found, how))
    curves = {key: run.accuracy.T.numpy() for key, run in found.items() if key[0] in (PRINTED, COMPETING)}
    return Measured(claims, {"extra-layer": _figure(curves, 10)})


def _biases(found: dict[tuple[str, int], Trained], how: str) -> Finding:
    """What biases in both maps change of what is learned."""
    pairs = [
        (found[name, task].accuracy[-1], found[with_, task].accuracy[-1])
        for name, with_ in ((PRINTED, BIASED), (COMPETING, COMPETING_BIASED))
        for task in LENGTH
    ]
    same = sum(int(((a >= LEARNED) == (b >= LEARNED)).sum()) for a, b in pairs)
    total = sum(len(a) for a, _ in pairs)
    without, with_ = (_typical(found[name, 1]) for name in (COMPETING, COMPETING_BIASED))
    return Finding(
        "biases",
        f"{share(same, total)} runs as without after {LAYER_STEPS} steps; under cross-entropy task 1 takes "
        f"{without:.0f} steps without, {with_:.0f} with",
        holds(same >= 0.9 * total),
        f"{how}; the same with b and c of sd 0.01 in A relu(V X S + b) + c, both losses",
        "trained at another",
        (same, total),
    )


def learned(run: Trained) -> int:
    """How many seeds have learned their task within the paper's steps."""
    return int((run.accuracy[WITHIN] >= LEARNED).sum())


def _typical(run: Trained) -> float:
    """The median over seeds of the step at which a task is learned, inf for never."""
    accuracy = run.accuracy.T.numpy()
    return float(np.median([first_time(rows >= LEARNED, stays=None) for rows in accuracy]))


def _figure(curves: dict[tuple[str, int], np.ndarray], number: int) -> go.Figure:
    figure = go.Figure()
    for i, ((name, task), rows) in enumerate(curves.items()):
        figure.add_scatter(y=rows.mean(0), name=f"task {task}, {name}", line=style(i))
    figure.add_hline(y=0.5, line=REFERENCE, annotation_text="a guess")
    title = f"Figure {number}: questions about fruit, mean over seeds"
    return titled(figure, title, "step", "accuracy")
