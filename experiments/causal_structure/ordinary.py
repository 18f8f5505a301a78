"""Ordinary two-layer decoders on chains along a graph: does their first layer attend along it?"""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.causal_structure.shared import RECIPES, away, recovered
from experiments.claims import Finding, holds, share
from experiments.figures import bands, titled
from experiments.harness import Measured, over_seeds, trained

FULL, QUICK = (1500, 16), (200, 2)  # steps, seeds


def ordinary(quick: bool) -> Measured:
    """The graph of the shipped recipe, with the loss of the answer alone."""
    steps, seeds = QUICK if quick else FULL
    recipe = mm.load_recipe(RECIPES / "ordinary.toml").with_set([f"steps={steps}"])
    (runs,) = trained([recipe], range(seeds))
    edges = np.stack([recovered(run) for run in runs])
    far = np.array([away(run) for run in runs])
    scores = [mm.probe(run, ["graph"], sequences=64)["graph"].scores for run in runs]
    named = sum(found["graph_head"].value == "L0H0" for found in scores)
    setting = (
        f"{seeds} seeds; two layers of one head, width 32, N = {recipe.model.n_ctx}, {steps} steps of "
        f"AdamW at {recipe.optimiser.lr:g}, batch 128, on the answer's loss"
    )
    claims = [
        Finding(
            "ordinary_recovers",
            f"named by the probe in {share(named, seeds)}; share of edges {over_seeds(edges[:, -1])}; "
            f"{over_seeds(far[:, 0])} nats from the law, counts of tokens {far[0, 1]:.3g}",
            holds(named == seeds),
            f"named: more true edges than edges moved at random have, at 1 %; {setting}",
            "trained at another",
            (named, seeds),
        )
    ]
    figure = go.Figure()
    bands(
        figure,
        runs[0].steps.numpy(),
        {"first layer": edges, "second layer": np.stack([recovered(r, 1) for r in runs])},
    )
    titled(figure, "Ordinary decoders", "step of AdamW", "share of the graph's edges")
    return Measured(claims, {"ordinary": figure})
