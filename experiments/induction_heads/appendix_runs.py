"""Figures 4 (right), 7 and 10: lags of the minimal model, one layer trained longer, layers with MLPs."""

import numpy as np

import mechmarkov as mm
from experiments.claims import Finding, holds, share, unfinished
from experiments.harness import Measured, over_seeds, trained
from experiments.induction_heads import minimal
from experiments.induction_heads.minimal_claims import RATES
from experiments.induction_heads.panels import over_training, strips
from experiments.induction_heads.phases import phase_claims
from experiments.induction_heads.shared import distances, gained, recipe, setting

HALF = 0.5
LONGER = 8  # times the steps of the study of depths, as figure 7 has it
ONE_LAYER = {
    "attention, relative": ["model.attn_only=true", "model.positional_embedding_type=relative"],
    "attention, absolute": ["model.attn_only=true", "model.positional_embedding_type=standard"],
    "MLP, relative": ["model.attn_only=false", "model.positional_embedding_type=relative"],
    "MLP, absolute": ["model.attn_only=false", "model.positional_embedding_type=standard"],
}


def one_layer_longer(quick: bool) -> Measured:
    """One layer, with and without an MLP, with relative and with absolute positions, trained long."""
    seeds, steps = (1, 40) if quick else (4, 350 * LONGER)
    base = recipe("model.n_layers=1", "model.n_ctx=32", f"steps={steps}", "checkpoints=[0]")
    gains = {}
    for name, changes in ONE_LAYER.items():
        (runs,) = trained([base.with_set(changes)], range(seeds))
        gains[name] = np.array([gained(distances(run))[-1] for run in runs])
    every = np.concatenate([*gains.values()])
    short = int((every < HALF).sum())
    finding = Finding(
        "one_layer_longer",
        f"{share(short, len(every))} runs stay short of half of the bigram's gain; "
        + "; ".join(f"{name} {over_seeds(values)}" for name, values in gains.items()),
        holds(short == len(every)),
        "share of the bigram's gain over the unigram, last quarter of positions; "
        f"{setting(base, seeds)} a kind",
        "trained at another",
        (short, len(every)),
    )
    figure = strips(
        {"three symbols": gains},
        f"One layer after {LONGER} times as many steps",
        "",
        "share of the bigram's gain (nats)",
        {"unigram": 0.0, "in-context bigram": 1.0},
    )
    return Measured([finding], {"one_layer": figure})


def with_mlps(quick: bool) -> Measured:
    """The phases of models whose layers have an MLP."""
    seeds, steps = (2, 40) if quick else (16, 400)
    varied = recipe("model.attn_only=false", "model.n_ctx=32", f"steps={steps}", "checkpoints={every=10}")
    (runs,) = trained([varied], range(seeds))
    how = (
        f"an MLP of width {varied.model.d_mlp or 4 * varied.model.d_model} a layer; {setting(varied, seeds)}"
    )
    phases = phase_claims("three symbols, with MLPs", [distances(run) for run in runs], how)
    findings = [finding for finding in phases if finding.key != "rapid_drop"]
    return Measured(unfinished(findings) if quick else findings)


def lags(quick: bool) -> Measured:
    """Figure 4, centre and right: W and v of the minimal model trained on two symbols."""
    seeds, steps = range(2 if quick else 8), 40 if quick else 400
    length = 32
    chains = mm.DirichletChains(n_states=2, start="uniform")
    trajectory = minimal.train(
        chains, seeds, n_ctx=length, batch=32 if quick else 64, steps=steps, every=steps, **RATES
    )
    v, W = trajectory.v[-1].numpy(), trajectory.W[-1].numpy()
    even = np.arange(2, 9, 2)
    lower = (v[:, even] < np.minimum(v[:, even - 1], v[:, even + 1])).all(1)
    diagonal = np.abs(np.diagonal(W, axis1=1, axis2=2)).min(1) > np.abs(W[:, [0, 1], [1, 0]]).max(1)
    how = (
        f"two symbols, length {length}, {steps} steps of gradient descent, rates 0.01 for W and 1 for v as "
        f"in the public code, {len(seeds)} seeds"
    )
    figure = over_training(
        {"after training": (np.arange(12), {"v": v[:, :12].T})},
        "The minimal model's v, by lag",
        "v",
        x_title="lag",
    )
    return Measured(
        [
            Finding(
                "even_odd_trained",
                f"{share(int(lower.sum()), len(v))} seeds",
                holds(lower.all()),
                f"each even lag from 2 to 8 is below both neighbours; {how}",
                "trained at another",
                (int(lower.sum()), len(v)),
            ),
            Finding(
                "near_diagonal",
                f"{share(int(diagonal.sum()), len(v))} seeds",
                holds(diagonal.all()),
                f"both entries of W's diagonal exceed the others in size; {how}",
                "trained at another",
                (int(diagonal.sum()), len(v)),
            ),
        ],
        {"even_odd": figure},
    )
