"""The loss in training as a short curve, for tables and small pictures."""

from collections.abc import Mapping

import numpy as np
import torch

MAX_CURVE_POINTS = 50


def training_curve(
    metrics: Mapping[str, Mapping[str, torch.Tensor]],
) -> dict[str, list[int] | list[float]] | None:
    """The loss in training at up to 50 steps, evenly on a symlog axis: each the mean since the one before.

    Args:
        metrics: The metrics of a run; None is returned where they have no `loss`, or one that is not a
            finite number a step.
    """
    loss = metrics.get("loss")
    if loss is None or not len(loss["step"]) or loss["value"].ndim != 1 or not loss["value"].isfinite().all():
        return None
    ends = np.unique(np.geomspace(1, len(loss["step"]), MAX_CURVE_POINTS).round().astype(int))
    sums = np.add.reduceat(loss["value"].double().numpy(), [0, *ends[:-1]])
    means = sums / np.diff(ends, prepend=0)
    steps = loss["step"].numpy()[ends - 1].tolist()
    return {"step": steps, "loss": [float(f"{mean:.5g}") for mean in means]}
