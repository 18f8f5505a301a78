"""The library without the folder of fast kernels: it trains and probes, to the same numbers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mechmarkov

ROOT = Path(mechmarkov.__file__).parents[1]
CODE = """
import importlib.util, torch, mechmarkov as mm
assert importlib.util.find_spec("mechmarkov.models.fast") is None
recipe = mm.load_recipe("binary-p05-q08-untied")
recipe = recipe.with_set(["steps=3", "model.n_ctx=32", "checkpoints={every=3}"])
run = mm.train(recipe, seed=0, device="cpu", progress=False)
print(mm.probe(run, ["behaviour"], progress=False))
print("weights", repr(float(sum(x.double().abs().sum() for x in run.model().parameters()))))
"""


def run_in(folder):
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.system
def test_it_trains_and_probes_without_fast_kernels(tmp_path):
    for name in ("mechmarkov", "probes"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "fast"))
    assert "weights" in run_in(tmp_path)
