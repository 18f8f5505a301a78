"""What the measurements share: graphs, recipes, and edges that attention recovers."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

import mechmarkov as mm
from experiments.harness import evaluation
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

RECIPES = Path(__file__).parent / "recipes"
STATES, POSITIONS, CONCENTRATION = 3, 20, 0.1  # of the authors' runs on many graphs
SEQUENCES = 2048
Parents = list[list[int]]


def path(n: int) -> Parents:
    """Each position's parent is the one before: an in-context chain."""
    return [[], *([i] for i in range(n - 1))]


def random_tree(n: int, seed: int) -> Parents:
    """After the first two, each position has a parent before it with probability one half, all as likely."""
    rng = np.random.default_rng(seed)
    return [[], *([int(rng.integers(i))] if i == 1 or rng.random() < 0.5 else [] for i in range(1, n))]


def with_query(graph: Parents) -> Parents:
    """A graph, the query and the answer, whose parent the query is."""
    n = len(graph)
    return [*graph, [], [n]]


def recipe(name: str, graph: Parents, **changes: object) -> mm.Recipe:
    """One of the folder's recipes on a graph, with a query and an answer after it."""
    loaded = mm.load_recipe(RECIPES / f"{name}.toml")
    return loaded.replace(**{"source.parents": with_query(graph), **changes})


def recovered(run: mm.Run, layer: int = 0) -> Float[np.ndarray, " step"]:
    """The share of the graph's edges that the layer's heads recover together, at each kept step."""
    data = mm.probe(run, ["graph"], steps="all", sequences=64)["graph"].data
    edge, true = data["edge"].values[:, layer], data["true_edge"].values
    return np.asarray((edge.any(1) & true).sum((-2, -1)) / true.sum())


def away(run: mm.Run) -> tuple[float, float]:
    """KL (nats) from counts along the graph to the last weights' answer, and to counts of tokens.

    Frequencies are read as the loss reads them, with its eps added to each.
    """
    tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx + 1)[:, :-1]
    rules = run.source.predictors()
    best, unigram = (
        rules[f"in_context_{name}"].probabilities(tokens.numpy())[:, -1] for name in ("graph", "unigram")
    )
    scores = run.model()(tokens)[:, -1].detach().double()
    model = run.objective.predict(scores).numpy()
    if run.objective.kind == "raw_log":
        model = (model + run.objective.eps) / (1 + model.shape[-1] * run.objective.eps)
    of_model, of_unigram = (float(over_sequences(kl(best, other)[:, None])) for other in (model, unigram))
    return of_model, of_unigram
