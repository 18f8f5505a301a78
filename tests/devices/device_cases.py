"""The cases of `on_device.py`, which a process of their own tries, and what is asked of each device."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("on_device.py")
MISTAKES = (
    "mixed devices",
    "numpy",
    "generator of the host",
    "training set on the host",
    "token out of range",
)
Lines = dict[str, dict[str, Any]]


def tried(*options: str, env: Mapping[str, str] | None = None) -> Lines:
    """The results of every case, from a process of its own: torch is changed for all of it."""
    process = subprocess.run(
        [sys.executable, SCRIPT, *options],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        env=os.environ | (env or {}),
    )
    assert process.returncode == 0, process.stderr[-4000:]
    lines = map(json.loads, process.stdout.splitlines())
    return {line.pop("case"): line for line in lines}


def differing(found: Lines, exact: tuple[str, ...], half: Mapping[str, float], other: float) -> Lines:
    """The cases that end in an error or differ from the processor by more than they may, without mistakes."""
    return {
        case: line
        for case, line in found.items()
        if case not in MISTAKES
        and ("error" in line or line["difference"] > (0 if case.startswith(exact) else half.get(case, other)))
    }
