"""The dynamics probe's pictures: progress and the gradient; the report draws the loss itself."""

import numpy as np
import xarray as xr

from mechmarkov.probing.figure import Figure
from mechmarkov.report.probe_figures import over_training

from .trajectory import EVENT_PROGRESS


def draw(data: xr.Dataset) -> list[Figure]:
    """Figures of the progress to each event, and of the gradient."""
    progress = {
        name: np.clip(data["progress"].sel(event=name).values, -0.1, 1.1)
        for name in data["event"].values.tolist()
    }
    progress = {name: values for name, values in progress.items() if np.isfinite(values).any()}
    gradient = np.where(data["scaled_gradient"] > 0, data["scaled_gradient"], np.nan)
    return [
        *over_training(
            "What was learned when",
            "Share of the way to each event; it happens where a line crosses one half.",
            data,
            progress,
            "progress",
            references={"the event": EVENT_PROGRESS},
        ),
        *over_training(
            "Gradient norm",
            "Over its largest: near a plateau it is small (Varre et al. 2025), and so it is at the end.",
            data,
            {"gradient": gradient},
            "share of the largest",
            log_y=True,
        ),
    ]
