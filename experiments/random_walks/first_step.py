"""The first step: its closed form, and over which (K, N) one step is enough at p = 1."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.figures import titled
from experiments.harness import Measured
from experiments.random_walks.common import FLOAT64, POPULATION, value_matrix
from mechmarkov.theory.walk.first_step import first_step_profile


def first_step(quick: bool) -> Measured:
    """The closed form of the first step against the trained first step."""
    claims = []
    for p, n_train, n_ctx in ((0.5, 1000, 97), (0.5, 10_000 if quick else 200_000, 97), (1.0, 0, 96)):
        data = POPULATION if p == 1 else f"data={{n_train={n_train}}}"
        changes = [f"source.p={p}", "steps=1", "checkpoints=[1]", f"model.n_ctx={n_ctx}", data, FLOAT64]
        run = mm.train(mm.load_recipe("walk-k6-half").with_set(changes), seed=0)
        V, K = value_matrix(run, 1), run.source.n_states
        profile = first_step_profile(K, p, n_ctx)[1]
        displacement = (np.arange(K)[:, None] - np.arange(K)[None, :]) % K
        exact = profile[displacement] / (0.1 * n_ctx * K)  # eta / (eps N K), eta = 1, eps = 0.1
        error = float(np.abs(V - exact).max() / exact.max())
        # An entry is a mean over sequences of (count of x) [label y] / (eps N), and a fraction 1/K of them
        # has that label: its relative sampling error is about sqrt(K / n); 5 of those cover all entries.
        bound = 5 * np.sqrt(K / n_train) if n_train else 1e-6  # float32 checkpoints
        label = f"{n_train} sequences" if n_train else "the whole population"
        claims.append(
            Finding(
                "first_step_law",
                f"p={p:g}, N={n_ctx}, {label}: largest relative difference {error:.1e} (bound {bound:.1e})",
                holds(error < bound),
                "V after one step from zero against eta v_d / (eps N K); the bound is 5 sampling errors, or "
                "float32 storage",
                "derivation",
                case=label,
            )
        )
    return Measured(claims)


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
        "derivation",
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
