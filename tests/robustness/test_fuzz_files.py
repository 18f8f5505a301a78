"""Broken copies of good files, format by format: a right answer or one line, and nothing else happens.

In one process of its own: the checks of types that pytest adds to every call take ten times as long.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from loaders import LOADERS

pytestmark = pytest.mark.system

FUZZ = Path(__file__).parent / "fuzz.py"
FEW = 200  # copies of each format; `make fuzz` breaks 10 000


def fuzzed(folder: Path, *arguments: str) -> dict[str, dict]:
    out = folder / "counts.json"
    command = [sys.executable, str(FUZZ), "--json", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {found["name"]: found for found in json.loads(out.read_text("utf-8"))}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    return fuzzed(tmp_path_factory.mktemp("fuzz"), "--count", str(FEW))


def check(name: str, found: dict, count: int) -> None:
    assert found["problems"] == []
    assert found["right"] + found["refused"] == found["copies"] == count
    # Refused for many reasons: the copies are broken in many places.
    assert found["lines"] > (5 if name.startswith("budgets") else 20)
    assert found["right"] > 0  # and some still hold a model


@pytest.mark.parametrize("name", LOADERS)
def test_a_broken_file_is_read_right_or_refused_in_one_line(few, name):
    check(name, few[name], FEW)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", LOADERS)
def test_ten_thousand_broken_files(tmp_path, name):
    check(name, fuzzed(tmp_path, name, "--count", "10000", "--seed", "11")[name], 10_000)
