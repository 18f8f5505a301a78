"""The storage probe's pictures: shares, sufficiency and necessity, the home's table and its ranks."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.figure import Figure
from mechmarkov.report.figures import PALETTE, bars, lines, matched
from mechmarkov.report.probe_figures import fitted_target, over_training
from mechmarkov.theory.kernel import FLOOR, double_centred, target_for
from mechmarkov.utils.text import format_share

from .game import ROUNDING_NATS
from .home import homes_of, weight_of


def draw(data: xr.Dataset) -> list[Figure]:
    """Figures of shares, sufficiency and necessity, the home's table next to P, and its ranks."""
    last, homes = last_model(data), homes_of(data)
    paths = [str(path) for path in data["path"].values]
    labels = [str(label) for label in data.attrs["labels"]]
    path = homes[0] if homes else paths[int(np.argmin(last["kl_only"].values))]
    table = double_centred(np.nan_to_num(last["table"].sel(path=path).values))
    aim, law = target_for(data.attrs["objective"], data["kernel"].values)
    if aim == "P" and data.attrs["objective"] == "cross_entropy":  # P has zeros, which logits only near
        aim, law = "log P", np.log(np.maximum(data["kernel"].values, FLOOR))
    target, caption = fitted_target(table, double_centred(law), aim)
    edits = [f"{how} {path}" for how in ("only", "without") for path in paths]
    nats = np.concatenate([last["kl_only"].values, last["kl_without"].values])
    ends = {"none removed": float(last["kl_full"]), "all removed": float(last["kl_empty"])}
    shares = Figure(
        "What each path gives",
        "Each path's Shapley share of the improvement toward the bigram, in nats. A part below zero does "
        "harm: then the others add up to more than the whole.",
        "plotly",
        _one_bar(paths, last["worth"].values, last["share"].values if homes else None),
    )
    return [
        *[shares] * bool(np.nanmax(np.abs(last["worth"].values)) > ROUNDING_NATS),
        Figure(
            "Sufficient, necessary",
            "KL from the exact bigram to the model with only one path, and with all but one, the others at "
            "their mean.",
            "plotly",
            bars(edits, nats, y_title="nats", references=ends),
        ),
        Figure(
            f"What {path} says of the next state",
            f"Its mean contribution to the scores given the parent state; rows are centred. {caption}",
            "plotly",
            matched(table, target, labels, row_title="parent state", column_title="next state"),
            key="contribution of the home",
        ),
        *(_rank_figure(last, weight_of(path)) if homes else []),
        *_position_figure(last),
        *over_training(
            "What each path gives over training",
            "Shapley shares in nats, stacked: they add up to the improvement.",
            data,
            {path: data["worth"].sel(path=path).values for path in paths},
            "nats",
            stacked=True,
        ),
    ]


def _one_bar(paths: list[str], worth: np.ndarray, share: np.ndarray | None) -> go.Figure:
    """All paths' worth in one bar, from end to end."""
    figure = bars([], np.zeros(0), y_title="")
    look = {"y": [0], "orientation": "h", "textposition": "inside", "showlegend": True}
    for i, path in enumerate(paths):
        text = f"{path}: {worth[i]:.3g} nats"
        text += f", {format_share(float(share[i]))}" if share is not None else ""
        marker = {"color": PALETTE[i % len(PALETTE)]}
        figure.add_bar(x=[worth[i]], name=text, customdata=[path], marker=marker, **look)
    figure.update_xaxes(title="nats", range=None, tickmode="auto", showgrid=True)
    figure.update_yaxes(visible=False)
    return figure.update_layout(barmode="relative", height=190, showlegend=True)


def _position_figure(last: xr.Dataset) -> list[Figure]:
    """Returns where predictions follow the parent, if there is more than one position."""
    at = last["parent_gain_at"]
    measured = at[np.isfinite(at.values)]
    if measured.size < 2:
        return []
    position = measured["position"].values.astype(float)
    figure = lines(position, {"nearer": measured.values}, x_title="position", y_title="nats")
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
        "log K less the loss, in three parts. The mean prediction gives the unigram, the current state the "
        "bigram, the context the rest."
    )
    title = f"What is left of the loss when {weight} is cut to a rank"
    return [Figure(title, caption, "plotly", figure, key="rank")]
