"""Models trained on one of K fixed chains a sequence: which algorithm, by K and by step."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from mechmarkov.probes.belief.measure import measure as belief
from mechmarkov.probes.induction.measure import measure as induction

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import marker, ranges, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained
from experiments.order_and_lag.algorithms import ALGORITHMS, SHORT, fit
from experiments.order_and_lag.mixtures import FRESH, chains
from experiments.order_and_lag.shared import distance
from experiments.task_mixtures.border import Border, border

SEQUENCES = 200
BIGRAMS = (ALGORITHMS.index("bigram_retrieval"), ALGORITHMS.index("in_context_bigram"))
INFERENCE = [ALGORITHMS.index("in_context_unigram"), ALGORITHMS.index("in_context_bigram")]


def algorithms(
    run: mm.Run,
) -> tuple[Float[np.ndarray, "step algorithm"], Float[np.ndarray, "step algorithm"]]:
    """Of sequences of unseen chains: the mixture nearest to the model, and KL from each algorithm (nats)."""
    tokens = evaluation(FRESH, SEQUENCES, run.config.n_ctx)
    late = slice(tokens.shape[1] // 2, None)
    laws = exact(run.source, tokens)
    each = np.stack([laws[name][:, late] for name in ALGORITHMS])
    model = predictions(run, tokens)[:, :, late]
    weights = np.stack([fit(one, each).weights for one in model])
    return weights, np.array([[distance(law, one) for law in each] for one in model])


def recognised(run: mm.Run) -> tuple[float, float]:
    """The task-recognition score and the induction score of a run's last step.

    Returns:
        R² of the posterior over chains, read from the best stream, on fresh sequences of the run's own
        chains; and the largest induction score of a head (probability).
    """
    subject = mm.Subject.of(run, steps=[run.steps[-1].item()], sequences=128)
    of_task = belief(subject).isel(step=-1)
    heads = induction(subject).isel(step=-1)
    return float(of_task["r2"].max()), float(heads["induction"].sel(matched=1).max())


def phases(quick: bool) -> Measured:
    """Train on 2 to 64 chains."""
    steps, kept = (600, [0, 100, 600]) if quick else (1000, [0, 50, 100, 200, 400, 700, 1000])
    numbers, seeds = ((2, 32), range(2)) if quick else ((2, 4, 8, 16, 32, 64), range(16))
    base = mm.load_recipe("task-mixture").with_set([f"steps={steps}", f"checkpoints={kept}"])
    recipes = [base.replace(source={"kind": "chain_mixture", "chains": chains(n)}) for n in numbers]
    runs = trained(recipes, seeds)
    found = [[algorithms(run) for run in group] for group in runs]
    weights = np.array([[one[0] for one in group] for group in found])  # [number, seed, step, algorithm]
    kl = np.array([[one[1] for one in group] for group in found])
    scores = np.array([[recognised(run) for run in group] for group in runs])  # [number, seed, score]
    inference = weights[..., INFERENCE].sum(-1)
    borders = [border(np.array(numbers, float), inference[:, :, at]) for at in range(1, len(kept))]
    setting = (
        "one of K fixed chains on 3 states, drawn from Dirichlet(1); two layers of two heads, width 24, MLPs "
        f"of 96, contexts of 32, {steps} steps of AdamW on 16 sequences; K = {', '.join(map(str, numbers))}; "
        f"measured on {SEQUENCES} sequences of unseen chains, second half"
    )
    findings = [
        of_phases(kl, setting),
        of_border(inference[:, :, -1], str(borders[-1]), setting),
        one_point_first(kl, setting),
        of_scores(scores, numbers, setting),
    ]
    if quick:  # too few steps for two points of four, and too few for a border
        findings = findings[1:2]
    shown = {"phases": drawn_phases(kl, numbers, kept), "border": drawn_border(inference, numbers, kept)}
    if not quick:
        shown["scores"] = drawn_scores(scores, numbers)
        findings.append(over_steps(inference, borders, kept, setting))
    return Measured(findings, shown)


def of_phases(kl: Float[np.ndarray, "number seed step algorithm"], setting: str) -> Finding:
    """Whether each of four algorithms is nearest to some model at some step."""
    nearest = kl[:, :, 1:].argmin(-1)
    four = [len(np.unique(nearest[:, seed])) == 4 for seed in range(nearest.shape[1])]
    cells = [int((nearest == i).sum()) for i in range(4)]
    return Finding(
        "four_phases",
        f"{share(sum(four), len(four))} seeds pass through all four; nearest in "
        + ", ".join(f"{n} ({name})" for n, name in zip(cells, SHORT, strict=True))
        + f" of {nearest.size} runs and steps",
        holds(all(four)),
        f"nearest by KL from the algorithm, over all K of a seed and all kept steps but the first; {setting}",
        "trained at another",
        count=(sum(four), len(four)),
    )


def of_border(inference: Float[np.ndarray, "number seed"], value: str, setting: str) -> Finding:
    """Whether fewest chains are retrieved and most inferred, and where the border lies."""
    right = int((inference[0] < 0.5).sum() + (inference[-1] > 0.5).sum())
    n = 2 * inference.shape[1]
    return Finding(
        "border",
        f"K* = {value}, where inference has half of the weight; {share(right, n)} runs at the fewest and the "
        f"most chains lie on their side; inference {over_seeds(inference[0], 2)} to "
        f"{over_seeds(inference[-1], 2)}",
        holds(right == n),
        f"weights of a least-squares mixture of four algorithms; K* linear in log K, interval over seeds; "
        f"{setting}",
        "trained at another",
        count=(right, n),
        number=f"K* = {value}",
    )


def over_steps(
    inference: Float[np.ndarray, "number seed step"], borders: list[Border], kept: list[int], setting: str
) -> Finding:
    """Whether training on moves the border: shares at the last step and at the one before, at middle K."""
    middle = inference[1:-1]
    rises = int((middle[..., -1] > middle[..., -2]).sum())
    n = middle[..., 0].size
    told = "; ".join(f"{step}: {value}" for step, value in zip(kept[1:], borders, strict=True))
    return Finding(
        "border_moves",
        f"K* by step {told}; inference still rises from step {kept[-2]} to {kept[-1]} in {share(rises, n)} "
        "runs between the fewest and the most chains",
        holds(2 * rises > n),
        setting,
        "trained at another",
        count=(rises, n),
    )


def one_point_first(kl: Float[np.ndarray, "number seed step algorithm"], setting: str) -> Finding:
    """Whether a unigram algorithm is nearest first, and a bigram one at the end."""
    two_point = np.isin(kl[:, :, 1:].argmin(-1), BIGRAMS)
    turned = ~two_point[..., 0] & two_point[..., -1]
    n = turned.size
    return Finding(
        "one_point_first",
        f"{share(int(turned.sum()), n)} runs; by number of chains "
        + ", ".join(f"{int(row.sum())} of {len(row)}" for row in turned),
        holds(turned.all()),
        f"nearest at the first kept step after the start, and at the last; {setting}",
        "trained at another",
        count=(int(turned.sum()), n),
    )


def of_scores(
    scores: Float[np.ndarray, "number seed score"], numbers: tuple[int, ...], setting: str
) -> Finding:
    """Whether task recognition falls with K while induction rises."""
    task, head = scores[..., 0], scores[..., 1]
    both = (task[0] > task[-1]) & (head[0] < head[-1])
    told = "; ".join(
        f"K = {n}: {over_seeds(task[i], 2)} and {over_seeds(head[i], 2)}" for i, n in enumerate(numbers)
    )
    return Finding(
        "scores_cross",
        f"{share(int(both.sum()), both.size)} seeds; task recognition and induction: {told}",
        holds(both.all()),
        "task recognition: R² of the exact posterior over the run's own chains, read from the best stream, "
        f"held out; induction: the largest score of a head; fewest against most chains; {setting}",
        "trained at another",
        count=(int(both.sum()), both.size),
    )


def drawn_phases(
    kl: Float[np.ndarray, "number seed step algorithm"], numbers: tuple[int, ...], kept: list[int]
) -> go.Figure:
    """The nearest algorithm of most seeds, by number of chains and step."""
    nearest = kl[:, :, 1:].argmin(-1)
    counts = np.stack([(nearest == i).sum(1) for i in range(4)])  # [algorithm, number, step]
    most = counts.argmax(0)
    text = [[f"{SHORT[i]}<br>{counts[i, a, b]}" for b, i in enumerate(row)] for a, row in enumerate(most)]
    figure = go.Figure(
        go.Heatmap(
            z=most,
            x=[str(step) for step in kept[1:]],
            y=[str(n) for n in numbers],
            text=text,
            texttemplate="%{text}",
            colorscale=[[0, "#f2d0a4"], [0.33, "#a8c7e8"], [0.66, "#e8a8a8"], [1, "#a8e0b8"]],
            zmin=0,
            zmax=3,
            showscale=False,
        )
    )
    title = "The nearest algorithm on unseen chains, and of how many seeds"
    return titled(figure, title, "training step", "number of chains K")


def drawn_border(
    inference: Float[np.ndarray, "number seed step"], numbers: tuple[int, ...], kept: list[int]
) -> go.Figure:
    """How much of a model is inference, by number of chains."""
    figure = go.Figure()
    for i, at in enumerate(range(1, len(kept))):
        figure.add_scatter(
            x=list(numbers),
            name=f"step {kept[at]}",
            mode="lines+markers",
            marker=marker(i),
            **ranges(list(inference[:, :, at])),
        )
    figure.add_hline(0.5, line={"dash": "dot"})
    figure.update_xaxes(type="log", tickvals=list(numbers))
    title = "Inference against retrieval on unseen chains (range over seeds)"
    return titled(figure, title, "number of chains K", "weight of inference")


def drawn_scores(scores: Float[np.ndarray, "number seed score"], numbers: tuple[int, ...]) -> go.Figure:
    """Task recognition and induction, by number of chains."""
    figure = go.Figure()
    for i, name in enumerate(("task recognition (R²)", "induction (probability)")):
        figure.add_scatter(
            x=list(numbers), name=name, mode="lines+markers", marker=marker(i), **ranges(list(scores[..., i]))
        )
    figure.update_xaxes(type="log", tickvals=list(numbers))
    return titled(figure, "Task recognition and induction (range over seeds)", "number of chains K", "score")
