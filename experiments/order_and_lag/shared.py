"""What the measurements of this folder share: recipes, fresh sequences, predictions, means over seeds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

import mechmarkov as mm
from mechmarkov.theory.kernel import kl

RECIPES = Path(__file__).parent / "recipes"
EVALUATION_SEED = 2_000_000_000  # a CPU generator keeps 32 bits; training seeds are small


def command(name: str) -> str:
    """What measures a claim again."""
    return f"python -m experiments.order_and_lag --only {name}"


def evaluation(source: mm.Source, sequences: int, length: int) -> Int[Tensor, "batch position"]:
    """Sequences that no model was trained on."""
    return source.sample(sequences, length, generator=torch.Generator().manual_seed(EVALUATION_SEED))


def predictions(
    run: mm.Run, tokens: Int[Tensor, "batch position"]
) -> Float[np.ndarray, "step batch position state"]:
    """What the model predicts at every training step it has kept, float64."""
    decoder = run.decoder(steps="all")
    with torch.no_grad():
        scores = decoder(tokens.expand(run.n_steps, -1, -1))
    return np.asarray(scores.double().softmax(-1).numpy())


def exact(
    source: mm.Source, tokens: Int[Tensor, "batch position"]
) -> dict[str, Float[np.ndarray, "batch position state"]]:
    """What each predictor of the source predicts."""
    return {name: rule.probabilities(tokens.numpy()) for name, rule in source.predictors().items()}


def distance(law: Float[np.ndarray, "*shape state"], model: Float[np.ndarray, "*shape state"]) -> float:
    """Mean KL from a law to the model, in nats."""
    return float(kl(law, model).mean())


def over_seeds(values: Sequence[float], digits: int = 3) -> str:
    """The mean over seeds, and the smallest and largest of them."""
    low, high = min(values), max(values)
    return f"{np.mean(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
