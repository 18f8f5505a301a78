"""Which memory can be learned before which: some are trained, the rest stays as it was drawn (figure 3)."""

import numpy as np
import plotly.graph_objects as go

from experiments.claims import Finding, holds
from experiments.figures import REFERENCE, fill, titled
from experiments.harness import Measured, over_seeds, trained
from experiments.where_is_the_bigram.shared import (
    FEED_FORWARD,
    HALF,
    KEYS_1,
    KEYS_2,
    OUTPUT,
    Followed,
    follow,
    only,
    recipe,
)

ARMS = {
    "W_O": (OUTPUT, *FEED_FORWARD),
    "W_O, keys of layer 1": (OUTPUT, KEYS_2, *FEED_FORWARD),
    "W_O, keys of layer 0": (OUTPUT, KEYS_1, *FEED_FORWARD),
    "keys": (KEYS_1, KEYS_2, *FEED_FORWARD),
    "keys, no MLP": (KEYS_1, KEYS_2),
}
RECALLS = {
    "copy": "W_O of layer 1 (copy)",
    "match": "keys of layer 1 (match)",
    "back": "keys of layer 0 (one back)",
    "accuracy": "in-context accuracy",
}
ZERO = ["blocks.0.mlp.W_out", "blocks.1.mlp.W_out"]


def arm(names: tuple[str, ...], quick: bool) -> list[Followed]:
    """Some memories are trained; keys and W_O all start at random, the MLP at zero."""
    steps = 200 if quick else 250
    chosen = recipe(
        "triggers",
        init__zero=ZERO,
        trainable=only(*names),
        steps=steps,
        checkpoints=[steps],
        data__batch=16 if quick else 32,
    )
    return [follow(run) for run in trained([chosen], range(1 if quick else 8))[0]]


def freezing(quick: bool) -> Measured:
    """Train some memories alone: which of them can be learned so?"""
    found = {name: arm(names, quick) for name, names in ARMS.items()}
    ends = {
        name: {recall: [float(getattr(one, recall)[-1]) for one in runs] for recall in RECALLS}
        for name, runs in found.items()
    }
    output, upper, lower, with_mlp, keys = ends.values()
    how = (
        f"{len(output['copy'])} seeds, {200 if quick else 250} steps, the MLP of layer 1 trained too unless "
        "it is said; median and range over seeds of the recall in the end (paper: frozen for the first 300 "
        "iterations, no MLP, loss on outputs alone)"
    )
    n = len(output["copy"])
    learned = sum(a > HALF and b > HALF for a, b in zip(with_mlp["match"], with_mlp["back"], strict=True))
    order = sum(a > HALF > b for a, b in zip(upper["match"], lower["back"], strict=True))
    rows: list[tuple[str, str, int]] = [
        (
            "output_first",
            f"W_O trained alone: copy recall {over_seeds(output['copy'])}",
            sum(value > HALF for value in output["copy"]),
        ),
        (
            "keys_without_output",
            f"keys trained alone: match {over_seeds(with_mlp['match'])}, one back "
            f"{over_seeds(with_mlp['back'])}; without an MLP: match {over_seeds(keys['match'])}, one back "
            f"{over_seeds(keys['back'])}",
            learned,
        ),
        (
            "output_not_enough",
            f"W_O trained alone: accuracy {over_seeds(output['accuracy'])}",
            sum(value < HALF for value in output["accuracy"]),
        ),
        (
            "upper_keys_first",
            f"beside W_O, keys of layer 1 alone: match {over_seeds(upper['match'])}; keys of layer 0 alone: "
            f"one back {over_seeds(lower['back'])}",
            order,
        ),
    ]
    claims = [
        Finding(key, measured, holds(hits == n), how, "trained at another", (hits, n))
        for key, measured, hits in rows
    ]
    means = {
        name: {recall: float(np.mean(values)) for recall, values in end.items()} for name, end in ends.items()
    }
    return Measured(claims, {"freezing": _figure(means)})


def _figure(means: dict[str, dict[str, float]]) -> go.Figure:
    figure = go.Figure()
    for i, (recall, label) in enumerate(RECALLS.items()):
        figure.add_bar(
            x=[*means],
            y=[end[recall] for end in means.values()],
            name=label,
            marker=fill(i),
        )
    figure.add_hline(y=1 / 12, line=REFERENCE)
    figure.add_annotation(x=1, xref="paper", xanchor="left", y=1 / 12, text="chance, 1/12", showarrow=False)
    title = "What is learned when only some memories are trained"
    return titled(figure, title, "what is trained", "recall (probability)")
