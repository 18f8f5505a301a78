"""The probes: one question, one room; in a checkout they stand in its top folder `probes/`."""

from pathlib import Path

from mechmarkov.catalogue.probes import questions
from mechmarkov.utils.modules import make_callable

__path__ = [str(Path(__file__).resolve().parents[2] / "probes")]
make_callable(__name__, questions)
