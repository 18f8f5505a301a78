"""How many training sequences the walk model needs, compared with tables of counts."""

from collections.abc import Callable, Mapping

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Int
from numpy.lib.stride_tricks import sliding_window_view

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.figures import marker, style, titled
from experiments.harness import Measured, evaluation, trained
from experiments.random_walks.common import curve, value_matrix
from mechmarkov.models.constructions.walk import WalkShape, attend, position_table, read
from mechmarkov.training.data import data_seed

P_AHEAD, LENGTH = 0.7, 97
ENOUGH = 0.68  # accuracy; the best possible is 0.7
MODEL, LAST, ALL = (
    "walk model, 50 steps",
    "counts of the last transition",
    "counts of all transitions (next-token)",
)
Mean = tuple[float, float]  # over seeds, with its standard error


def sample_size(quick: bool) -> Measured:
    """The empirical loss: accuracy by the number of training sequences, against tables of counts."""
    sizes = (8, 256) if quick else (4, 8, 16, 32, 64, 128, 256, 1000)
    seeds = range(4 if quick else 16)
    base = mm.load_recipe("walk-k6-biased")
    recipes = [base.with_set([f"data.n_train={n}", "checkpoints=[50]"]) for n in sizes]
    runs = dict(zip(sizes, trained(recipes, seeds), strict=True))
    rules: dict[str, Callable[[mm.Run, int], float]] = {
        MODEL: lambda run, n: _model_accuracy(run),
        LAST: lambda run, n: _table_accuracy(_training_set(run, n)[:, -2:]),
        ALL: lambda run, n: _table_accuracy(sliding_window_view(_training_set(run, n), 2, 1)),
    }
    found = {
        name: {n: _mean([rule(run, n) for run in runs[n]]) for n in sizes} for name, rule in rules.items()
    }
    model, last, every = found.values()
    enough = {
        name: next((n for n, (mean, _) in means.items() if mean > ENOUGH), None)
        for name, means in found.items()
    }
    better = all(every[n][0] > model[n][0] - 2 * np.hypot(every[n][1], model[n][1]) for n in sizes)
    parents = {n: float(np.mean([curve(run, "parent_attention")[50] for run in runs[n]])) for n in sizes}
    shown = "; ".join(
        f"{n}: model {model[n][0]:.3f} ± {1.96 * model[n][1]:.3f}, last {last[n][0]:.3f}, all "
        f"{every[n][0]:.3f}"
        for n in sizes
    )
    reached, reached_first = model[sizes[-1]][0] > ENOUGH, model[sizes[0]][0] > ENOUGH
    claims = [
        Finding(
            "few_sequences",
            shown,
            holds(reached and reached_first, corrected=reached),
            f"p = 0.7, {len(seeds)} seeds, mean ± 95 %; accuracy of the model on 4000 fresh sequences, of "
            f"the tables exact. First size with mean accuracy above {ENOUGH}: "
            + ", ".join(f"{name}: {n or 'none'}" for name, n in enough.items())
            + f". Attention on the parent at the smallest size {parents[sizes[0]]:.2f}, at the largest "
            f"{parents[sizes[-1]]:.3f}",
            "trained at another",
            (sum(_model_accuracy(run) > ENOUGH for run in runs[sizes[-1]]), len(seeds)),
        ),
        Finding(
            "table_needs_fewer",
            shown,
            holds(better and (enough[ALL] or 0) < (enough[MODEL] or np.inf)),
            "the table reads N - 1 = 96 transitions a sequence, the model one label a sequence",
            "trained at another",
            (sum(rules[ALL](run, sizes[0]) > _model_accuracy(run) for run in runs[sizes[0]]), len(seeds)),
        ),
    ]
    return Measured(claims, {"sample-size": _figure(found)})


def _mean(values: list[float]) -> Mean:
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _training_set(run: mm.Run, n: int) -> Int[np.ndarray, "sequence position"]:
    """The sequences that the run was trained on."""
    generator = torch.Generator().manual_seed(data_seed(run.seed or 0))
    return run.source.sample(n, LENGTH, generator=generator).numpy()


def _table_accuracy(pairs: Int[np.ndarray, "*shape 2"]) -> float:
    """Of the likeliest next state by counts of (state, next state), exactly."""
    source = mm.Circle(n_states=6, p=P_AHEAD)
    counts = np.zeros((6, 6))
    np.add.at(counts, (pairs[..., 0], pairs[..., 1]), 1)
    return float(np.mean([source.P[x, counts[x].argmax()] for x in range(6)]))


def _model_accuracy(run: mm.Run) -> float:
    """As `outcome`, but only the last query is computed."""
    shape = WalkShape(run.source.n_states, run.config.n_ctx)
    states = evaluation(run.source, 4000, shape.n_ctx)
    x = torch.nn.functional.one_hot(states[:, :-1], shape.n_states).double()
    u = run.states["blocks.0.attn.W_K"][-1, 0, :, 0].double()
    scores = read(x, torch.tensor(value_matrix(run)), attend(x, shape.norm * u, position_table(shape)))
    return float((scores.argmax(-1) == states[:, -1]).double().mean())


def _figure(found: Mapping[str, Mapping[int, Mean]]) -> go.Figure:
    figure = go.Figure()
    for i, (name, means) in enumerate(found.items()):
        figure.add_scatter(
            x=list(means),
            y=[mean for mean, _ in means.values()],
            error_y={"array": [1.96 * error for _, error in means.values()]},
            name=name,
            mode="lines+markers",
            marker=marker(i),
            line=style(i),
        )
    figure.add_hline(y=P_AHEAD, line_dash="dot", annotation_text="best possible: 0.7")
    figure.add_hline(y=1 / 6, line_dash="dot", annotation_text="chance: 1/6")
    title = "How many sequences the walk model needs (p = 0.7, K = 6, N = 97)"
    return titled(figure, title, "training sequences", "accuracy (mean over seeds, 95 %)", xaxis_type="log")
