"""Ranks of twelve methods on twenty-four cases with intervals over seeds, written into `docs/bench.md`.

python -m benchmarks.ranks FOLDER        # it goes on where it stopped; the folder keeps what is measured
"""

import sys
import time
from pathlib import Path

from mechmarkov.bench import CASES, METRICS, Benchmark, places, run
from mechmarkov.utils.threads import cores

PAGE = Path(__file__).parents[1] / "docs" / "bench.md"
BEGIN, END = "<!-- measured by benchmarks/ranks.py -->", "<!-- end of the ranks -->"
SEEDS = 16
METHODS = (
    "eap",
    "eap-clean-corrupt",
    "eap-ig",
    "eap-ig-activations",
    "eap-qk",
    "attribution-patching",
    "resample-ablation",
    "mean-ablation",
    "zero-ablation",
    "difference-norm",
    "logit-lens",
    "tuned-lens",
)
WITHOUT = (
    "plateau",
    "trap",
    "tied-plateau",
    "canonical",
    "no-belief",
    "random-weights",
    "shuffled-circuit",
)  # nothing has an effect, or nothing was learned


def table(found: Benchmark) -> str:
    """The score that each method is placed by, under each metric, with its place, as a table of Markdown."""
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for each in places(found):
        for place, (name, score) in enumerate(each.methods.items(), 1):
            interval = f"{score.value:.2f} ({score.low:.2f} to {score.high:.2f})"
            cells.setdefault((each.of, each.score, name), {})[each.metric] = f"{place}: {interval}"
    head = f"| claims of | score | method | {' | '.join(METRICS)} |"
    rows = [
        f"| {of} | `{score}` | `{name}` | {' | '.join(by_metric.get(metric, '–') for metric in METRICS)} |"
        for (of, score, name), by_metric in cells.items()
    ]
    return "\n".join([head, "| --- | --- | --- |" + " --- |" * len(METRICS), *rows])


def measured(folder: str, seeds: int = SEEDS) -> Benchmark:
    """All twelve methods on all twenty-four cases."""
    cases = [name for name in CASES if name not in WITHOUT]
    return run(METHODS, cases, seeds, jobs=cores(), out=folder)


if __name__ == "__main__":
    began = time.monotonic()
    found = measured(sys.argv[1])
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{rest.partition(END)[2]}")
    print(f"{time.monotonic() - began:.0f} seconds on {cores()} cores")
