"""`python -m experiments.random_walks [--quick] [--only NAME] [--out FOLDER]`."""

import argparse
from pathlib import Path

from experiments.claims import table, write
from experiments.random_walks.run import CLAIMS, README, run

parser = argparse.ArgumentParser(prog="python -m experiments.random_walks", description=__doc__)
parser.add_argument("--quick", action="store_true", help="fewer sequences and settings, as in the tests")
parser.add_argument("--only", choices=[*CLAIMS], help="one measurement")
parser.add_argument("--out", type=Path, help="folder for README.md and results.json; printed only without it")
options = parser.parse_args()
claims = run(quick=options.quick, only=options.only)
print(table(claims))
if options.out is not None:
    write(options.out, claims, README)
