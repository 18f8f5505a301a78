"""The ablation probe's pictures: the effect of each component, path, window, order, and over training."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.figure import Figure
from mechmarkov.report.figures import bars, heatmap, lines
from mechmarkov.report.probe_figures import over_training

from .components import ranked_effects

MAX_BARS = 24


def draw(data: xr.Dataset) -> list[Figure]:
    """Figures of effects of components by kind, of paths, of the window, of the order, and over training."""
    loss = last_model(data).sel(measure="loss")
    kinds = [kind.replace("_", " ") for kind in data["kind"].values.tolist()]
    table = loss["effect"].values
    ranked = ranked_effects(data)
    left = int(data.attrs.get("kinds_left_out", 0))
    blank = f"not applicable, or left out, of the {left} parts worth least" if left else "not applicable"
    return [
        Figure(
            "What each part is worth",
            "Loss with the part ablated, less the loss without. Columns: its output is set to zero, to its "
            "mean, or to that of another sequence. Attention is made uniform, or put on the parent. "
            f"Blank: {blank}.",
            "plotly",
            heatmap(table, data["component"].values.tolist(), kinds, diverging=True, value_title="nats"),
        ),
        *_paths_figure(loss),
        *_window_figure(loss),
        Figure(
            "What the order of the context is worth",
            "Loss of the last prediction with the context in another order, less the loss without.",
            "plotly",
            _effect_bars(loss, "shuffle_effect", "shuffle"),
        ),
        *over_training(
            "Worth of each part over training",
            "Loss with the part's output at its mean, less the loss without.",
            data,
            dict(zip(ranked["component"].values.tolist(), ranked.values.T, strict=True)),
            "nats",
            score="largest_effect",
        ),
    ]


def _interval(effects: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    return effects[f"{name}_low"].values, effects[f"{name}_high"].values


def _effect_bars(effects: xr.Dataset, name: str, dim: str) -> go.Figure:
    labels, errors = effects[dim].values.tolist(), _interval(effects, name)
    return bars(labels, effects[name].values, y_title="nats", errors=errors)


def _paths_figure(loss: xr.Dataset) -> list[Figure]:
    """The paths with the largest effects, if any has one."""
    # Positions have no mean over the data.
    by_path = loss.sel(path_kind="mean").fillna(loss.sel(path_kind="zero"))
    effect = by_path["path_effect"].values
    order = [i for i in np.argsort(-np.abs(np.nan_to_num(effect))) if np.isfinite(effect[i])][:MAX_BARS]
    if not order:
        return []
    caption = (
        "The rise of the loss with the sender's output cut from what the receiver reads, nowhere else. "
        "It is set to its mean, positions to zero; intervals are 95 % over sequences."
    )
    figure = _effect_bars(by_path.isel(path=order), "path_effect", "path")
    return [Figure("What each path is worth", caption, "plotly", figure)]


def _window_figure(loss: xr.Dataset) -> list[Figure]:
    """The effect of each window, if there is more than one."""
    if loss["window"].size < 2:
        return []
    figure = lines(
        loss["window"].values.astype(float),
        {"effect": loss["window_effect"].values},
        bands={"effect": _interval(loss, "window_effect")},
        x_title="farthest lag seen",
        y_title="nats",
        log_x=True,
    )
    caption = "Loss with no head seeing beyond a lag, less the loss without; lag 1 is the last known token."
    return [Figure("How far back the model needs to see", caption, "plotly", figure)]
