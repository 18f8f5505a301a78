"""The tables of `docs/bench.md`, measured: every method on every case, and EAP's gradient of each metric.

python -m benchmarks.methods FOLDER        # it goes on where it stopped; the folder keeps what is measured
"""

import sys
import time
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.timing import between
from mechmarkov.bench import CASES, Benchmark, exact_effects, run
from mechmarkov.bench.gradients import edge_attribution
from mechmarkov.bench.page import as_markdown
from mechmarkov.bench.scores import score_claims
from mechmarkov.theory.bootstrap import interval

PAGE = Path(__file__).parents[1] / "docs" / "bench.md"
BEGIN, END = "<!-- measured by benchmarks/methods.py -->", "<!-- end of what is measured -->"
SEEDS = 16
CLEAN, CORRUPT = (0.0,), (1.0,)
NAMES = [*CASES]
FIRST = [*NAMES[: NAMES.index("trigram") + 1], "bundled-walk", "bundled-induction"]
TRAINED = NAMES[NAMES.index("trained-table") : NAMES.index("random-weights")]
# What EAP's gradient is of, where it is taken, and the metric of the truth.
GRADIENTS = (
    ("logit-difference", CLEAN, "logit-difference"),
    ("logit-difference", CLEAN, "nats"),
    ("nats", CLEAN, "nats"),
    ("nats", CORRUPT, "nats"),
    ("kl", CLEAN, "kl"),
    ("kl", CORRUPT, "kl"),
)


def first_order(cases: list[str], *, pairs: str = "minimal", seeds: int = SEEDS) -> str:
    """EAP's correlation and signs for gradients of each metric, mean over cases, as a table of Markdown."""
    scores = np.full((len(GRADIENTS), 2, len(cases), seeds), np.nan)
    for (c, name), seed in product(enumerate(cases), range(seeds)):
        case = CASES[name](seed, pairs=pairs)
        exact = exact_effects(case)
        for row, (of, points, metric) in zip(scores, GRADIENTS, strict=True):
            claims = edge_attribution(case.under(of), points=points)
            found = score_claims(claims, exact["edges", metric], metric=metric, own=True)
            row[:, c, seed] = found.get("pearson", np.nan), found.get("sign", np.nan)
    means = np.nanmean(scores, axis=2)
    low, high = interval(means)
    rows = [
        f"| `{of}` | {'clean' if points == CLEAN else 'corrupt'} | `{metric}` | "
        + " | ".join(f"{m.mean():.2f} ({a:.2f} to {b:.2f})" for m, a, b in zip(*each, strict=True))
        + " |"
        for (of, points, metric), *each in zip(GRADIENTS, means, low, high, strict=True)
    ]
    head = "| gradient of | at the input | effects in | `pearson` | `sign` |"
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *rows])


def with_tables(page: str, found: Benchmark, more: str = "") -> str:
    """The page with these tables between its two marks."""
    return between(page, BEGIN, END, f"{as_markdown(found)}{more}".removesuffix("\n"))


if __name__ == "__main__":
    found = run(seeds=SEEDS, out=sys.argv[1], progress=print)
    parts = []
    for pairs, names in (("resampled", FIRST), ("minimal", FIRST), ("minimal", TRAINED)):
        title = f"**EAP on {len(names)} models, {pairs} pairs.** {names[0]} to {names[-1]}, {SEEDS} seeds."
        parts.append(f"\n{title}\n\n{first_order(names, pairs=pairs)}\n")
    PAGE.write_text(with_tables(PAGE.read_text(), found, "".join(parts)))
    print(f"{time.process_time():.0f} seconds of processor time")
