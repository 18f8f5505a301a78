"""Pictures of a model's behaviour: its distance from each exact predictor, by step, position and state."""

import numpy as np
import xarray as xr

from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.names import in_words
from mechmarkov.report.figures import bars, lines, matched
from mechmarkov.report.probe_figures import over_training


def draw(data: xr.Dataset) -> list[Figure]:
    """KL to each predictor, over steps and positions, and the transition matrix the model implies."""
    names = [in_words(str(name)) for name in data["predictor"].values]
    labels = [str(label) for label in data.attrs["labels"]]
    last = last_model(data)
    drawn = [
        Figure(
            "How far the model is from each exact predictor",
            "KL from the predictor to the model, mean over sequences and positions. Zero is imitation.",
            "plotly",
            bars(names, last["kl"].values, y_title="KL (nats)", lie=True),  # the same in every run
        ),
        *over_training(
            "KL over training",
            "When a line touches zero the model has that predictor.",
            data,
            dict(zip(names, data["kl"].values.T, strict=True)),
            "KL (nats)",
        ),
    ]
    if data.sizes["position"] > 1:
        caption = (
            "In-context predictors get better with every token they have seen."
            if data.attrs["redraws"]
            else "KL from each exact predictor to the model, where the sequence is that long."
        )
        series = dict(zip(names, last["kl_at"].values, strict=True))
        positions = data["position"].values.astype(float)
        figure = lines(positions, series, x_title="position", y_title="KL (nats)")
        drawn.append(Figure("KL at each position", caption, "plotly", figure))
    after = last["kl_after"].sel(predictor=data.attrs["bigram"]).values
    seen = np.flatnonzero(np.isfinite(after))
    before = str(data.attrs["state_before"])
    title = f"KL from the {in_words(data.attrs['bigram'])} after each {before}"
    caption = "A mean over the predictions that follow each state: where the model is wrong."
    by_state = bars([labels[i] for i in seen], after[seen], y_title="KL (nats)")
    drawn.append(Figure(title, caption, "plotly", by_state))
    if "kernel" in data:
        pair = matched(
            last["implied"].values,
            data["kernel"].values,
            labels,
            row_title=before,
            column_title="next state",
            value_title="probability",
            names=("the model", "the source"),
        )
        caption = f"Mean prediction after each {before}, next to P."
        drawn.append(Figure("The transition matrix, implied and true", caption, "plotly", pair))
    return drawn
