"""What share of a fleet is certified: the one-layer recipes, seed by seed.

    python -m benchmarks.certificates --out certificates.csv
    python -m benchmarks.certificates --seeds 1000 --recipes walk-k6-half --out certificates.csv

A model is certified where KL(program ‖ model) is below 0.001 nats on every sequence, and shown where the
worst sequence that was seen is above that; else it is open. The proofs of the first seeds are checked by
`verify`. Rows that the file has are not measured again, so that a measurement can be ended and gone on with.
The table is written into `benchmarks/README.md`. The reduced walks (`walk-*-trap`) are the same for every
seed, and are measured once.
"""

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from scipy.stats import binomtest

import mechmarkov as mm
from benchmarks.timing import write_table
from mechmarkov.certify import certify, proof_of, verify
from mechmarkov.certify.choose import NEAR
from mechmarkov.training import load_recipe

# A walk on 20 states takes 15 times as long as one on 6; 59 of 59 settle 95 % with a confidence of 95 %.
SEEDS = {
    "context-conditioned-k3": 1000,
    **dict.fromkeys(("walk-k6-trap", "walk-k20-trap"), 1),
    **dict.fromkeys(("walk-k6-half", "walk-k6-one", "walk-k6-biased"), 100),
    **dict.fromkeys(("walk-k6-half-sine", "walk-k6-one-sine"), 100),
    **dict.fromkeys(("walk-k20-half", "walk-k20-one"), 59),
    **dict.fromkeys(("binary-p05-q08-tied", "binary-p05-q08-untied", "binary-p02-q03-tied"), 59),
    **dict.fromkeys(("binary-p02-q03-untied", "binary-p08-q08-tied", "binary-p08-q08-untied"), 59),
    "binary-p08-q08-tied-gd": 59,
}
SECONDS = 600.0  # of a clock, so generous: a machine that other work holds up must not look like a failure
TOGETHER = 25  # seeds that are trained as one stack
VERIFIED = 10  # seeds, the first, whose proofs are checked
FIELDS = ("recipe", "seed", "tier", "program", "worst_kl", "seen", "seconds", "verified")
HEAD = (
    *("recipe", "seeds", "certified", "at least, of all seeds", "shown", "open", "verified"),
    *("program", "largest bound", "largest seen", "seconds"),
)


def measured(path: Path) -> list[dict[str, str]]:
    """The rows that a file has."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def measure(recipe: str, seeds: Sequence[int], path: Path) -> None:
    """Train some seeds as one stack, certify each, and add their rows to the file."""
    is_new = not path.exists()
    runs = mm.train(load_recipe(recipe), seeds=list(seeds), progress=False)
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(FIELDS)
        for seed, run in zip(seeds, runs, strict=True):
            began = time.process_time()
            found = certify(run, seconds=SECONDS)
            took = time.process_time() - began
            is_verified = ""
            if seed < VERIFIED and found.worst_kl is not None:
                verify(proof_of(found, int(run.steps[-1])), run)  # an error ends the measurement
                is_verified = "yes"
            row = (
                found.tier,
                found.program.name,
                found.worst_kl,
                found.seen.nats,
                f"{took:.2f}",
                is_verified,
            )
            writer.writerow((recipe, seed, *row))
            file.flush()


def table(rows: Sequence[dict[str, str]]) -> list[str]:
    """A line for each recipe."""
    by_recipe = defaultdict(list)
    for row in rows:
        by_recipe[row["recipe"]].append(row)
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for recipe, own in by_recipe.items():
        bound, seen = [float(row["worst_kl"] or "inf") for row in own], [float(row["seen"]) for row in own]
        certified, shown = sum(value < NEAR for value in bound), sum(value >= NEAR for value in seen)
        settled = binomtest(certified + shown, len(own), alternative="greater").proportion_ci(0.95)
        least = f"{settled.low:.1%}" if len(own) > 1 else "the same"
        counts = (len(own), certified, least, shown, len(own) - certified - shown)
        programs = " ".join(sorted({row["program"] for row in own}))
        seconds = sorted(float(row["seconds"]) for row in own)[len(own) // 2]
        verified = sum(row.get("verified") == "yes" for row in own)
        numbers = (verified, programs, f"{max(bound):.2g}", f"{max(seen):.2g}", f"{seconds:.2g}")
        lines.append(f"| {' | '.join(map(str, (f'`{recipe}`', *counts, *numbers)))} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, help="of each recipe, instead of those in SEEDS")
    parser.add_argument("--recipes", nargs="+", default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=Path("certificates.csv"))
    options = parser.parse_args()
    for recipe in options.recipes:
        done = {int(row["seed"] or 0) for row in measured(options.out) if row["recipe"] == recipe}
        left = [seed for seed in range(options.seeds or SEEDS.get(recipe, 1)) if seed not in done]
        for first in range(0, len(left), TOGETHER):
            measure(recipe, left[first : first + TOGETHER], options.out)
    lines = table(measured(options.out))
    print("\n".join(lines))
    write_table("benchmarks.certificates", lines)
