"""A run on a mixture of chains, at all its steps: how near each algorithm is, fits, bigram use; figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

import mechmarkov as mm
from experiments.figures import ranges, style, titled
from experiments.harness import evaluation, exact, predictions
from experiments.order_and_lag.algorithms import ALGORITHMS, SHORT, Fit, bigram_use, fit
from experiments.order_and_lag.shared import distance


@dataclass(frozen=True)
class Phase:
    """A run on sequences of its own chains ("own") or of chains it has never seen ("fresh").

    Attributes:
        run: The run.
        kl: Mean KL in nats from each algorithm to the model, over the second half of the positions.
        fits: The mixture of algorithms nearest to the model, at every step.
        apart: Mean KL from bigram retrieval to bigram inference: what there is to tell apart.
        use: Bigram use: change of the last prediction when the context is shuffled, at every step.
        possible: The same of the bigram algorithm that is best on these sequences.
    """

    run: mm.Run
    kl: Float[np.ndarray, "step algorithm"]
    fits: list[Fit]
    apart: float
    use: Float[np.ndarray, " step"]
    possible: float


def phase(run: mm.Run, source: mm.sources.Source, sequences: int) -> Phase:
    """Measure a run on sequences of a source; the four algorithms are those of the run's own chains."""
    tokens = evaluation(source, sequences, run.config.n_ctx)
    late = slice(tokens.shape[1] // 2, None)
    laws = exact(run.source, tokens)
    algorithms = np.stack([laws[name][:, late] for name in ALGORITHMS])
    model = predictions(run, tokens)[:, :, late]
    best = "bigram_retrieval" if source == run.source else "in_context_bigram"
    shuffled = mm.shuffle_context(tokens, "all but last", seed=0)
    after = run.source.predictors()[best].probabilities(shuffled.numpy())[:, -1]
    return Phase(
        run=run,
        kl=np.array([[distance(law, one) for law in algorithms] for one in model]),
        fits=[fit(one, algorithms) for one in model],
        apart=distance(algorithms[1], algorithms[3]),
        use=bigram_use(run.model(steps="all"), tokens),
        possible=distance(laws[best][:, -1], after),
    )


def by_chains(fresh: Mapping[int, Sequence[Phase]]) -> go.Figure:
    """Weights at the end, by the number of chains."""
    figure = go.Figure()
    for i, name in enumerate(SHORT):
        weights = [[float(one.fits[-1].weights[i]) for one in group] for group in fresh.values()]
        figure.add_scatter(x=list(fresh), **ranges(weights), name=name, mode="lines+markers", line=style(i))
    figure.update_xaxes(type="log", tickvals=list(fresh)).update_yaxes(range=[-0.02, 1.02])
    title = "What a model does on unseen chains, by how many it was trained on (range over seeds)"
    return titled(figure, title, "number of chains N", "weight of the algorithm")


def over_training(fresh: Mapping[int, Sequence[Phase]]) -> go.Figure:
    """Weights over training, a panel a number of chains."""
    figure = make_subplots(
        cols=len(fresh),
        shared_yaxes=True,
        subplot_titles=[f"N = {n}" for n in fresh],
        horizontal_spacing=0.03,
    )
    for column, group in enumerate(fresh.values(), start=1):
        one = group[0]
        for i, name in enumerate(SHORT):
            figure.add_scatter(
                x=one.run.steps[1:].tolist(),
                y=[round(float(found.weights[i]), 4) for found in one.fits[1:]],
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                mode="lines+markers",
                line=style(i),
                row=1,
                col=column,
            )
    figure.update_xaxes(type="log")
    figure.update_yaxes(title="weight of the algorithm", col=1)
    return titled(figure, "The four algorithms over training, on unseen chains (seed 0)", "training step")
