"""What the measurements of this folder share: its recipes, the distance between predictions."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

RECIPES = Path(__file__).parent / "recipes"


def distance(
    law: Float[np.ndarray, "batch *position state"], model: Float[np.ndarray, "batch *position state"]
) -> float:
    """Mean KL from a law to the model, in nats."""
    values = kl(law, model)
    return float(over_sequences(values if values.ndim > 1 else values[:, None]))
