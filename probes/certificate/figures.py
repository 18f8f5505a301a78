"""Pictures of a certificate: the bound by position next to what was seen, and the worst sequence."""

import numpy as np
import xarray as xr

from mechmarkov.models.components import head_name
from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.report.figures import bars, heatmap, lines
from mechmarkov.report.probe_figures import over_training

QUERY = "query"  # the label of a query token
LEAST = 1e-18  # nats: less is drawn as that, on a logarithmic axis


def draw(data: xr.Dataset) -> list[Figure]:
    """The bound and the largest seen, by position and over training, and the worst sequence."""
    last, labels = last_model(data), [str(label) for label in data.attrs["labels"]]
    bound, seen = (np.maximum(last[name].values, LEAST) for name in ("kl_at", "seen_at"))
    series = {"bound": bound, "largest seen": seen} if np.isfinite(bound).any() else {"largest seen": seen}
    caption = "KL(program ‖ model) in nats: no sequence is above the bound, and one reaches what was seen."
    if data.sizes["position"] > 1:
        positions = data["position"].values.astype(float)
        figure = lines(positions, series, x_title="position", y_title="KL (nats)", log_y=True, markers=False)
    else:
        figure = bars(list(series), np.concatenate(list(series.values())), y_title="KL (nats)")
    drawn = [Figure("The worst KL, certified and seen", caption, "plotly", figure)]
    training = {"bound": data["worst_kl"].values, "largest seen": data["worst_kl_seen"].values}
    some = {name: values for name, values in training.items() if np.isfinite(values).any()}
    caption = "Steps without a bound were left out for want of time, or have none."
    drawn += over_training("The worst KL over training", caption, data, some, "KL (nats)")
    laws = np.stack([last["witness_program"].values, last["witness_model"].values])
    figure = heatmap(laws, ["program", "model"], labels, column_title="next state", value_title="probability")
    tokens = " ".join(labels[state] for state in last["witness"].values)
    caption = f"Where the program is furthest off of all that was seen. The last known states: {tokens}."
    drawn.append(Figure("Both predictions after the worst sequence", caption, "plotly", figure))
    if "witness_attention" in last:
        drawn.append(_attention(last, labels))
    return drawn


def _attention(last: xr.Dataset, labels: list[str]) -> Figure:
    """Attention on the end of the worst sequence."""
    pattern = last["witness_attention"].values
    states = [labels[state] for state in last["witness"].values]
    tokens = [*states, *[QUERY] * int(last.attrs["query"])][-pattern.shape[-1] :]
    heads = [head_name(*at) for at in np.ndindex(pattern.shape[:2])]
    caption = "Rows attend, columns are attended to; the last row makes the worst prediction that was seen."
    n_keys = int(last.attrs["witness_position"]) + 1
    view = AttentionView(tokens, pattern.reshape(-1, *pattern.shape[2:]), heads, n_keys=n_keys)
    return Figure("Attention on the end of the worst sequence", caption, "attention", view)
