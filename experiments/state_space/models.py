"""What of the model is needed: Mamba without gate, norms and activation, and a transformer of one layer."""

import numpy as np
import plotly.graph_objects as go

from experiments.claims import Finding, holds, share
from experiments.figures import log_reference, marker, titled
from experiments.harness import Measured, over_seeds, trained
from experiments.state_space.shared import LEARNED, distances, recipe, setting

# What MambaZero leaves out; its softmax stays, where the paper divides scores by their sum.
ZERO = (
    "model.use_gate=false",
    "model.use_gate_norm=false",
    'model.conv_act_fn="none"',
    'model.normalization_type="none"',
)
SEEDS, QUICK_SEEDS = 16, 2
SAME = 1.5  # a run matches the whole mixer if it is not further away than this many of its medians


def parts(quick: bool) -> Measured:
    """Train the whole mixer, the bare one and a transformer on chains of order 1."""
    seeds = QUICK_SEEDS if quick else SEEDS
    varied = {
        "Mamba-2": recipe(),
        "convolution and state alone": recipe(*ZERO),
        "transformer of one layer": recipe(name="transformer"),
    }
    away = {name: distances(trained([one], range(seeds))[0]) for name, one in varied.items()}
    full, zero, attention = away.values()
    learned, short = int((zero < LEARNED).sum()), int((attention >= LEARNED).sum())
    alike = int((zero <= SAME * np.median(full)).sum())
    rule = f"KL from the add-β estimator over that of the in-context unigram; learned: below {LEARNED:g}; "
    claims = [
        Finding(
            "zero_matches",
            f"{share(alike, seeds)} runs match; {over_seeds(zero)}, with all parts {over_seeds(full)}; "
            f"{learned} of {seeds} learn it",
            holds(2 * alike > seeds),
            f"{rule}a match: at most {SAME:g} times the median with all parts; "
            + setting(varied["convolution and state alone"], seeds),
            "trained at another",
            (alike, seeds),
        ),
        Finding(
            "transformer_fails",
            f"{share(short, seeds)} runs; {over_seeds(attention)}",
            holds(short == seeds),
            rule + "one head with a vector for each lag, and an MLP of 64; "
            f"{setting(varied['transformer of one layer'], seeds).split(', d_model')[0]}, d_model 16",
            "trained at another",
            (short, seeds),
        ),
    ]
    figure = go.Figure()
    for i, (name, values) in enumerate(away.items()):
        figure.add_scatter(x=[name] * seeds, y=values.round(5), mode="markers", marker=marker(i), name=name)
    for value, text in ((1.0, "in-context unigram"), (LEARNED, "learned")):
        log_reference(figure, value, text)
    titled(figure, "What one layer needs", None, "KL over that of the unigram", showlegend=False)
    return Measured(claims, {"parts": figure.update_yaxes(type="log")})
