"""The full disentangled model where every position has two parents: does it learn, and along the graph?"""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.causal_structure.shared import RECIPES, away, recovered
from experiments.claims import Finding, holds, share
from experiments.figures import bands, titled
from experiments.harness import Measured, over_seeds, trained

FULL, QUICK = (1000, 16), (300, 2)  # steps, seeds


def several(quick: bool) -> Measured:
    """A second-order chain as a graph, with as many heads in the first layer as parents."""
    steps, seeds = QUICK if quick else FULL
    recipe = mm.load_recipe(RECIPES / "several.toml").with_set([f"steps={steps}"])
    (runs,) = trained([recipe], range(seeds))
    edges = np.stack([recovered(run) for run in runs])
    far = np.array([away(run) for run in runs])
    nearer, whole = int((far[:, 0] < far[:, 1]).sum()), int((edges[:, -1] == 1).sum())
    setting = (
        f"{seeds} seeds; K = 2, N = {recipe.model.n_ctx}, Dirichlet(0.1), heads 2 and 1, {steps} steps of "
        f"AdamW at {recipe.optimiser.lr:g}, batch 128, on the answer's loss"
    )
    claims = [
        Finding(
            "two_parents_nearer",
            f"in {share(nearer, seeds)}; {over_seeds(far[:, 0])} nats from the law, counts of tokens "
            f"{far[0, 1]:.3g}",
            holds(nearer == seeds),
            f"mean KL from counts along the graph; {setting}",
            "trained at another",
            (nearer, seeds),
        ),
        Finding(
            "two_parents_recovered",
            f"all edges in {share(whole, seeds)}; share of edges {over_seeds(edges[:, -1])}",
            holds(whole == seeds),
            "edges: more than a third of a position's mean attention, which has two parents, in either head; "
            f"{setting}",
            "trained at another",
            (whole, seeds),
        ),
    ]
    figure = go.Figure()
    bands(figure, runs[0].steps.numpy(), {"both heads together": edges})
    titled(figure, "Two parents, the full model", "step of AdamW", "share of the graph's edges")
    return Measured(claims, {"several": figure})
