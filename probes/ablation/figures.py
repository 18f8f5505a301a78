"""The ablation probe's pictures: the effect of each component, path, window, order, and over training."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.figure import Figure
from mechmarkov.report.figures import bars, heatmap, lines
from mechmarkov.report.probe_figures import over_training

from .measure import ranked_effects

MAX_BARS = 24


def draw(data: xr.Dataset) -> list[Figure]:
    """Effects of components by kind, of paths, of the window, of the order, and over training."""
    loss = last_model(data).sel(measure="loss")
    components, kinds = ([str(name) for name in data[dim].values] for dim in ("component", "kind"))
    ranked = ranked_effects(data)
    return [
        Figure(
            "What each part is worth",
            "Loss with the part ablated, less the loss without. Columns: its output is set to zero, to its "
            "mean, or to that of another sequence. Attention is made uniform, or put on the parent. "
            "Blank: not applicable.",
            "plotly",
            heatmap(
                loss["effect"].values,
                components,
                [kind.replace("_", " ") for kind in kinds],
                diverging=True,
                value_title="nats",
            ),
        ),
        *_paths_figure(loss),
        *_window_figure(loss),
        Figure(
            "What the order of the context is worth",
            "Loss of the last prediction with the context in another order, less the loss without.",
            "plotly",
            _effect_bars(loss, "shuffle_effect", data["shuffle"].values),
        ),
        *over_training(
            "Worth of each part over training",
            "Loss with the part's output at its mean, less the loss without.",
            data,
            {str(name): ranked.sel(component=name).values for name in ranked["component"].values},
            "nats",
            score="largest_effect",
        ),
    ]


def _effect_bars(effects: xr.Dataset, name: str, labels: np.ndarray) -> go.Figure:
    low, high = (effects[f"{name}_{end}"].values for end in ("low", "high"))
    return bars([str(label) for label in labels], effects[name].values, y_title="nats", errors=(low, high))


def _paths_figure(loss: xr.Dataset) -> list[Figure]:
    """The paths with the largest effects, if any has one."""
    kinds = [kind for kind in ("mean", "zero") if kind in loss["path_kind"].values]
    by_path = loss.sel(path_kind=kinds[0])
    for kind in kinds[1:]:  # positions have no mean over the data
        by_path = by_path.fillna(loss.sel(path_kind=kind))
    effect = by_path["path_effect"].values
    order = [i for i in np.argsort(-np.abs(np.nan_to_num(effect))) if np.isfinite(effect[i])][:MAX_BARS]
    if not order:
        return []
    largest = by_path.isel(path=order)
    caption = (
        "The rise of the loss with the sender's output cut from what the receiver reads, nowhere else. "
        f"It is set to its {kinds[0]}, positions to zero; intervals are 95 % over sequences."
    )
    figure = _effect_bars(largest, "path_effect", largest["path"].values)
    return [Figure("What each path is worth", caption, "plotly", figure)]


def _window_figure(loss: xr.Dataset) -> list[Figure]:
    """The effect of each window, if there is more than one."""
    if loss["window"].size < 2:
        return []
    low, high = (loss[f"window_effect_{end}"].values for end in ("low", "high"))
    figure = lines(
        loss["window"].values.astype(float),
        {"effect": loss["window_effect"].values},
        bands={"effect": (low, high)},
        x_title="farthest lag seen",
        y_title="nats",
        log_x=True,
    )
    caption = "Loss with no head seeing beyond a lag, less the loss without; lag 1 is the parent."
    return [Figure("How far back the model needs to see", caption, "plotly", figure)]
