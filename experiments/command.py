"""The command line that every folder of experiments shares: `python -m experiments.FOLDER`."""

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.claims import Measured, table
from experiments.store import page, save
from mechmarkov.utils.threads import threads

Measurements = Mapping[str, Callable[[bool], Measured]]


def main(folder: str, about: str, measurements: Measurements) -> None:
    """Measure, print the table, and write results where `--out` says."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{folder}", description=about)
    parser.add_argument("--quick", action="store_true", help="smaller settings, as in the tests")
    parser.add_argument(
        "--only", nargs="+", choices=[*measurements], help="these measurements", metavar="NAME"
    )
    parser.add_argument(
        "--out", type=Path, help="write results, figures and README.md here; printed only without it"
    )
    options = parser.parse_args()
    if options.quick and options.out is not None:
        parser.error("--out keeps what is measured in full: not with --quick")
    if options.out is not None and not (options.out / "reading.md").is_file():
        parser.error(
            f"--out {options.out} has no reading.md to set the table into: --out experiments/{folder}"
        )
    for name in options.only or measurements:
        started = time.process_time()  # by the clock a shared machine would count
        with threads(1):
            measured = measurements[name](options.quick)
        seconds = time.process_time() - started
        print(f"{table(measured.claims)}\n\n{name}: {seconds:.0f} s of processor time\n", flush=True)
        if options.out is not None:
            save(options.out, name, measured, seconds)
    if options.out is not None and all(
        (options.out / "results" / f"{name}.json").is_file() for name in measurements
    ):
        (options.out / "README.md").write_text(page(options.out, measurements))
