"""Whole commands, as a user waits for them: imports, files and page, each in a process of its own.

    python -m benchmarks.commands [--repeats 5] [--before CHECKOUT]

Commands run in turn. The floor of those that need a model is a process that only imports torch and
TransformerLens. With `--before` the same commands of another checkout run next to them. The table is
written into `benchmarks/README.md`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mechmarkov as mm
from benchmarks.timing import write_table

HERE = Path(__file__).parents[1]
OURS = [sys.executable, "-m", "mechmarkov"]
FLOOR = "importing torch and TransformerLens"
PROBED = ("walk", "induction", "mamba")


def commands(run: Path) -> dict[str, list[str]]:
    """Returns the commands by what a table calls them; files go into the current folder."""
    quick = ["--help", "list", "probes", "recipe walk-k6-half", "probe nosuch.pt", "show run.pt"]
    named = {f"`mechmarkov {words}`": [*OURS, *words.replace("run.pt", str(run)).split()] for words in quick}
    named[FLOOR] = [sys.executable, "-c", "import torch, transformer_lens"]
    for example in PROBED:
        for steps in ("", " --steps all"):
            words = f"probe --example {example}{steps}"
            named[f"`mechmarkov {words}`"] = [*OURS, *words.split()]
    return named


def seconds(command: list[str], checkout: Path) -> tuple[float, float]:
    """Returns the wall and the processor seconds of a command and of the processes it starts."""
    settings = os.environ | {"PYTHONPATH": str(checkout)}
    with tempfile.TemporaryDirectory() as folder:
        before, start = os.times(), time.perf_counter()
        subprocess.run(command, cwd=folder, env=settings, capture_output=True, check=False)
        wall, after = time.perf_counter() - start, os.times()
    user, system = (getattr(after, k) - getattr(before, k) for k in ("children_user", "children_system"))
    return wall, user + system


def cell(taken: list[float]) -> str:
    """Returns the median, with the lowest and highest."""
    return f"{statistics.median(taken):.2f} ({min(taken):.2f} to {max(taken):.2f})"


def table(repeats: int, before: Path | None) -> list[str]:
    """Returns the lines of the table: medians of `repeats` in turn, after one run each without a clock."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run.pt"
        mm.example("walk").save(run)
        places = [HERE, *([before] if before else [])]
        taken: dict[str, list[list[tuple[float, float]]]] = {}
        for repeat in range(repeats + 1):
            for name, command in commands(run).items():
                both = [seconds(command, place) for place in places]
                if repeat:
                    taken.setdefault(name, []).append(both)
    sides = ["now", "before"][: len(places)]
    head = " | ".join(f"wall, {side} | processor, {side}" for side in sides)
    lines = [f"| seconds | {head} |", "|---" * (1 + 2 * len(sides)) + "|"]
    for name, rows in taken.items():
        cells = [cell([row[i][kind] for row in rows]) for i in range(len(places)) for kind in (0, 1)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--before", type=Path, help="another checkout, timed next to this one")
    given = parser.parse_args()
    write_table("benchmarks.commands", table(given.repeats, given.before))
