"""Where trainings end: at the unigram or at the best predictor there is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import share, wilson
from experiments.figures import fill, intervals, titled
from experiments.harness import evaluation, trained
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

TIED = "binary-p05-q08-tied"
SEQUENCES = (
    128  # the laws are exact: of 64 positions each, they give the mean KL to a few percent of the line
)


@dataclass(frozen=True)
class Fate:
    """Where the seeds of one recipe ended.

    Attributes:
        excess: KL from the best predictor to the model, mean over positions of fresh sequences, nats.
        gap: The same for the unigram: what there is to learn beyond it.
        runs: The runs.
    """

    excess: Float[np.ndarray, " seed"]
    gap: float
    runs: list[mm.Run]

    @property
    def stuck(self) -> int:
        """How many have learned less than half of what there is beyond the unigram, as `mm.sweep` counts."""
        return int((self.excess > self.gap / 2).sum())

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.excess)

    def __str__(self) -> str:
        """`3/8 [0.14, 0.69] stuck`, with Wilson's 95 % interval."""
        return f"{share(self.stuck, self.n)} stuck"


def fates(recipes: Sequence[mm.Recipe], seeds: int) -> list[Fate]:
    """Train every recipe for so many seeds, and judge each."""
    return [fate(runs) for runs in trained(recipes, range(seeds))]


def fate(runs: list[mm.Run], step: int = -1) -> Fate:
    """Where runs of one recipe are at a step."""
    source, length = runs[0].source, runs[0].config.n_ctx
    tokens = evaluation(source, SEQUENCES, length)
    best = source.best()
    if isinstance(best, str):
        raise ValueError(best)
    optimal, unigram = (rule.probabilities(tokens.numpy()) for rule in (best, source.predictors()["unigram"]))
    stack = mm.HookedDecoder.stack([run.model(step) for run in runs])
    with torch.no_grad():
        model = stack(tokens).double().softmax(-1).numpy()
    excess = over_sequences(kl(optimal, model))
    return Fate(excess, float(over_sequences(kl(optimal, unigram))), runs)


def varied(name: str, *changes: str) -> mm.Recipe:
    """A shipped recipe with changes, of which only the first and the last weights are kept."""
    return mm.load_recipe(name).with_set(["checkpoints=[]", *changes])


def share_bars(title: str, x: str, groups: Mapping[str, Mapping[str, Fate]]) -> go.Figure:
    """Shares of stuck runs as bars with Wilson's 95 % intervals, a colour and a pattern a group."""
    figure = go.Figure()
    for i, (name, ends) in enumerate(groups.items()):
        found = [wilson(end.stuck, end.n) for end in ends.values()]
        bars = intervals(found) if found else {}
        figure.add_bar(x=list(ends), **bars, name=name, showlegend=len(groups) > 1, marker=fill(i))
    figure.update_xaxes(type="category").update_yaxes(range=[0, 1.05])
    return titled(figure, title, x, "share of runs stuck at the unigram")
