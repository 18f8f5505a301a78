"""Run files made by hand are those of the tests of runs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "runs"))
