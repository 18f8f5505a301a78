"""Pictures for a notebook: `mm.show.attention(run)`, `kernel`, `circuit`, `trajectory`.

Each is a plotly figure, which draws without a network in Jupyter and in VS Code.
"""

from collections.abc import Sequence
from typing import Literal

import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mechmarkov.models.components import head_name, head_names
from mechmarkov.models.decoder import activations
from mechmarkov.probe_run import probe
from mechmarkov.probing.names import in_words
from mechmarkov.probing.own_tokens import tokens_of
from mechmarkov.probing.probe import load_probe
from mechmarkov.probing.subject import Subject, check_run
from mechmarkov.report.attention_scale import ATTENTION_SCALE, LOG2_DARKEST, multiples
from mechmarkov.report.figures import heatmap, lines
from mechmarkov.report.first_screen import circuit as drawing
from mechmarkov.runs.run import Run
from mechmarkov.utils.errors import integer_of
from mechmarkov.utils.text import label

__all__ = ["attention", "circuit", "kernel", "trajectory"]
# Those that answer where it lives, as the report asks them.
CIRCUIT_PROBES = ("behaviour", "attention", "alignment", "induction", "ablation", "storage", "graph")
PANEL = 420  # pixels of a head's attention
MAX_READ_TICKS = 16


def attention(run: Run, sequence: Sequence[int] | None = None, *, step: int = -1) -> go.Figure:
    """Returns where each head looks on one sequence: rows attend, columns are attended to.

    The colour is attention as a multiple of uniform attention, on the report's scale; the attention itself is
    under the pointer, and in each trace's `customdata`.

    Args:
        run: A run, from `mm.train`, `mm.load`, `mm.example` or `mm.Run.from_model`.
        sequence: States by number, as many as the model reads or fewer; None draws one from the source.
        step: A training step the run has kept, -1 for the last.

    Raises:
        ValueError: A sequence that the model cannot read, or a step that was not kept.

    Example:
        >>> import mechmarkov as mm
        >>> figure = mm.show.attention(mm.example("walk"), [0, 1] * 48)
        >>> figure.data[0].customdata.shape
        (97, 97)
    """
    check_run(run)
    tokens = Subject.of(run, sequences=1).batch.tokens if sequence is None else tokens_of(run, sequence)
    config, model = run.config, run.model(step)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(config.n_layers)]
    patterns = activations(model, tokens, names)
    figure = make_subplots(
        rows=config.n_layers,
        cols=config.n_heads,
        subplot_titles=head_names(config),
        horizontal_spacing=0.25 / config.n_heads,
        vertical_spacing=0.3 / config.n_layers,
    )
    states = [*run.source.labels, "beginning" if run.objective.bos else "query"]
    read = [f"{i}: {label(states[int(token)])}" for i, token in enumerate(tokens[0])]
    heads = [(layer, head) for layer in range(config.n_layers) for head in range(config.n_heads)]
    for layer, head in heads:
        pattern = patterns[names[layer]][0, head].numpy()
        trace = go.Heatmap(
            z=multiples(pattern, len(read)),
            customdata=pattern,
            x=read,
            y=read,
            coloraxis="coloraxis",
            name=head_name(layer, head),
            hovertemplate="%{y} attends to %{x}: %{customdata:.3g}",
        )
        figure.add_trace(trace, row=layer + 1, col=head + 1)
        figure.update_yaxes(scaleanchor=figure.data[-1].xaxis, row=layer + 1, col=head + 1)
    every = -(-len(read) // MAX_READ_TICKS)  # names enough to count by, and none on another
    ticks = {"tickvals": read[::every], "ticktext": read[::every], "showticklabels": True, "showgrid": False}
    frame = {"constrain": "domain", "showline": True, "mirror": True, "linecolor": "#888888"}
    figure.update_yaxes(autorange="reversed", **frame, **ticks)
    figure.update_xaxes(tickangle=90, **frame, **ticks)
    figure.update_yaxes(title="attends", col=1)
    figure.update_xaxes(title="is attended to", row=config.n_layers)
    times = ["1 or less", *(f"{2**i}" for i in range(1, LOG2_DARKEST)), f"{2**LOG2_DARKEST} or more"]
    colorbar = {"tickvals": list(range(LOG2_DARKEST + 1)), "ticktext": times}
    colorbar |= {"title": {"text": "attention, times uniform", "side": "right"}}
    scale = {"colorscale": ATTENTION_SCALE["colorscale"], "cmin": 0, "cmax": LOG2_DARKEST}
    return figure.update_layout(
        coloraxis={**scale, "colorbar": colorbar},
        plot_bgcolor="white",
        width=120 + PANEL * config.n_heads,
        height=110 + PANEL * config.n_layers,
        margin={"l": 70, "r": 20, "t": 60, "b": 70},
    )


def kernel(run: Run, *, step: int = -1, sequences: int | None = None) -> go.Figure:
    """The transition matrix that the model implies next to that of its source, on one colour scale.

    Args:
        run: A run, from `mm.train`, `mm.load`, `mm.example` or `mm.Run.from_model`.
        step: A training step the run has kept, -1 for the last.
        sequences: How many the model is judged by, as in `mm.probe`.

    Raises:
        ValueError: A source without one transition matrix, or a step that was not kept.

    Example:
        >>> import mechmarkov as mm
        >>> model, source = mm.show.kernel(mm.example("walk"), sequences=8).data
        >>> model.z.shape, source.z[0].tolist()
        ((6, 6), [0.0, 0.5, 0.0, 0.0, 0.0, 0.5])
    """
    data = _behaviour(run, [integer_of("step", step)], sequences)
    if "kernel" not in data:
        raise ValueError(f"the source is {run.source.kind}, which has no one transition matrix to show")
    names = [str(name) for name in data.attrs["labels"]]
    figure = make_subplots(rows=1, cols=2, subplot_titles=["the model", "the source"])
    for column, matrix in enumerate((data["implied"].values[-1], data["kernel"].values), 1):
        figure.add_trace(heatmap(matrix, names, names, limits=(0, 1)).data[0], row=1, col=column)
    figure.update_traces(showscale=False, selector={"type": "heatmap"})
    figure.data[-1].update(showscale=True, colorbar={"title": "probability"})
    figure.update_yaxes(autorange="reversed", title=data.attrs["state_before"], col=1)
    figure.update_yaxes(autorange="reversed", col=2)
    return figure.update_xaxes(title="next state")


def circuit(run: Run, *, sequences: int | None = None) -> go.Figure:
    """The parts of the model, each path as wide as the loss rises when it is cut (`mechmarkov.report`).

    Args:
        run: The run, at its last step.
        sequences: How many the cuts are made on, as in `mm.probe`.
    """
    return drawing.circuit(probe(run, list(CIRCUIT_PROBES), sequences=sequences))


def trajectory(run: Run, *, sequences: int | None = None) -> go.Figure:
    """KL from each exact predictor to the model (nats) at every step the run has kept.

    Args:
        run: A run, from `mm.train`, `mm.load`, `mm.example` or `mm.Run.from_model`.
        sequences: How many the model is judged by, as in `mm.probe`; fewer are drawn sooner.

    Raises:
        ValueError: A run of one step.

    Example:
        >>> import mechmarkov as mm
        >>> [line.name for line in mm.show.trajectory(mm.example("walk"), sequences=8).data]
        ['uniform', 'unigram', 'bigram', '2-step', '3-step', '4-step']
    """
    check_run(run)
    if run.n_steps < 2:
        raise ValueError("the run has kept one step, expected several: train with more `checkpoints`")
    data = _behaviour(run, "all", sequences)
    series = {in_words(str(name)): data["kl"].sel(predictor=name).values for name in data["predictor"].values}
    steps = data["step"].values.astype(float)
    kl_title = "KL from predictor to model (nats)"
    figure = lines(steps, series, x_title="training step", y_title=kl_title, training_steps=True)
    # Room at the top, where a notebook has its mode bar: the legend is to the right of the curves.
    legend = {"orientation": "v", "x": 1.02, "y": 1.0, "yanchor": "top"}
    return figure.update_layout(legend=legend, margin={"t": 40, "r": 20}, height=400)


def _behaviour(run: Run, steps: Literal["all"] | list[int], sequences: int | None) -> xr.Dataset:
    return load_probe("behaviour").measure(Subject.of(run, steps, sequences=sequences))


def __dir__() -> list[str]:
    """Returns the pictures: what a notebook completes."""
    return __all__
