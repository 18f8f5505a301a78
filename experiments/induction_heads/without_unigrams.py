"""Figure 4: does a quarter of sequences in which tokens are independent hold up the bigram?"""

from typing import Literal

import numpy as np
import torch

import mechmarkov as mm
from experiments.claims import Finding, holds, share, unfinished
from experiments.harness import Measured, first_time, keep_runs, trained, when
from experiments.induction_heads.panels import over_training
from experiments.induction_heads.shared import distances, gained, recipe, setting
from mechmarkov.sources.base.fresh_chains import Chains, FreshChains
from mechmarkov.sources.base.source import counting_rules
from mechmarkov.sources.sampling.streams import Device, Numbers, uniform

STATES = 3
UNIGRAM_SHARE = 0.25  # of appendix A.1
HALF = 0.5
LOWEST = -0.25  # of what is drawn


class PartlyUnigram(FreshChains):
    """Doubly stochastic chains drawn uniformly, but for a share of sequences whose tokens are independent.

    Args:
        n_states: Number of states.
        unigram_share: The probability that all rows of a sequence's chain are one draw (probability).
    """

    kind: Literal["partly_unigram"] = "partly_unigram"
    n_states: int = STATES
    unigram_share: float = UNIGRAM_SHARE

    def title(self) -> str:
        """Return what is drawn, in words."""
        return f"Doubly stochastic chains, {self.unigram_share:.0%} of them of independent tokens"

    def predictors(self) -> dict[str, mm.sources.Predictor]:
        """Return counts of tokens and of pairs, and the uniform law."""
        return counting_rules(self.n_states, unigram="a strategy", bigram="a strategy")

    def best(self) -> str:
        """Say why there is none."""
        return "which kind a sequence is of is not told, and the posterior mean has no closed form"

    def _chains(self, batch: int, generator: Numbers, device: Device) -> Chains:
        even, independent = (
            source.sample_chains(batch, generator=generator, device=device)
            for source in (
                mm.sources.DoublyStochastic(n_states=self.n_states, law="uniform"),
                mm.DirichletChains(n_states=self.n_states, rows="alike"),
            )
        )
        chosen = uniform(generator, device, batch) < self.unigram_share
        return torch.where(chosen[:, None, None], independent, even)


def without_unigrams(quick: bool) -> Measured:
    """When models of each training law reach half of the bigram's gain on chains of all kinds."""
    seeds, steps = (2, 40) if quick else (16, 600)
    base = recipe("model.n_ctx=32", "checkpoints={every=20}")
    more = round(steps / (1 - UNIGRAM_SHARE) / 20) * 20  # as many doubly stochastic sequences
    laws = {
        "doubly stochastic": (mm.sources.DoublyStochastic(n_states=STATES, law="uniform"), steps, 1.0),
        "a quarter of independent tokens": (PartlyUnigram(n_states=STATES), more, 1 - UNIGRAM_SHARE),
    }
    everything = mm.DirichletChains(n_states=STATES, start="uniform")
    curves, times = {}, {}
    for name, (source, length, even_share) in laws.items():
        with keep_runs(None):  # a source that is not registered is not written to files
            (runs,) = trained([base.replace(source=source, steps=length)], range(seeds))
        gains = np.stack([gained(distances(run, everything)) for run in runs], axis=1)
        at = runs[0].steps.numpy() * even_share  # counted in doubly stochastic sequences, as there
        curves[name] = (at, {"share of the bigram's gain": gains.clip(LOWEST)})
        times[name] = np.array([first_time(column > HALF, at) for column in gains.T])
    pure, mixed = times.values()
    faster = int((pure < mixed).sum())
    finding = Finding(
        "unigrams_slow",
        f"half of the gain at step {when(pure)} without them and {when(mixed)} with them; sooner in "
        f"{share(faster, seeds)} seeds",
        holds(faster == seeds),
        "share of what the in-context bigram gains over the unigram, on chains with rows from Dirichlet(1), "
        "last quarter of positions; steps count doubly stochastic sequences only, so that mixed runs have "
        "read more; "
        f"{setting(base, seeds)}",
        "trained at another",
        (faster, seeds),
    )
    figure = over_training(curves, "With and without sequences of independent tokens", "share")
    return Measured(unfinished([finding]) if quick else [finding], {"without_unigrams": figure})
