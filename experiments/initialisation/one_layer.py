"""Trained one-layer models: far from the bigram or not, where in `(e, w)`, how much attention, what rank."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from mechmarkov.probes.landscape.canonical_fit import canonical_fit

import mechmarkov as mm
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

RECIPES = Path(__file__).parent / "recipes"
REFERENCE, FROZEN = RECIPES / "reference.toml", RECIPES / "frozen-attention.toml"
SEQUENCES = 128  # of 32 tokens, to judge models on; fresh ones


def recipe(path: Path, p: float, q: float, *changes: str) -> mm.Recipe:
    """A recipe of this folder for a chain."""
    return mm.load_recipe(path).with_set([f"source.p={p}", f"source.q={q}", *changes])


def missing(runs: Sequence[mm.Run]) -> Float[np.ndarray, "run step"]:
    """What predictions lack at each kept step, `E KL(bigram ‖ model)`: 0 at the bigram, 1 at the unigram."""
    rows = []
    for run in runs:
        subject = mm.Subject.of(run, steps="all", sequences=SEQUENCES)
        lost = over_sequences(kl(subject.exact["bigram"][None], subject.probabilities))
        rows.append(lost / (run.source.unigram_entropy - run.source.entropy_rate))
    return np.stack(rows)


def coordinates(run: mm.Run, steps: list[int] | None = None) -> xr.Dataset:
    """`canonical_e` and `canonical_w` at kept steps."""
    fit = canonical_fit(mm.Subject.of(run, steps="all" if steps is None else steps, sequences=SEQUENCES))
    if isinstance(fit, str):
        raise ValueError(fit)
    return fit


def energy(runs: Sequence[mm.Run], weight: str) -> Float[np.ndarray, "run step"]:
    """`max_i sigma_i² / sum_i sigma_i²` of a weight at each kept step."""
    squares = torch.linalg.svdvals(torch.stack([run.states[weight] for run in runs])).square()
    squares = squares.reshape(len(runs), squares.shape[1], -1)
    return (squares[..., 0] / squares.sum(-1)).double().numpy()
