"""The probes: one question, one room; in a checkout they stand in its top folder `probes/`."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[2] / "probes")]
