"""Over which (K, N) one step is enough at p = 1."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.figures import titled
from experiments.harness import Measured


@exactly
def one_step(quick: bool) -> Measured:
    """At p = 1: accuracy after a single step, over a grid of (K, N)."""
    states = [3, 6, 7] if quick else [*range(3, 13)]
    lengths = [*range(8, 20)] if quick else [*range(8, 50)]
    base = mm.load_recipe("walk-k6-trap").with_set(["steps=1", "checkpoints=[1]"])
    accuracy = np.empty((len(states), len(lengths)))
    for i, K in enumerate(states):
        for j, N in enumerate(lengths):
            run = mm.train(base.with_set([f"source.n_states={K}", f"model.n_ctx={N}"]), seed=0)
            accuracy[i, j] = float(run.metrics["accuracy"]["value"][1])
    K, N = np.array(states)[:, None], np.array(lengths)[None, :]
    divides = (N - 1) % K == 0
    enough, flat = accuracy == 1, np.isclose(accuracy, 1 / np.broadcast_to(K, accuracy.shape), atol=1e-12)
    claim = Finding(
        "one_step_enough",
        f"of {accuracy.size} pairs: K divides N - 1 in {int(divides.sum())}, accuracy 1/K in "
        f"{int((flat & divides).sum())} of them; elsewhere accuracy 1 in {int((enough & ~divides).sum())} "
        f"of {int((~divides).sum())}",
        holds(bool((enough == ~divides).all() and flat[divides].all())),
        f"K from {min(states)} to {max(states)}, N from {min(lengths)} to {max(lengths)}; one step from "
        "zero on the whole population, float64, the reduced system; equal scores share the hit",
        "computed exactly",
        number=f"{int((enough == ~divides).sum())} of {accuracy.size} (K, N)",
    )
    figure = go.Figure(
        go.Heatmap(
            z=accuracy,
            x=lengths,
            y=states,
            colorscale="Viridis",
            zmin=0,
            zmax=1,
            xgap=1,
            ygap=1,
            colorbar={"title": "accuracy"},
        )
    )
    return Measured(
        [claim],
        {
            "one-step": titled(
                figure,
                "Accuracy after one step at p = 1: dark where K divides N - 1",
                "sequence length N",
                "states K",
            )
        },
    )
