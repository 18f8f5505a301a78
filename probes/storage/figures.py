"""The storage probe's pictures: shares, sufficiency and necessity, the home's table and its ranks."""

import numpy as np
import xarray as xr

from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.figure import Figure
from mechmarkov.report.figures import bars, heatmap, lines
from mechmarkov.report.probe_figures import over_training, state_heatmap
from mechmarkov.theory.kernel import row_centred

from .home import homes_of, weight_of


def draw(data: xr.Dataset) -> list[Figure]:
    """Shares, sufficiency and necessity, the home's table beside P, its ranks, and all over training."""
    last, homes = last_model(data), homes_of(data)
    paths = [str(path) for path in data["path"].values]
    labels = [str(label) for label in data.attrs["labels"]]
    shown, unit = ("share", "share of the gain") if homes else ("worth", "nats")
    path = homes[0] if homes else paths[int(np.argmin(last["kl_only"].values))]
    table = row_centred(np.nan_to_num(last["table"].sel(path=path).values))
    return [
        Figure(
            "What each path gives",
            "Shapley values of what all paths together are nearer to the exact bigram than their means are.",
            "plotly",
            bars(
                paths,
                last[shown].values,
                y_title=unit,
                errors=(last["share_low"].values, last["share_high"].values) if homes else None,
            ),
        ),
        Figure(
            "Sufficient, necessary",
            "KL from the exact bigram to the model with only one path, and with all but one, the others at "
            "their mean.",
            "plotly",
            bars(
                [f"only {path}" for path in paths] + [f"without {path}" for path in paths],
                np.concatenate([last["kl_only"].values, last["kl_without"].values]),
                y_title="nats",
                references={"none removed": float(last["kl_full"]), "all removed": float(last["kl_empty"])},
            ),
        ),
        Figure(
            f"What {path} says of the next state",
            "Its mean contribution to the logits given the parent state, each row less its mean.",
            "plotly",
            state_heatmap(table, labels, "score", diverging=True),
            key="contribution of the home",
        ),
        Figure(
            "The transition matrix of the source",
            "P: the truth.",
            "plotly",
            heatmap(data["kernel"].values, labels, labels, limits=(0, 1), value_title="probability"),
        ),
        *(_rank_figure(last, weight_of(path)) if homes else []),
        *_position_figure(last),
        *over_training(
            "What each path gives over training",
            "Shapley values, in nats; they add up to the gain.",
            data,
            {path: data["worth"].sel(path=path).values for path in paths},
            "nats",
        ),
    ]


def _position_figure(last: xr.Dataset) -> list[Figure]:
    """Where predictions follow the parent, if there is more than one position."""
    at = last["parent_gain_at"]
    measured = at[np.isfinite(at.values)]
    if measured.size < 2:
        return []
    figure = lines(
        measured["position"].values.astype(float),
        {"nearer": measured.values},
        x_title="position",
        y_title="nats",
    )
    caption = (
        "How much nearer setting the parent brings the prediction to that state's row of P; 0 if ignored."
    )
    return [Figure("What the parent tells, by position", caption, "plotly", figure)]


def _rank_figure(last: xr.Dataset, weight: str) -> list[Figure]:
    """The parts of the loss against the rank that is kept of a weight, if it was cut."""
    if weight not in last["weight"].values:
        return []
    curve = last.sel(weight=weight)
    tried = np.isfinite(curve["rank_kept"].values)
    series = {str(part): curve["rank_parts"].sel(part=part).values[tried] for part in last["part"].values}
    figure = lines(curve["rank_kept"].values[tried], series, x_title="rank kept", y_title="nats")
    caption = (
        "log K less the loss, split into what the mean prediction gives (unigram), what the current state "
        "adds (bigram), and what the rest of the context adds."
    )
    return [
        Figure(
            f"What is left of the loss when {weight} is cut to a rank", caption, "plotly", figure, key="rank"
        )
    ]
