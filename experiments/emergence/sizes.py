"""When induction emerges on fresh chains, by the length of the context and by the batch."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.emergence.exponents import exponent, told, with_interval
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
CONTEXT, BATCH = 16, 16  # where the other is varied
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
    """One model, five contexts and five batches."""
    steps, seeds = (250, range(2)) if quick else (400, range(16))
    contexts, batches = ((16, 32, 64), (8, 16, 32)) if quick else (CONTEXTS, BATCHES)
    cells = [(BATCH, context) for context in contexts] + [(b, CONTEXT) for b in batches if b != BATCH]
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
    recipes = [base.with_set([f"data.batch={b}", f"model.n_ctx={context}"]) for b, context in cells]
    runs = trained(recipes, seeds)
    times = {cell: np.array([emerged(run) for run in group]) for cell, group in zip(cells, runs, strict=True)}
    by_context = np.array([times[BATCH, context] for context in contexts])
    by_batch = np.array([times[b, CONTEXT] for b in batches])
    setting = (
        "fresh chains on 3 states, rows from Dirichlet(1); two layers of one head, width 16, no MLP, no "
        f"norm, learned lags, {steps} steps of AdamW at a constant rate of 1e-2, kept every 10; contexts "
        f"{contexts} at batches of {BATCH}, batches {batches} at contexts of {CONTEXT}; emerged: half of the "
        "way from the in-context unigram's loss to the bigram's"
    )
    length, batch = np.array(contexts, float), np.array(batches, float)
    of_context, of_batch = with_interval(length, by_context), with_interval(batch, by_batch)
    slopes = np.array([exponent(length, column) for column in by_context.T])
    by_batches = np.array([exponent(batch, column) for column in by_batch.T])
    quadratic, n = np.abs(slopes - 2) < WITHIN, len(seeds)
    both = (slopes < 0) & (by_batches < 0)
    told_times = "; ".join(f"{b} × {context}: {when(values)}" for (b, context), values in times.items())
    findings = [
        Finding(
            "quadratic_in_context",
            f"exponent {told(of_context)} of median steps; by seed {over_seeds(slopes)}, of which "
            f"{share(int(quadratic.sum()), n)} within {WITHIN:g} of 2; steps by batch × context {told_times}",
            holds(quadratic.all()),
            setting,
            "trained at another",
            count=(int(quadratic.sum()), n),
            number=f"t ∝ T^{told(of_context)}",
        ),
        Finding(
            "batch_and_context",
            f"{share(int(both.sum()), n)} seeds have fewer steps with larger batches and longer contexts; "
            f"exponents of steps: batch {told(of_batch)}, context {told(of_context)}; of tokens seen: batch "
            f"{1 + of_batch[1]:.3g}, context {1 + of_context[1]:.3g}",
            holds(both.all()),
            setting,
            "trained at another",
            count=(int(both.sum()), n),
            number=f"t ∝ B^{told(of_batch)} T^{told(of_context)}",
        ),
    ]
    figure = go.Figure()
    for i, (name, x, rows) in enumerate(
        (
            (f"by context, batch {BATCH}", length, by_context),
            (f"by batch, context {CONTEXT}", batch, by_batch),
        )
    ):
        shown = np.where(np.isfinite(rows), rows, steps)
        middle = [tuple(np.quantile(row, [0, 0.5, 1])) for row in shown]
        figure.add_scatter(x=x, name=name, mode="lines+markers", marker=marker(i), **intervals(middle))
    figure.update_xaxes(type="log").update_yaxes(type="log")
    titled(figure, "When induction emerges (median and range over seeds)", "size", "training step")
    return Measured(findings[1:] if quick else findings, {"sizes": figure})
