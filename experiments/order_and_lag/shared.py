"""What the measurements of this folder share: its recipes, the distance between predictions."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from mechmarkov.theory.kernel import kl

RECIPES = Path(__file__).parent / "recipes"


def distance(law: Float[np.ndarray, "*shape state"], model: Float[np.ndarray, "*shape state"]) -> float:
    """Mean KL from a law to the model, in nats."""
    return float(kl(law, model).mean())
