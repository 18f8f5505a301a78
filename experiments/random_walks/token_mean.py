"""The variance of the token mean over training at p = 1: zero in the trap, and an exponential way out."""

import numpy as np
import plotly.graph_objects as go
import torch
import torch.nn.functional as F

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.figures import marker, style, titled
from experiments.harness import Measured, first_time, trained
from experiments.random_walks.common import FLOAT64, SHORT_WALK, curve, value_matrix
from experiments.random_walks.hand_set import SHORT
from mechmarkov.models.constructions.walk import attend, position_table
from mechmarkov.theory.walk.trap_spectrum import trap_spectrum

K, EPS = SHORT.n_states, 0.1
EXACT, STARTED = "p = 1, zero start, exact", "p = 1, start of sd 1e-10, float64"
# A token's share of the mean is a sum of N - 1 attentions, each rounded by at most 2^-53 of at most 1; the
# variance adds the squares over K states.
ROUNDING = K * ((SHORT.n_ctx - 1) * 2.0**-53) ** 2


def token_mean_variance(run: mm.Run) -> tuple[np.ndarray, np.ndarray]:
    """Variance over sequences of the attention-weighted token mean, and mean `S_N`, `[step]`."""
    states = run.source.sample(300, SHORT.n_ctx - 1, generator=torch.Generator().manual_seed(1))
    x, table = F.one_hot(states, K).double(), position_table(SHORT)
    weights = run.states["blocks.0.attn.W_K"][:, 0, :, 0].double().expand(len(run.steps), -1)
    variance, query = [], []
    for u in weights:
        seen = attend(x, SHORT.norm * u, table)
        variance.append(float(torch.einsum("bn,bnk->bk", seen[:, :-1], x).var(0, correction=0).sum()))
        query.append(float(seen[:, -1].mean()))
    return np.array(variance), np.array(query)


def _train() -> dict[str, mm.Run]:
    """One run of each kind of start; every step is kept."""
    base = mm.load_recipe("walk-k6-one").with_set([*SHORT_WALK, "checkpoints={every=1}"])
    # The reduced system keeps the symmetry to the last bit. Tensors leave it at a step that depends on the
    # processor's order of summation: they are shown, and decide nothing.
    exact = mm.load_recipe("walk-k6-trap").with_set([*SHORT_WALK[:2], "checkpoints={every=1}"])
    small = ["init.scheme=normal", "init.std=1e-10", FLOAT64]
    recipes = {
        EXACT: exact,
        "p = 1, zero start, float64": base.with_set([FLOAT64]),
        "p = 1, zero start, float32": base,
        STARTED: base.with_set(small),
        "p = 1/2, zero start": base.with_set(["source.p=0.5"]),
    }
    runs = trained(list(recipes.values()), [0])
    return {name: run for name, (run,) in zip(recipes, runs, strict=True)}


def token_mean(quick: bool) -> Measured:
    """The variance of the token mean over training: zero in the trap, and an exponential way out."""
    del quick
    runs = _train()
    variance = {name: token_mean_variance(run)[0] for name, run in runs.items()}
    learned = {
        name: first_time(curve(run, "accuracy") > (0.9 if run.source.p == 1 else 0.45))
        for name, run in runs.items()
    }
    trap, started, step = variance[EXACT], variance[STARTED], learned[STARTED]
    growth, predicted, window = _growth(runs[STARTED], started)
    stays = trap.max() < ROUNDING and not np.isfinite(learned[EXACT])
    follows = np.isfinite(step) and started[int(step)] > 1e-3 and (started[: int(step) // 2] < 1e-3).all()
    found = "; ".join(
        f"{name}: {values[1]:.0e} at step 1, {values[-1]:.2g} at step 50, learned "
        + (f"at step {learned[name]:.0f}" if np.isfinite(learned[name]) else "never")
        for name, values in variance.items()
    )
    claims = [
        Finding(
            "mean_stays",
            found,
            holds(stays and follows),
            "300 fresh sequences, float64 forward pass of the checkpoints, K = 6, N = 25, |p|² = 32, 50 "
            "steps. Exact: the reduced system, symmetric to the last bit; its variance is compared with the "
            f"rounding of the forward pass, {ROUNDING:.0e}. Tensors leave zero by rounding, at a step that "
            "depends on the processor. Where the start leaves zero, the walk is learned when the variance "
            "is above 1e-3",
            "derivation",
        ),
        Finding(
            "mean_grows",
            f"steps {window[0]} to {window[1]}: standard deviation grows by exp({growth:.2f}), predicted "
            f"exp({predicted:.2f})",
            holds(abs(growth / predicted - 1) < 0.1),
            "start of sd 1e-10, float64; sum over steps of log(1 + eta lambda), lambda of attention by lag "
            "class (mechmarkov.theory.walk.trap_spectrum) at each step's mean of V and S_N; agreement "
            "within 10 %",
            "derivation",
        ),
    ]
    return Measured(claims, {"token-mean": _figure(variance)})


def _figure(variance: dict[str, np.ndarray]) -> go.Figure:
    figure = go.Figure()
    for i, (name, values) in enumerate(variance.items()):
        shown = np.maximum(values, 1e-33)
        figure.add_scatter(y=shown, name=name, mode="lines+markers", marker=marker(i, 5), line=style(i))
    title = "Variance of the attention-weighted token mean over training (drawn from 1e-33 up)"
    figure.update_yaxes(type="log", exponentformat="power", dtick=6)
    return titled(figure, title, "training step", "variance, summed over states")


def _growth(run: mm.Run, variance: np.ndarray) -> tuple[float, float, tuple[int, int]]:
    """Log growth of the standard deviation while small, measured and predicted, and between which steps."""
    _, query = token_mean_variance(run)
    last = int(np.flatnonzero(variance < 1e-6)[-1])
    first = last // 2  # before, other modes and the transient of the start are as large
    predicted = 0.0
    for step in range(first, last):
        alpha = float(value_matrix(run, step).mean())
        z = alpha * (1 - query[step])
        rates = trap_spectrum(
            n_states=K,
            length=SHORT.n_ctx,
            position_norm=SHORT.norm,
            alpha=alpha,
            query_mass=query[step],
            slope=-1 / (z + EPS),
        )
        predicted += float(np.log1p(rates.growth_position))
    return float(np.log(variance[last] / variance[first]) / 2), predicted, (first, last)
