"""In-context chains of order k, by depth: which k-gram a model is, and what its attention looks at."""

from functools import lru_cache

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.figures import marker, style, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained
from experiments.order_and_lag.shared import RECIPES, distance

# (order, layers); order 1 is quick.
GRID = ((2, 1), (2, 2))
SEQUENCES = 600
NAMES = {
    "uniform": "uniform",
    "in_context_unigram": "unigram",
    "in_context_bigram": "bigram",
    "in_context_order_2": "trigram",
    "in_context_order_3": "4-gram",
}


def by_order(quick: bool) -> dict[tuple[int, int], list[mm.Run]]:
    """The runs of each order and depth; with `quick` order 1 and two layers alone, one seed, fewer steps."""
    recipe = mm.load_recipe(RECIPES / "order.toml")
    grid, seeds = GRID, tuple(range(5))
    if quick:
        changes = ["source.concentration=0.1", "model.n_ctx=16", "model.d_mlp=32", "data.batch=32"]
        recipe = recipe.with_set(["steps=500", *changes])
        grid, seeds = ((1, 2),), (0,)
    shapes = [recipe.replace(**{"source.order": order, "model.n_layers": layers}) for order, layers in grid]
    return dict(zip(grid, trained(shapes, seeds), strict=True))


@lru_cache(maxsize=64)
def distances(run: mm.Run) -> dict[str, list[float]]:
    """Mean KL in nats from each predictor to the model, at every step it has kept."""
    tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx)
    model = predictions(run, tokens)
    return {name: [distance(law, one) for one in model] for name, law in exact(run.source, tokens).items()}


@lru_cache(maxsize=64)
def lower(run: mm.Run) -> float:
    """How far the next lower k-gram is from the best one: what a model of it would score."""
    tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx)
    laws = list(exact(run.source, tokens).values())
    return distance(laws[-1], laws[-2])


def is_the_k_gram(run: mm.Run) -> bool:
    """Whether the k-gram is the nearest predictor, and nearer than the next lower k-gram is to it."""
    final = {name: values[-1] for name, values in distances(run).items()}
    best = list(final)[-1]
    return min(final, key=lambda name: final[name]) == best and final[best] < lower(run)


def orders(quick: bool) -> Measured:
    """Depth and order: two layers of one head are enough, one layer is not."""
    found = by_order(quick)
    deep = {setting: runs for setting, runs in found.items() if setting[1] >= 2}
    shallow = {setting: runs for setting, runs in found.items() if setting[1] == 1}
    one = next(iter(found.values()))[0]
    how = (
        f"{SEQUENCES} fresh sequences of {one.config.n_ctx} binary tokens, kernels with "
        f"Dirichlet({one.source.concentration:g}) rows; KL from the exact posterior mean (smoothed counts "
        "after the last k tokens) to the model, mean over positions, by order k and layers L: median over "
        "seeds [smallest, largest], beside what the next lower k-gram scores. Passed where the k-gram is "
        "the nearest predictor, and nearer than that. On a CPU, with one head of width 16, an MLP and "
        f"{int(one.steps[-1])} steps: the paper has 15 000 steps, longer sequences and orders up to 8, "
        "which are not tested here"
    )
    fails = [not is_the_k_gram(run) for runs in shallow.values() for run in runs]
    claims = [
        Finding(
            "two_layers_k_gram",
            table(deep),
            holds(all(is_the_k_gram(run) for runs in deep.values() for run in runs)),
            how,
            "trained at another",
            (sum(is_the_k_gram(run) for runs in deep.values() for run in runs), sum(map(len, deep.values()))),
        ),
    ]
    if shallow:
        claims.append(
            Finding(
                "one_layer_k_gram",
                table(shallow),
                holds(not any(fails)),
                how + ". Training some weights is no bound for all: this is one width and one recipe",
                "trained at another",
                (len(fails) - sum(fails), len(fails)),
            )
        )
    return Measured(claims, {"order_by_depth": by_depth(found)})


def table(found: dict[tuple[int, int], list[mm.Run]]) -> str:
    """KL to the best k-gram by order and depth."""
    return "; ".join(
        f"k={order}, L={layers}: {over_seeds([list(distances(run).values())[-1][-1] for run in runs])} "
        f"({lower(runs[0]):.3f} at the lower)"
        for (order, layers), runs in found.items()
    )


def by_depth(found: dict[tuple[int, int], list[mm.Run]]) -> go.Figure:
    """KL to the best k-gram over training, a line a run."""
    figure = go.Figure()
    for i, ((order, layers), runs) in enumerate(found.items()):
        for run in runs:
            kl = list(distances(run).values())[-1]
            figure.add_scatter(
                x=run.steps[1:].tolist(),
                y=np.round(kl[1:], 5).tolist(),
                name=f"order {order}, {layers} layer{'s' * (layers > 1)}",
                legendgroup=str(i),
                showlegend=run is runs[0],
                mode="lines+markers",
                line=style(i),
                marker=marker(i),
            )
        figure.add_hline(y=lower(runs[0]), line=style(i, width=1, dash="longdashdot"))
    title = "From the in-context k-gram of the chain's order (thin lines: the next lower k-gram)"
    figure.update_xaxes(type="log").update_yaxes(type="log")
    return titled(figure, title, "training step", "KL to the model (nats)")
