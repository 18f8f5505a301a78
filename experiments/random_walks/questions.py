"""Figures 7 and 10: questions about fruit, with and without one more layer."""

from itertools import product

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Finding, holds, of_runs
from experiments.figures import REFERENCE, style, titled
from experiments.harness import Measured, first_time, over_seeds, share, trained, when
from experiments.random_walks.common import RECIPES, curve, kl_to_law
from experiments.random_walks.relu_layer import Trained, train

LENGTH = {1: 17, 2: 19}
STEPS = range(0, 101, 5)  # of which the weights are kept
SURER_NATS = np.log(2) / 2  # half of what a guess between two answers costs
LEARNED = 0.99
RAW_LOG = mm.Objective(kind="raw_log", eps=0.1, read="last", query=True)
CROSS_ENTROPY = mm.Objective(kind="cross_entropy", read="last", query=True)
NO_LAYER, PRINTED, COMPETING = "no further layer", "raw log, eta 0.1", "cross-entropy, eta 1"
LOSSES = {PRINTED: (RAW_LOG, 0.1), COMPETING: (CROSS_ENTROPY, 1.0)}  # objective, step size
CASES = list(product(LOSSES, (False, True)))  # loss, whether the maps have biases
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
    surer = (divergence[2][:, -1] - divergence[1][:, -1] > SURER_NATS).tolist()
    times = [first_time(rows >= LEARNED, stays=None) for rows in curves[1]]
    learned = int(np.isfinite(times).sum())
    stuck = int((np.abs(curves[2][:, -1] - 0.5) < 0.1).sum())
    how = (
        "16 and 18 words, one-hot, V and W of sd 0.01, unit columns, eta=0.1, mean loss, 1000 sentences, "
        f"{seeds} seeds; all 32 or 2 sentences are among them, so training and test accuracy are one"
    )
    claims = [
        Finding(
            "task_1",
            f"{share(learned, seeds)} seeds at 1.0 after 100 steps, at step {when(times)}",
            holds(learned >= 0.9 * seeds),
            how,
            "paper's setting",
            (learned, seeds),
        ),
        Finding(
            "task_2",
            f"{stuck} of {seeds} seeds within 0.1 of 0.5 after 100 steps (mean "
            f"{curves[2][:, -1].mean():.3f}); with ten times the step size after {long} steps: "
            f"{', '.join(f'{value:.3f}' for value in longer[:, -1])}",
            holds(stuck >= 0.9 * seeds),
            how,
            "paper's setting",
            (stuck, seeds),
        ),
        Finding(
            "task_kl",
            f"KL after 100 steps: task 1 {over_seeds(divergence[1][:, -1])}, task 2 "
            f"{over_seeds(divergence[2][:, -1])} nats; before training {divergence[1][0, 0]:.3f} and "
            f"{divergence[2][0, 0]:.3f}",
            holds(sum(surer) > seeds / 2),
            f"{how}; outputs with negative ones as zero, plus eps = 0.1, that sum to one: eps is most "
            "of both",
            "other setting",
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
    cases = CASES[::2] if quick else CASES
    return {
        (_case(kind, biases), task): train(
            mm.FruitQuestions(task=task),
            LOSSES[kind][0],
            seeds=range(4 if quick else SEEDS),
            eta=LOSSES[kind][1],
            steps=LAYER_STEPS,
            biases=biases,
            sequences=256 if quick else 1024,
        )
        for kind, biases in cases
        for task in LENGTH
    }


def _case(kind: str, biases: bool) -> str:
    return kind + ", biases" * biases


def extra_layer(quick: bool) -> Measured:
    """Figure 10: the same with one more layer, under the paper's loss and one where words compete."""
    found = _layers(quick)
    shares = {key: float((run.accuracy[-1] >= LEARNED).float().mean()) for key, run in found.items()}
    n = found[PRINTED, 1].accuracy.shape[1]
    direction, learned = of_runs(hits(found[PRINTED, 1]), hits(found[COMPETING, 1]), n)
    at20 = int((found[PRINTED, 1].accuracy[20] >= LEARNED).sum())
    twos = [float(run.accuracy[-1].mean()) for (_, task), run in found.items() if task == 2]
    told = "; ".join(
        f"{name}: {hits(run)} of {run.accuracy.shape[1]} (cosine of the answers' rows of A "
        f"{float(run.agreement.median()):.4f})"
        for (name, task), run in found.items()
        if task == 1
    )
    how = (
        f"A relu(V X S), 19 hidden units, all of sd 0.01, unit columns, {256 if quick else 1024} sentences, "
        f"{n} seeds, {LAYER_STEPS} steps of full-batch gradient descent"
    )
    claims = [
        Finding(
            "layer_task_1",
            f"at 1.0 after {LAYER_STEPS} steps: {told}; under the raw log loss after 20 steps: {at20}",
            direction,
            f"{how}. The loss -log(score + eps) of the right word leaves the other words alone: from a "
            "small start both answers' scores grow along one and the same hidden direction, and what tells "
            "them apart freezes as the loss flattens. Where words compete (cross-entropy) it is learned",
            "other setting",
            learned,
        ),
        Finding(
            "layer_task_2",
            f"mean accuracy after {LAYER_STEPS} steps: {', '.join(f'{value:.3f}' for value in twos)}",
            holds(all(abs(value - 0.5) < 0.1 for value in twos)),
            f"{how}; losses and biases as for task 1",
            "other setting",
            (sum(n - hits(run) for (_, task), run in found.items() if task == 2), n * len(twos)),
        ),
    ]
    if not quick:
        claims.append(_biases(found, shares, how))
    curves = {key: run.accuracy.T.numpy() for key, run in found.items() if "biases" not in key[0]}
    return Measured(claims, {"extra-layer": _figure(curves, 10)})


def _biases(found: dict[tuple[str, int], Trained], shares: dict[tuple[str, int], float], how: str) -> Finding:
    """What biases in both maps change."""
    same = total = 0
    for k, task in product(LOSSES, LENGTH):
        pair = [found[_case(k, biases), task].accuracy[-1] >= LEARNED for biases in (False, True)]
        same, total = same + int((pair[0] == pair[1]).sum()), total + len(pair[0])
    change = max(abs(shares[k, task] - shares[_case(k, True), task]) for k in LOSSES for task in LENGTH)
    without, with_ = (_typical(found[_case(COMPETING, biases), 1]) for biases in (False, True))
    return Finding(
        "biases",
        f"largest change of the share of seeds that learn a task in {LAYER_STEPS} steps: {change:.2f}; "
        f"median step at which task 1 is learned under cross-entropy: {without:.0f} without, {with_:.0f} "
        "with",
        holds(change <= 0.1),
        f"{how}; the same with b and c of sd 0.01 in A relu(V X S + b) + c",
        "other setting",
        (same, total),
    )


def hits(run: Trained) -> int:
    """How many seeds have learned their task at the end."""
    return int((run.accuracy[-1] >= LEARNED).sum())


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
