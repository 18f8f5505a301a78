"""The program probe's pictures: the selectors, what each path is worth, and where the program fails."""

import numpy as np
import xarray as xr

from mechmarkov.probing.dataset import head_names, last_model
from mechmarkov.probing.figure import Figure
from mechmarkov.report.figures import bars, heatmap, lines
from mechmarkov.report.probe_figures import lag_heatmap

LAGS_SHOWN = 24

# Under this many nats there are no failures to show.
MIN_FAILURE_NATS = 0.01


def draw(data: xr.Dataset) -> list[Figure]:
    """Figures of the selectors, and of where the program fails."""
    last = last_model(data)
    labels = [str(label) for label in data.attrs["labels"]]
    heads, bonus = head_names(last), last["match_bonus"].values.ravel()
    lags = last["lag"].values[1 : LAGS_SHOWN + 1]
    if not np.isfinite(float(last["explained"])):
        return []  # constant predictions: every bar would be of no length
    whole = float(last["kl_by_weights"])
    others = {"nearest predictor": float(last["kl_predictor"].min()), "by weights": whole}
    terms = [f"+ {term}" if i else str(term) for i, term in enumerate(last["term"].values)]
    paths = [str(path) for path in last["path"].values]
    ends = {"whole program": whole, "always the mean": float(last["kl_mean"])}
    drawn = [
        Figure(
            "The best program found, term by term",
            "KL(model ‖ program) of the last model as terms are added, on the sequences that chose them. "
            "Lines: what the nearest exact predictor and the tables of the weights leave.",
            "plotly",
            bars(terms, last["kl_terms"].values, y_title="KL (nats)", references=others),
        ),
        Figure(
            "Selectors by weights",
            "Weight of each lag, counted from the predicted token (1 is its parent). Behind a "
            "head: the log odds it gives to tokens whose predecessor is the current token.",
            "plotly",
            lag_heatmap(
                last["lag_weight"].sel(lag=lags).values.reshape(len(heads), -1),
                [f"{h}, matches {b:+.1f}" if b else h for h, b in zip(heads, bonus, strict=True)],
                lags,
                "weight",
            ),
        ),
        Figure(
            "What each path is worth to the tables of the weights",
            "KL(model ‖ program by weights) with one path at its mean; a line marks the whole program.",
            "plotly",
            bars(paths, last["kl_without"].values, y_title="KL (nats)", references=ends),
        ),
        Figure(
            "Where the program fails: after which state",
            "KL(model ‖ program) by the parent of the predicted token.",
            "plotly",
            bars(labels, last["kl_after"].values, x_title="parent state", y_title="KL (nats)"),
        ),
    ]
    if last.sizes["position"] > 1:
        position, series = last["position"].values.astype(float), {"KL": last["kl_at"].values}
        figure = lines(position, series, x_title="position", y_title="KL (nats)")
        caption = "KL(model ‖ program) by position."
        drawn.append(Figure("Where the program fails: at which position", caption, "plotly", figure))
    if float(last["kl"]) > MIN_FAILURE_NATS:
        drawn.append(_worst_figure(last, labels))
    return drawn


def _worst_figure(last: xr.Dataset, labels: list[str]) -> Figure:
    rows, names = [], []
    for one in (last.isel(rank=rank) for rank in range(last.sizes["rank"])):
        tokens = [labels[int(token)] for token in one["worst_tokens"].values if token >= 0]
        for who in ("model", "program"):
            names.append(f"{' '.join(tokens)} | {int(one['worst_position'])} {who}")
            rows.append(one[f"worst_{who}"].values)
    return Figure(
        "Where the program fails most",
        "Predictions of model and program after the tokens on the left; the number is their last position.",
        "plotly",
        heatmap(
            np.array(rows), names, labels, column_title="next state", value_title="probability", limits=(0, 1)
        ),
    )
