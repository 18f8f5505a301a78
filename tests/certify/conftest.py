"""Certificates are tested on the shapes that the probing layer is tested on."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "probing")]
