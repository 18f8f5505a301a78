"""Probing many checkpoints or many runs stays under 2 GB; measured in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

LOAD = Path(__file__).parent / "load.py"
LIMIT = 2000  # MB, the imports included


def peak(what: str, count: int, *options: str) -> float:
    program = [sys.executable, str(LOAD), what, str(count), *options]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.split()
    assert said[:2] == [what, str(count)]
    print(done.stdout)
    return float(said[2])


FEW = ("--probes", "behaviour,attention,alignment")


def test_sixty_checkpoints_stay_far_below():
    """A small version: the imports are half of what it takes."""
    assert peak("checkpoints", 60, *FEW) < LIMIT / 3


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_checkpoints_with_every_probe():
    assert peak("checkpoints", 1000) < LIMIT


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_sixty_four_runs_with_every_probe():
    assert peak("runs", 64) < LIMIT
