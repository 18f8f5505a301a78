"""The dynamics probe's pictures: progress, phases, the gradient, and other probes' scores over training."""

import numpy as np
import xarray as xr

from mechmarkov.probing.figure import Figure
from mechmarkov.probing.preconditions import in_words
from mechmarkov.report.figures import heatmap
from mechmarkov.report.probe_figures import over_training

from .measure import EVENTS
from .trajectory import EVENT_PROGRESS


def draw(data: xr.Dataset) -> list[Figure]:
    """Progress to each event, the phases, the gradient, and every followed score."""
    progress = {name: np.clip(data["progress"].sel(event=name).values, -0.1, 1.1) for name in EVENTS}
    progress = {name: values for name, values in progress.items() if np.isfinite(values).any()}
    phases = (data["nearest"].values[None] == np.arange(data.sizes["predictor"])[:, None]).astype(float)
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
        Figure(
            "Phases",
            "The exact predictor that the model is nearest to, at each kept step.",
            "plotly",
            heatmap(
                phases,
                [in_words(str(name)) for name in data["predictor"].values],
                [str(step) for step in data["step"].values],
                column_title="step",
                value_title="nearest",
                limits=(0, 1),
            ).update_traces(showscale=False, texttemplate=None),
        ),
        *over_training(
            "Gradient norm",
            "Over its largest: near a plateau it is small (Varre et al. 2025), and so it is at the end.",
            data,
            {"gradient": gradient},
            "share of the largest",
            log_y=True,
        ),
        *_scores_figure(data, "between 0 and 1", ("probability", "cosine", "share")),
        *_scores_figure(data, "in nats", ("nats",)),
    ]


def _scores_figure(data: xr.Dataset, title: str, units: tuple[str, ...]) -> list[Figure]:
    """The followed scores of some units over training, if there are any."""
    chosen = [i for i, unit in enumerate(data.attrs["score_units"]) if unit in units]
    if not chosen:
        return []
    return over_training(
        f"Scores over training, {title}",
        "The headline scores of the other probes, at each kept step.",
        data,
        {str(data["score"].values[i]): data["score_value"].values[:, i] for i in chosen},
        title.removeprefix("in "),
        markers=False,
    )
