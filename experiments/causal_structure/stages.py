"""The theorem's model in two stages: the first layer learns the graph, then the second learns to match."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.causal_structure.shared import (
    POSITIONS,
    Parents,
    away,
    path,
    random_tree,
    recipe,
    recovered,
)
from experiments.claims import Finding, holds, share
from experiments.figures import bands, titled
from experiments.harness import Measured, kept, over_seeds, trained

FULL, QUICK = 16, 2
KINDS = ("random trees", "path")
FIRST, SECOND = 150, 60  # steps
SETTING = (
    f"N = {POSITIONS}, {FIRST} and then {SECOND} steps of gradient descent at 30, batch 256, eps = 0.01, "
    "key_start 1"
)


def second_stage(first: mm.Run, graph: Parents) -> mm.Run:
    """The second layer alone, from where the first stage ended."""
    again = recipe("reduced", graph, frozen=["blocks.0.attn.W_Q"], steps=SECOND)
    name = f"{again.to_data()} from {first.recipe} {first.seed}"
    return kept(name, lambda: mm.train(again, seed=1, start=first))


def of_kind(kind: str, graphs: list[Parents], figure: go.Figure) -> list[Finding]:
    """Both stages on some graphs, or on one with as many seeds."""
    n, distinct = len(graphs), len({str(graph) for graph in graphs})
    recipes = [recipe("reduced", graph, steps=FIRST) for graph in graphs[:distinct]]
    runs = [run for found in trained(recipes, range(n // distinct)) for run in found]
    edges = np.stack([recovered(run) for run in runs])
    bands(figure, runs[0].steps.numpy(), {kind: edges}, KINDS)
    both = [second_stage(run, graph) for run, graph in zip(runs, graphs, strict=True)]
    far = [(*away(start), away(end)[0]) for start, end in zip(runs, both, strict=True)]
    first, tokens, second = np.array(far).T
    whole, nearer = int((edges[:, -1] == 1).sum()), int((second < np.minimum(first, tokens)).sum())
    of = f"{n} {'graphs' if distinct > 1 else 'seeds'}; {SETTING}"
    return [
        Finding(
            "first_layer_is_graph",
            f"all edges in {share(whole, n)}; share of edges {over_seeds(edges[:, -1])}",
            holds(whole == n),
            f"edges: more than half of a position's mean attention, after the first stage; {of}",
            "trained at another",
            (whole, n),
            case=kind,
        ),
        Finding(
            "then_nearer",
            f"{share(nearer, n)}; {over_seeds(second)} nats after both stages, {over_seeds(first)} after the "
            f"first, {over_seeds(tokens)} for counts of tokens",
            holds(nearer == n),
            f"mean KL from counts along the graph, outputs with eps added; {of}",
            "trained at another",
            (nearer, n),
            case=kind,
        ),
    ]


def stages(quick: bool) -> Measured:
    """Random trees, and the path with as many seeds."""
    n, figure = QUICK if quick else FULL, go.Figure()
    graphs = {"random trees": [random_tree(POSITIONS - 1, seed) for seed in range(n)]}
    if not quick:
        graphs["path"] = [path(POSITIONS - 1)] * n
    claims = [finding for kind, some in graphs.items() for finding in of_kind(kind, some, figure)]
    titled(figure, "The first stage", "step of gradient descent", "share of the graph's edges")
    return Measured(claims, {"stages": figure})
