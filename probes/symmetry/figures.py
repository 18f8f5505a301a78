"""The symmetry probe's pictures: the first gradient, what the token mean tells, the way out of the trap."""

import numpy as np
import xarray as xr

from mechmarkov.probing.figure import Figure
from mechmarkov.report.figures import bars, heatmap
from mechmarkov.report.probe_figures import over_training


def draw(data: xr.Dataset) -> list[Figure]:
    """Figures of the first gradient, what the token mean tells, and the way out of the symmetric subspace."""
    labels = [str(label) for label in data.attrs["labels"]]
    bars_of = {"nearest class mean": "token_mean_accuracy", "one step from zero": "one_step_accuracy"}
    accuracy = np.array([float(data[name]) for name in bars_of.values()])
    low, high = np.array([data[name].attrs["interval"] for name in bars_of.values()]).T
    errors = (np.minimum(low, accuracy), np.maximum(high, accuracy))
    chance = {"the likeliest state": float(data["chance"])}
    series = {
        "attention spread": data["attention_spread"].values,
        "circuit variation": data["circuit_variation"].values,
    }
    if "reduced_spread" in data:
        series["reduced system's spread"] = data["reduced_spread"].values * (int(data.attrs["length"]) - 1)
    first, read = data["first_step"].values, "state read"
    return [
        Figure(
            "The first gradient of V, from zero",
            "How many earlier tokens are in each state, by label: exact. Equal rows are a first step that "
            "tells nothing.",
            "plotly",
            heatmap(first, labels, labels, row_title="label", column_title=read, value_title="tokens"),
        ),
        Figure(
            "What the token mean tells of the label",
            "A model with flat attention reads nothing else. On fresh sequences; nothing was fitted.",
            "plotly",
            bars(list(bars_of), accuracy, y_title="accuracy", errors=errors, references=chance),
        ),
        *over_training(
            "Distance to the trap",
            "Spread of the attention over tokens against uniform. Variation: the share of the circuits that "
            "depends on the state read. Both are zero in the trap.",
            data,
            series,
            "share",
        ),
    ]
