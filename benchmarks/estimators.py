"""The table of estimates in `docs/bench.md`: sampling next to a program that was read off the weights.

python -m benchmarks.estimators        # a minute of processor time
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mechmarkov as mm
from benchmarks.timing import between
from mechmarkov.bench.estimators import estimate, exact_loss, read_program
from mechmarkov.bench.trained import P
from mechmarkov.runs import Run
from mechmarkov.theory.bootstrap import interval
from mechmarkov.training import load_recipe
from mechmarkov.utils.threads import threads

PAGE = Path(__file__).parents[1] / "docs" / "bench.md"
BEGIN, END = "<!-- measured by benchmarks/estimators.py -->", "<!-- end of the estimates -->"
SEEDS, SEQUENCES, REPEATS = 4, 16, 64
# Shipped recipes, and what differs: so short, all sequences are a few thousand.
RECIPES: dict[str, dict[str, Any]] = {
    "binary-p02-q03-untied": {"model.n_ctx": 12},
    "binary-p02-q03-tied": {"model.n_ctx": 12},
    "in-context-k3-shortformer": {
        "source": {"kind": "chain", "P": P},
        "model.n_ctx": 8,
        "model.n_layers": 1,
        "steps": 600,
        "data.batch": 64,
    },
    "walk-k6-half": {"model.n_ctx": 12},
}
HEAD = "| model | estimate of | exact (nats) | error, sampling | error, program | passes for one |"


def runs() -> Iterator[tuple[str, list[Run]]]:
    """Models by name, one for each seed."""
    for name, changes in RECIPES.items():
        recipe = load_recipe(name).replace(**changes)
        yield name, mm.train(recipe, seeds=range(SEEDS), progress=False)


def without_heads(run: Run) -> Run:
    """The model with what its heads write at zero."""
    model = run.model(-1)
    with torch.no_grad():
        model.get_parameter("blocks.0.attn.W_O").zero_()
    return Run.from_model(model, source=run.source, objective=run.objective)


def measured(run: Run, *, effect: bool) -> tuple[float, float, float]:
    """The exact value, and the root mean squared errors of sampling and of the program."""
    other = without_heads(run) if effect else None
    models = [run] if other is None else [run, other]
    exact = [exact_loss(model) for model in models]
    value = exact[-1] - exact[0] if effect else exact[0]
    programs = [read_program(model) for model in models]
    errors = []
    for controls in ((), [program for program in programs if not isinstance(program, str)]):
        off = [
            estimate(run, SEQUENCES, seed=seed, ablated=other, programs=controls).value - value
            for seed in range(REPEATS)
        ]
        errors.append(float(np.sqrt(np.mean(np.square(off)))))
    return value, errors[0], errors[1]


def table() -> str:
    """All rows, as a table of Markdown."""
    rows = [HEAD, "| --- | --- | --- | --- | --- | --- |"]
    for name, some in runs():
        for effect in (False, True):
            value, sampled, by_program = np.array([measured(run, effect=effect) for run in some]).T
            log = 2 * np.log10(sampled / by_program)
            (low, high), middle = interval(log), log.mean()
            saved = f"{10**middle:.2g} ({10**low:.2g} to {10**high:.2g})"
            of = "the loss without heads, less the loss" if effect else "the loss"
            rows.append(
                f"| `{name}` | {of} | {value.mean():.4g} | {sampled.mean():.2g} | {by_program.mean():.2g} "
                f"| {saved} |"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    with threads(1):
        made = table()
    PAGE.write_text(between(PAGE.read_text(), BEGIN, END, made))
    print(f"{time.process_time():.0f} seconds of processor time")
