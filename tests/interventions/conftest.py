"""Interventions are tested on the runs that the probing layer is tested on."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "probing"))
