"""What share of a fleet is certified: the one-layer recipes, seed by seed.

    python -m benchmarks.certificates --seeds 1000 --out certificates.csv

A model is certified where KL(program ‖ model) is below 0.001 nats on every sequence, and shown where the
worst sequence that was seen is above that; else it is open. Rows that the file has are not measured again.
The reduced walks (`walk-*-trap`) are the same for every seed, and are measured once.
"""

import argparse
import csv
import time
from collections import defaultdict
from pathlib import Path

import mechmarkov as mm
from mechmarkov.certify import certify
from mechmarkov.certify.choose import NEAR
from mechmarkov.training import load_recipe

SAME_FOR_EVERY_SEED = ("walk-k6-trap", "walk-k20-trap")
ATTENTION_ONLY = (
    *("walk-k6-half", "walk-k6-one", "walk-k6-biased", "walk-k6-half-sine", "walk-k6-one-sine"),
    *("context-conditioned-k3", *SAME_FOR_EVERY_SEED, "walk-k20-half", "walk-k20-one"),
)
TOGETHER = 25  # seeds that are trained as one stack
FIELDS = ("recipe", "seed", "tier", "program", "worst_kl", "seen", "seconds")


def measured(path: Path) -> list[dict[str, str]]:
    """The rows that a file has."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def measure(recipe: str, seeds: list[int], path: Path) -> None:
    """Train some seeds as one stack, certify each, and add their rows to the file."""
    is_new = not path.exists()
    runs = mm.train(load_recipe(recipe), seeds=seeds, progress=False)
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(FIELDS)
        for run in runs:
            began = time.process_time()
            found = certify(run)
            took = time.process_time() - began
            row = (run.seed, found.tier, found.program.name, found.worst_kl, found.seen.nats, f"{took:.2f}")
            writer.writerow((recipe, *row))
            file.flush()


def table(rows: list[dict[str, str]]) -> list[str]:
    """A line for each recipe."""
    by_recipe = defaultdict(list)
    for row in rows:
        by_recipe[row["recipe"]].append(row)
    head = (
        "recipe",
        "seeds",
        "certified",
        "shown",
        "open",
        "program",
        "largest bound",
        "largest seen",
        "seconds",
    )
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for recipe, own in by_recipe.items():
        bound = [float(row["worst_kl"] or "inf") for row in own]
        seen = [float(row["seen"]) for row in own]
        certified = sum(value < NEAR for value in bound)
        shown = sum(value >= NEAR for value in seen)
        programs = " ".join(sorted({row["program"] for row in own}))
        seconds = sorted(float(row["seconds"]) for row in own)[len(own) // 2]
        counts = (len(own), certified, shown, len(own) - certified - shown)
        numbers = (programs, f"{max(bound):.2g}", f"{max(seen):.2g}", f"{seconds:.2g}")
        lines.append(f"| {' | '.join(map(str, (f'`{recipe}`', *counts, *numbers)))} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--recipes", nargs="+", default=list(ATTENTION_ONLY))
    parser.add_argument("--out", type=Path, default=Path("certificates.csv"))
    options = parser.parse_args()
    for recipe in options.recipes:
        done = {int(row["seed"] or 0) for row in measured(options.out) if row["recipe"] == recipe}
        wanted = range(1 if recipe in SAME_FOR_EVERY_SEED else options.seeds)
        left = [seed for seed in wanted if seed not in done]
        for first in range(0, len(left), TOGETHER):
            measure(recipe, left[first : first + TOGETHER], options.out)
    print("\n".join(table(measured(options.out))))
