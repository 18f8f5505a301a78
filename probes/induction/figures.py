"""The induction probe's pictures: heads by score, the circuit's attention, its cut path, its formation."""

import numpy as np
import xarray as xr

from mechmarkov.probing.dataset import NORMAL_95, head_name, head_names, last_model
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.names import in_words
from mechmarkov.report.figures import bars, heatmap
from mechmarkov.report.probe_figures import over_training
from mechmarkov.utils.text import listed

from .circuit import induction_heads, last_induction_head, strongest_feeder, tied_heads


def draw(data: xr.Dataset) -> list[Figure]:
    """Figures of all heads' scores, the circuit's attention, what cutting its path does, how it formed."""
    drawn = [_heads_figure(data), _attention_figure(data)]
    if np.isfinite(float(last_model(data)["kl_intact"])):
        drawn.append(_cut_figure(data))
    heads = induction_heads(data)
    series = {
        "induction score": data["induction"].sel(matched=1).isel(heads).values,
        "predecessor effect": data["effect"].isel(heads).values,
        "previous-token score": data["previous_token"].max(("layer", "head")).values,
    }
    return drawn + over_training(
        "The circuit over training",
        "The best head of each step; an ideal head's induction score is drawn across.",
        data,
        series,
        "score",
        references={"ideal": float(data["ideal"].sel(matched=1))},
        score="induction_score",
    )


def _heads_figure(data: xr.Dataset) -> Figure:
    """Every head's scores side by side."""
    last = last_model(data)
    matched = [int(tokens) for tokens in last["matched"].values]
    columns = {f"induction, {m} token{'s' * (m > 1)}": last["induction"].sel(matched=m) for m in matched}
    columns |= {
        "predecessor effect": last["effect"],
        "repeated": last["repeated"],
        "previous": last["previous_token"],
        "copies": last["duplicate_token"],
        "copying": last["copying"],
    }
    return Figure(
        "Heads by what they do",
        "Induction: mass on matches beyond lag, tokens and one match fewer. Predecessor effect: how far "
        "editing a key's predecessor moves attention (1 is ideal). Repeated: on repeated sequences, less "
        f"chance. Previous, copies: attention on them (uniform: {float(data['previous_chance']):.2f}, "
        f"{float(data['duplicate_chance']):.2f}). Copying: eigenvalues of the OV circuit.",
        "plotly",
        heatmap(
            np.stack([score.values.ravel() for score in columns.values()], axis=1),
            head_names(data),
            list(columns),
            row_title="head",
            value_title="score",
            diverging=True,
            limits=(-1, 1),
        ),
    )


def _attention_figure(data: xr.Dataset) -> Figure:
    """Attention of the circuit's heads, and of an ideal head, on the end of a sequence."""
    shown = [str(label) for label in data["shown"].values]
    tokens = [str(token) for token in data.attrs["example_tokens"]]
    patterns, ideal = last_model(data)["example"].values, None
    caption = "Rows attend, columns are attended to."
    if shown[-1] == "ideal":
        caption += " An ideal head is uniform on the keys that follow a copy of the current token."
        reader, name = last_induction_head(data)
        feeder = strongest_feeder(reader)
        reads = {name: patterns[-1] > 0, "ideal": patterns[-1] > 0}
        if feeder is not None:
            reads[head_name(feeder)] = np.eye(len(tokens), k=-1, dtype=bool)
        ideal = np.stack([reads.get(head, np.zeros_like(patterns[-1], dtype=bool)) for head in shown])
    view = AttentionView(tokens, patterns, shown, ideal=ideal, n_keys=int(data.attrs["example_keys"]))
    return Figure("Attention on the end of a sequence", caption, "attention", view)


def _cut_figure(data: xr.Dataset) -> Figure:
    """KL from the reference with each path into the induction head cut."""
    reader, _ = last_induction_head(data)
    feeds = np.argwhere(reader["feeds"].transpose("from_layer", "from_head").values > 0)
    feeder, head = (
        listed([head_name({"layer": layer, "head": index}) for layer, index in heads])
        for heads in (feeds, tied_heads(last_model(data)))
    )
    value = np.array([float(reader["kl_intact"]), *reader["kl_cut"].values])
    error = NORMAL_95 * np.array([0.0, *reader["kl_error"].values])
    words = {"Q": "queries", "K": "keys", "V": "values"}
    return Figure(
        f"Cutting {feeder} from {head}",
        f"KL from the {in_words(data.attrs['reference'])} to the model, whole and with one path cut. The cut "
        f"sets the output of {feeder} to its mean in only one input of {head}.",
        "plotly",
        bars(
            ["whole", *(f"{feeder} → {words[str(into)]}" for into in reader["input"].values)],
            value,
            x_title="path cut",
            y_title="nats",
            errors=(value - error, value + error),
            references={in_words(data.attrs["simpler"]): float(data["kl_simpler"])},
        ),
        key="cut",
    )
