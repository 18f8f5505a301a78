"""Run files made by hand are those of the tests of runs; the summary tells how long a refusal took."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "runs"))
sys.path.append(str(Path(__file__).parent))

from watch import COMPUTING


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The slowest refusal, as a number and not as an assertion: how long it takes is the machine's affair."""
    passed = terminalreporter.stats.get("passed", [])
    times = [(value, r.nodeid) for r in passed for name, value in r.user_properties if name == COMPUTING]
    if times:
        seconds, slowest = max(times)
        terminalreporter.write_line(f"slowest of {len(times)} refusals: {seconds:.2f} s, {slowest}")
