"""The cases of the emulated device on a real one: `make gpu`, where there is a GPU."""

import json
import os
import subprocess
import sys

import pytest
import torch
from test_emulated_device import MISTAKES, SCRIPT

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no CUDA device; runs in make gpu where there is one"
)
# Losses of three steps and what interventions give: sums in another order. Half precision rounds to 8 or 11
# bits, and a sum in another order may round to the next one.
HALF = {"trained with bfloat16": 1e-2, "trained with float16, scaled": 1e-3}
EXACT = ("counted", "edit", "resumed")  # integers, moved numbers, deterministic kernels


@pytest.fixture(scope="module")
def found():
    """What every case gave on the device."""
    workspace = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # as CUDA asks for deterministic products
    process = subprocess.run(
        [sys.executable, SCRIPT, "--cuda"],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        env=os.environ | workspace,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    lines = map(json.loads, process.stdout.splitlines())
    return {line.pop("case"): line for line in lines}


def test_the_device_gives_what_the_processor_gives(found):
    assert len(found) > 40
    assert {case: line for case, line in found.items() if case not in MISTAKES and "error" in line} == {}
    differences = {case: line["difference"] for case, line in found.items() if case not in MISTAKES}
    assert {case: value for case, value in differences.items() if value > tolerance(case)} == {}


def tolerance(case):
    return 0 if case.startswith(EXACT) else HALF.get(case, 1e-4)


def test_mistakes_end_in_an_error(found):
    assert {case: "error" in found[case] for case in MISTAKES} == dict.fromkeys(MISTAKES, True)
