"""A chain of order six whose lags have unequal weights: when a model takes each of them up."""

import numpy as np
import plotly.graph_objects as go
from einops import rearrange
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.emergence.exponents import exponent, told, with_interval
from experiments.figures import bands, style, titled
from experiments.harness import Measured, evaluation, first_time, over_seeds, predictions, trained, when

P = np.array([[0.05, 0.85, 0.1], [0.1, 0.05, 0.85], [0.85, 0.1, 0.05]])
LAGS = (2, 3, 4, 5, 6)  # the token at lag 1 is in the stream without attention
WEIGHTS = np.array([0.18, 0.34, 0.10, 0.25, 0.13])  # not in the order of the lags
LATE = 16  # positions from which on uniform attention has less than half of each weight
SEQUENCES = 200
HALF = 0.5


def kernel() -> Float[np.ndarray, "..."]:
    """The mixture of rows, `Σ w_l P[x_{t-l}]`, for every history; the oldest state comes first."""
    n = max(LAGS)
    table = np.zeros((3,) * (n + 1))
    for history in np.ndindex(*(3,) * n):
        table[history] = sum(w * P[history[n - lag]] for lag, w in zip(LAGS, WEIGHTS, strict=True))
    return table


def recipe(steps: int) -> mm.Recipe:
    """One layer of five heads with learned positions, without an MLP."""
    base = mm.load_recipe("in-context-k3-shortformer").with_set(
        [
            f"steps={steps}", "checkpoints={every=10}", "model.n_layers=1", "model.n_ctx=32",
            "model.n_heads=5", "model.d_head=8", "model.d_model=32", "model.normalization_type='none'",
            "model.positional_embedding_type='relative'", "optimiser.schedule='constant'",
            "optimiser.lr=3e-3", "init.std=0.1", "data.batch=16",
        ]
    )  # fmt: skip
    return base.replace(source={"kind": "order_k", "kernel": kernel().tolist()})


def taken_up(run: mm.Run) -> Float[np.ndarray, "step lag"]:
    """By least squares of predictions on the rows at each lag: how much of each weight a model has.

    Lag 1 and the mean over all earlier tokens are in the fit too: what a model has of those alone, without
    attention to a lag, is correlated with the rows at lags.
    """
    tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx)
    model = predictions(run, tokens)[:, :, LATE:]
    x, last = tokens.numpy(), tokens.shape[1]
    at = [P[x[:, LATE + 1 - lag : last - lag + 1]] - 1 / 3 for lag in (1, *LAGS)]
    before = P[x].cumsum(1)[:, LATE:] / np.arange(LATE + 1, last + 1)[:, None]
    at.append(before - 1 / 3)
    features = rearrange(np.stack(at), "lag b t s -> (b t s) lag")
    values = rearrange(model - 1 / 3, "step b t s -> (b t s) step")
    return np.asarray(np.linalg.lstsq(features, values, rcond=None)[0].T[:, 1:-1] / WEIGHTS)


def top_lags(run: mm.Run) -> Float[np.ndarray, "step head"]:
    """The lag that each head attends to most, mean over late queries."""
    tokens = evaluation(run.source, 32, run.config.n_ctx)
    model = run.model(steps="all")
    _, cache = model.run_with_cache(tokens.expand(model.n_models, -1, -1))
    pattern = cache["blocks.0.attn.hook_pattern"].double().mean(1).numpy()  # [step, head, query, key]
    queries = range(LATE, run.config.n_ctx)
    by_lag = [np.mean([pattern[:, :, q, q + 1 - lag] for q in queries], 0) for lag in (1, *LAGS)]
    return np.array([1, *LAGS])[np.argmax(by_lag, 0)]


def lags(quick: bool) -> Measured:
    """Five weights in one chain: times, their exponent, and which lags heads attend to."""
    steps, seeds = (200, range(2)) if quick else (600, range(16))
    (runs,) = trained([recipe(steps)], seeds)
    kept = runs[0].steps.numpy()
    shares = np.stack([taken_up(run) for run in runs])  # [seed, step, lag]
    times = np.array([[first_time(row > HALF, kept) for row in one.T] for one in shares])  # [seed, lag]
    order = np.argsort(-WEIGHTS)
    n, heaviest = len(runs), int(np.argmax(WEIGHTS))
    sorted_ = np.array([np.isfinite(row).all() and (np.diff(row[order]) >= 0).all() for row in times])
    (found,) = with_interval(WEIGHTS[:, None], times.T) if not quick else np.full((1, 3), np.nan)
    slopes = np.array([exponent(WEIGHTS, row) for row in times])
    heads = np.stack([top_lags(run) for run in runs])  # [seed, step, head]
    dominant = (heads == LAGS[heaviest]).sum(-1)
    distinct = np.array([[len(set(row)) for row in one] for one in heads])
    peak = dominant.max(1)
    shift = (peak > dominant[:, -1]) & (distinct[:, -1] > distinct[np.arange(n), dominant.argmax(1)])
    setting = (
        "a chain of order 6 on 3 states, rows at lags 2 to 6 weighed "
        + ", ".join(f"{w:g}" for w in WEIGHTS)
        + f"; one layer of five heads of width 8, no MLP, contexts of 32, {steps} steps of AdamW at a "
        "constant rate on 16 sequences; taken up: half of a lag's weight in a least-squares fit of "
        "predictions"
    )
    by_lag = "; ".join(f"weight {WEIGHTS[i]:g}: {when(times[:, i])}" for i in order)
    findings = [
        Finding(
            "heavier_lags_first",
            f"{share(int(sorted_.sum()), n)} seeds take lags up in the order of their weights; steps "
            + by_lag,
            holds(sorted_.all()),
            setting,
            "trained at another",
            count=(int(sorted_.sum()), n),
        ),
        Finding(
            "competitive_then_cooperative",
            f"{share(int(shift.sum()), n)} seeds; heads on the heaviest lag {over_seeds(peak)} of 5 at most "
            f"and {over_seeds(dominant[:, -1])} at the end; different lags among heads there "
            f"{over_seeds(distinct[:, -1])}",
            holds(shift.all()),
            f"the lag that a head attends to most; {setting}",
            "trained at another",
            count=(int(shift.sum()), n),
        ),
        Finding(
            "time_by_weight",
            f"exponent {told(found)} of median times; by seed {over_seeds(slopes)}",
            holds((slopes < 0).all()),
            setting,
            "trained at another",
            count=(int((slopes < 0).sum()), n),
            number=f"t ∝ w^{told(found)}",
        ),
    ]
    figure = go.Figure()
    bands(figure, kept.tolist(), {f"lag {LAGS[i]}, weight {WEIGHTS[i]:g}": shares[:, :, i] for i in order})
    titled(figure, "How much of each lag's weight is taken up (range over seeds)", "training step", "share")
    attended = go.Figure()
    for i, (name, rows) in enumerate({"on the heaviest lag": dominant, "different lags": distinct}.items()):
        attended.add_scatter(x=kept, y=rows.mean(0), name=name, mode="lines", line=style(i))
    titled(attended, "Five heads: how many attend where (mean over seeds)", "training step", "number")
    return Measured(findings[:1] if quick else findings, {"lags": figure, "heads": attended})
