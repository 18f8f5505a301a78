"""Training in a lower precision, and the scaler of its gradients."""

import pytest
import torch
from fitting import BASE, fit


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_lower_precision_keeps_weights_in_float32(precision):
    digits = {"bfloat16": 8, "float16": 11}[precision]
    recipe = BASE.with_set(["init.std=0.5", "steps=1"])
    exact, low = fit(recipe, [0, 1]), fit(recipe.with_set([f"precision={precision}"]), [0, 1])
    assert all(value.dtype == torch.float32 for value in low.checkpoints[1].values())
    error = (exact.metrics["loss"] - low.metrics["loss"]).abs().max()
    # Losses are of order one; each of some ten products rounds to that many binary digits.
    assert 0 < error < 10 * 2.0**-digits


def test_the_scaler_keeps_what_float16_alone_would_lose():
    """Gradients below float16's smallest number vanish without it."""
    weak = ["init.std=1e-3", "steps=1", "optimiser={kind='gd', lr=1.0}", "model.normalization_type=none"]
    full, low, scaled = (
        fit(BASE.with_set([*weak, *more]), [0])
        for more in ([], ["precision=float16"], ["precision=float16", "grad_scaler=true"])
    )

    def moved(fitted, name="blocks.0.mlp.W_in"):
        return float((fitted.checkpoints[1][name] - fitted.checkpoints[0][name]).norm())

    assert moved(full) > 1e-9
    assert moved(low) == 0
    assert moved(scaled) == pytest.approx(moved(full), rel=0.01)
