"""When induction emerges on fresh chains, by the length of the context and by the batch."""

from itertools import product

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.emergence.exponents import exponent, fitted, told, with_interval
from experiments.figures import intervals, marker, titled
from experiments.harness import (
    Measured,
    evaluation,
    exact,
    first_time,
    over_seeds,
    predictions,
    trained,
    when,
)

CONTEXTS = (8, 16, 32, 64, 128)
BATCHES = (4, 8, 16, 32, 64)
BATCH = 16  # at which contexts are compared with the stated exponent
SEQUENCES = 100
HALF = 0.5
WITHIN = 0.5  # of the stated exponent


def emerged(run: mm.Run) -> float:
    """The step from which half of what pairs tell beyond tokens is gained, in the second half of contexts."""
    tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx + 1)
    late = slice(run.config.n_ctx // 2, None)
    laws, model = exact(run.source, tokens[:, :-1]), predictions(run, tokens[:, :-1])
    after = tokens[:, 1:].numpy()[..., None]

    def loss(law: Float[np.ndarray, "*step batch position state"]) -> Float[np.ndarray, "*step"]:
        shown = np.broadcast_to(after, (*law.shape[:-1], 1))
        return -np.log(np.take_along_axis(law, shown, -1)[..., 0][..., late]).mean((-2, -1))

    unigram, bigram = (loss(laws[f"in_context_{name}"]) for name in ("unigram", "bigram"))
    return first_time((unigram - loss(model)) / (unigram - bigram) > HALF, run.steps.numpy(), stays=2)


def sizes(quick: bool) -> Measured:
    """One model, at each of five contexts with each of five batches."""
    steps, seeds = (250, range(2)) if quick else (800, range(16))
    contexts, batches = ((16, 32), (16, 32)) if quick else (CONTEXTS, BATCHES)
    base = mm.load_recipe("in-context-k3-shortformer").with_set(
        [
            f"steps={steps}",
            "checkpoints={every=10}",
            "optimiser.schedule='constant'",
            "model.n_heads=1",
            "model.d_head=16",
            "model.positional_embedding_type='relative'",
            "model.normalization_type='none'",
        ]
    )
    cells = list(product(batches, contexts))
    recipes = [base.with_set([f"data.batch={b}", f"model.n_ctx={context}"]) for b, context in cells]
    runs = trained(recipes, seeds)
    times = np.array([[emerged(run) for run in group] for group in runs])  # [cell, seed]
    grid = np.array(cells, float)
    of_batch, of_context = with_interval(grid, times)
    medians = np.median(times, axis=1)
    came, off = np.isfinite(medians), np.log(fitted(grid, medians)[1] / medians)
    explained = 1 - off[came].var() / np.log(medians[came]).var()
    row = grid[:, 0] == BATCH
    length = grid[row, 1]
    (at_one_batch,) = with_interval(length[:, None], times[row])
    slopes = np.array([exponent(length, column) for column in times[row].T])
    by_seed = np.array([fitted(grid, column)[0] for column in times.T])
    quadratic, both, n = np.abs(slopes - 2) < WITHIN, (by_seed < 0).all(1), len(seeds)
    setting = (
        "fresh chains on 3 states, rows from Dirichlet(1); two layers of one head, width 16, no MLP, no "
        f"norm, learned lags, {steps} steps of AdamW at a constant rate of 1e-2, kept every 10; contexts "
        f"{contexts}, each with batches {batches}; emerged: half of the way from the in-context unigram's "
        "loss to the bigram's"
    )
    told_times = "; ".join(
        f"{b} × {context}: {when(values)}" for (b, context), values in zip(cells, times, strict=True)
    )
    findings = [
        Finding(
            "quadratic_in_context",
            f"exponent {told(at_one_batch)} of median steps at batches of {BATCH}; by seed "
            f"{over_seeds(slopes)}, of which {share(int(quadratic.sum()), n)} within {WITHIN:g} of 2",
            holds(quadratic.all()),
            setting,
            "trained at another",
            count=(int(quadratic.sum()), n),
            number=f"t ∝ T^{told(at_one_batch)}",
        ),
        Finding(
            "batch_and_context",
            f"{share(int(both.sum()), n)} seeds have fewer steps with larger batches and longer contexts; "
            f"exponents of steps: batch {told(of_batch)}, context {told(of_context)}; of tokens seen: batch "
            f"{1 + of_batch[1]:.3g}, context {1 + of_context[1]:.3g}; they tell {explained:.2g} of the "
            f"variance of log times over {came.sum()} of {len(cells)} cells, and are off by a factor of "
            f"{np.exp(np.abs(off[came]).max()):.2g} at most; steps by batch × context {told_times}",
            holds(both.all()),
            setting,
            "trained at another",
            count=(int(both.sum()), n),
            number=f"t ∝ B^{told(of_batch)} T^{told(of_context)}",
        ),
    ]
    figure = go.Figure()
    for i, batch in enumerate(batches):
        shown = np.where(np.isfinite(times), times, steps)[grid[:, 0] == batch]
        middle = [tuple(np.quantile(values, [0, 0.5, 1])) for values in shown]
        figure.add_scatter(
            x=contexts, name=f"batch {batch}", mode="lines+markers", marker=marker(i), **intervals(middle)
        )
    figure.update_xaxes(type="log").update_yaxes(type="log")
    titled(figure, "When induction emerges (median and range over seeds)", "context", "training step")
    return Measured(findings[1:] if quick else findings, {"sizes": figure})
