"""The theorem's model in two stages: the first layer learns the graph, then the second learns to match."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.causal_structure.shared import (
    POSITIONS,
    Parents,
    excess,
    pairs,
    path,
    random_tree,
    recipe,
    recovered,
)
from experiments.claims import Finding, holds
from experiments.figures import bands, titled
from experiments.harness import Measured, kept, over_seeds, share, trained

FULL, QUICK = 16, 2
FIRST, SECOND = 150, 100  # steps
LEARNED = 0.25  # of what counts of tokens are away


def second_stage(first: mm.Run, graph: Parents, steps: int) -> mm.Run:
    """The second layer alone, from where the first stage ended."""
    changes = {"frozen": ["blocks.0.attn.W_Q"], "steps": steps, "name": "causal-graph-second"}
    again = recipe("reduced", graph, **changes)
    return kept(f"{again.to_data()} from {first.recipe}", lambda: mm.train(again, seed=1, start=first))


def stages(quick: bool) -> Measured:
    """A random tree for every seed, and the two graphs of the text on as many."""
    n = QUICK if quick else FULL
    kinds: dict[str, list[Parents]] = {
        "random trees": [random_tree(POSITIONS - 1, seed) for seed in range(n)]
    }
    if not quick:
        kinds |= {"path": [path(POSITIONS - 1)] * n, "pairs": [pairs(POSITIONS - 1)] * n}
    claims, figure = [], go.Figure()
    for kind, graphs in kinds.items():
        alike = kind != "random trees"
        first = [recipe("reduced", graph, steps=FIRST) for graph in (graphs[:1] if alike else graphs)]
        found = trained(first, range(n) if alike else [0])
        runs = [run for each in found for run in each]
        share_of = np.stack([recovered(run) for run in runs])
        bands(figure, runs[0].steps.numpy(), {kind: share_of})
        whole = int((share_of[:, -1] == 1).sum())
        both = [second_stage(run, graph, SECOND) for run, graph in zip(runs, graphs, strict=True)]
        away = np.array([np.divide(*excess(run)) for run in both])
        before = np.array([np.divide(*excess(run)) for run in runs])
        setting = (
            f"{n} {'seeds' if alike else 'graphs'}; N = {POSITIONS}, {FIRST} and then {SECOND} steps of "
        )
        setting += "gradient descent at 30, batch 256, eps = 0.01, key_start 1"
        claims += [
            Finding(
                "first_layer_is_graph",
                f"all edges in {share(whole, n)}; share of edges {over_seeds(share_of[:, -1])}",
                holds(whole == n),
                f"edges: more than half of a position's mean attention, after the first stage; {setting}",
                "other setting",
                (whole, n),
                case=kind,
            ),
            Finding(
                "then_optimal",
                f"below {LEARNED:g} in {share(int((away < LEARNED).sum()), n)}; {over_seeds(away)}, "
                f"after the first stage {over_seeds(before)}",
                holds((away < LEARNED).all()),
                "KL from counts along the graph, over that of counts of tokens, after both stages; "
                + setting,
                "other setting",
                (int((away < LEARNED).sum()), n),
                case=kind,
            ),
        ]
    titled(figure, "The first stage", "step of gradient descent", "share of the graph's edges")
    return Measured(claims, {"stages": figure})
