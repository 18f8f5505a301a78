"""Where trainings end: at the unigram or at the best predictor there is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import wilson
from mechmarkov.theory.kernel import kl

EVALUATION_SEED = 2_000_000_000  # a CPU generator keeps 32 bits; training seeds are small
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

    def share(self) -> str:
        """`3/8 stuck [0.14, 0.69]`, with Wilson's 95 % interval."""
        low, _, high = wilson(self.stuck, self.n)
        return f"{self.stuck}/{self.n} stuck [{low:.2f}, {high:.2f}]"


def fates(recipes: Sequence[mm.Recipe], seeds: int) -> list[Fate]:
    """Train every recipe for so many seeds, as fleets where they can share a stack, and judge each."""
    members = [mm.Member(recipe, seed) for recipe in recipes for seed in range(seeds)]
    runs = mm.train_members(members, progress=False)
    lost = [run.message for run in runs if not isinstance(run, mm.Run)]
    if lost:
        raise ValueError(f"diverged: {'; '.join(lost)}")
    kept = [run for run in runs if isinstance(run, mm.Run)]
    return [fate(kept[i : i + seeds]) for i in range(0, len(kept), seeds)]


def fate(runs: list[mm.Run], step: int = -1) -> Fate:
    """Where runs of one recipe are at a step."""
    source, length = runs[0].source, runs[0].model.n_ctx
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    tokens = source.sample(SEQUENCES, length, generator=generator)
    best = source.best()
    if isinstance(best, str):
        raise ValueError(best)
    exact, unigram = (rule.probabilities(tokens.numpy()) for rule in (best, source.predictors()["unigram"]))
    stack = mm.HookedDecoder.stack([run.decoder(step) for run in runs])
    with torch.no_grad():
        model = stack(tokens).double().softmax(-1).numpy()
    excess = kl(exact, model).mean((1, 2))
    return Fate(excess, float(kl(exact, unigram).mean()), runs)


def varied(name: str, *changes: str) -> mm.Recipe:
    """A shipped recipe with changes, of which only the first and the last weights are kept."""
    return mm.load_recipe(name).with_set(["checkpoints=[]", *changes])
