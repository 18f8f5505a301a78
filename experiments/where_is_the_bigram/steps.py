"""One gradient step on W_O of layer 1, from the theory's start: does it store the copies?"""

import numpy as np

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.harness import Measured, over_seeds, trained
from experiments.where_is_the_bigram import memories
from experiments.where_is_the_bigram.shared import KEYS_1, KEYS_2, OUTPUT, only, recipe
from mechmarkov.report.figures import lines

STORED = 0.8  # five of six outputs


def recall(width: int, sequences: int, seeds: int) -> list[float]:
    """Copy recall after one step of plain gradient descent, one value a seed.

    The theory's data: uniform tokens, half of them triggers. Its start: keys and W_O zero, the rest random.
    The size of the step does not matter: the recall does not change with the scale of W_O.
    """
    n = 12
    source = {
        "kind": "trigger_bigram",
        "P": np.full((n, n), 1 / n).tolist(),
        "triggers": [*range(n // 2)],
        "start": "global",
    }
    chosen = recipe(
        "triggers",
        source=source,
        model__d_model=width,
        model__d_head=width,
        model__attn_only=True,
        model__d_mlp="none",
        model__act_fn="none",
        init={"scheme": "normal", "std": width**-0.5, "zero": [KEYS_1, KEYS_2, OUTPUT]},
        optimiser={"kind": "gd", "lr": 1.0},
        data__batch=sequences,
        trainable=only(OUTPUT),
        steps=1,
        checkpoints=[1],
    )
    found = [memories.copies(mm.Subject.of(run, sequences=1)) for run in trained([chosen], range(seeds))[0]]
    return [float(one[-1, 1, 0]) for one in found]


def first_step(quick: bool) -> Measured:
    """The recall of the first step, by the width of the model."""
    widths = (64, 256) if quick else (32, 64, 128, 256)
    sequences, seeds = (1024, 2) if quick else (2048, 8)
    found = {width: recall(width, sequences, seeds) for width in widths}
    widest = np.mean(found[widths[-1]])
    how = f"uniform tokens, 6 of 12 are triggers, {sequences} sequences of 32, {seeds} seeds"
    claim = Finding(
        "one_step_stores",
        "; ".join(f"d={width}: {over_seeds(values)}" for width, values in found.items()),
        holds(widest > STORED),
        f"copy recall after one step; {how}. Chance is 1/12; holds above {STORED:g} at the largest width",
        "trained at another",
        (sum(value > STORED for value in found[widths[-1]]), seeds),
    )
    figure = lines(
        np.array(widths, dtype=float),
        {"mean over seeds": np.array([np.mean(values) for values in found.values()])},
        bands={
            "mean over seeds": (
                np.array([min(values) for values in found.values()]),
                np.array([max(values) for values in found.values()]),
            )
        },
        references={"chance, 1/12": 1 / 12},
        title="What one gradient step stores, by the width of the model",
        x_title="width d_model",
        y_title="copy recall (probability)",
        log_x=True,
    )
    figure.update_xaxes(tickvals=widths, ticktext=[*map(str, widths)])
    return Measured([claim], {"first_step": figure})
