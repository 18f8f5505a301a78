"""Broken copies of good files, format by format: what became of them.

    python tests/robustness/fuzz.py --count 10000 [--seed 7] [--json FILE] [FORMAT …]

In a process of its own, without the checks of types that pytest adds, and with 300 MB beside its imports.
"""

import argparse
import faulthandler
import json
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "runs"))

import torch
from loaders import LOADERS
from watch import MEMORY, Watch, in_time, watching

PROBLEMS_SHOWN = 20


@dataclass
class Count:
    """What became of the broken copies of one format.

    Attributes:
        name: The format.
        copies: How many there were.
        right: Read, and what was read can be written, read again and used.
        refused: Refused in one line.
        lines: Different lines.
        slowest: Seconds of computing that the slowest took.
        problems: Everything else, the first few.
    """

    name: str
    copies: int = 0
    right: int = 0
    refused: int = 0
    lines: int = 0
    slowest: float = 0.0
    problems: list[str] = field(default_factory=list)


def fuzz(name: str, count: int, seed: int, folder: Path) -> Count:
    """Break one format `count` times."""
    loader, found, said = LOADERS[name], Count(name), set[str]()
    path, broken = loader.good(folder)
    good = broken.read_bytes()
    loader.read(path)  # what is loaded on first use is loaded now
    before = sorted(folder.rglob("*"))
    watch = Watch(folder)
    with watching(watch):
        for bad in loader.mutants(good, seed, count):
            broken.write_bytes(bad)
            began = time.process_time()
            try:
                with in_time():
                    loader.read(path)
                found.right += 1
            except loader.error as error:
                line = str(error)
                if not line.isprintable() or len(line) > loader.longest:
                    found.problems.append(f"{found.copies}: no line: {line[:100]!r}")
                found.refused += 1
                said.add(line)
            except BaseException as error:  # whatever it is, it is counted
                if isinstance(error, KeyboardInterrupt):
                    raise
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(where.filename).name}:{where.lineno}"
                found.problems.append(
                    f"{found.copies}: {type(error).__name__} at {place}: {str(error)[:100]!r}"
                )
            found.slowest = max(found.slowest, time.process_time() - began)
            found.copies += 1
            if watch.seen:
                found.problems.append(f"{found.copies - 1}: {watch.seen[:3]}")
                watch.seen.clear()
    if sorted(folder.rglob("*")) != before:
        found.problems.append("files were left behind")
    found.lines = len(said)
    del found.problems[PROBLEMS_SHOWN:]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*", default=list(LOADERS), metavar="FORMAT")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    counts = []
    print("| format | broken copies | read right | refused in one line | slowest | anything else |")
    print("|---|---|---|---|---|---|")
    for name in options.formats:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            found = fuzz(name, options.count, options.seed, Path(folder))
        counts.append(found)
        print(
            f"| {name} | {found.copies} | {found.right} | {found.refused} | {found.slowest:.2f} s | "
            f"{len(found.problems)} |",
            flush=True,
        )
        for problem in found.problems:
            print(f"  {problem}", file=sys.stderr, flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(found) for found in counts]), "utf-8")


if __name__ == "__main__":
    main()
