"""What a fleet takes, measured by the operating system, against the estimate that splits it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mechmarkov.training.memory import member_bytes
from mechmarkov.training.recipe import load_recipe

MEASURE = r"""
import json, re, sys, torch
from pathlib import Path
from mechmarkov.training.trainer import fit
from mechmarkov.training.members import members_of
from mechmarkov.training.recipe import Recipe
torch.set_num_threads(1)
recipe, size = Recipe.from_data(json.loads(sys.argv[1])), int(sys.argv[2])
peaks = []
for members in (1, size):
    fit(members_of(recipe, range(members)))
    # Not getrusage: a new process starts with the peak of the one that started it.
    peaks.append(int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
print((peaks[1] - peaks[0]) / (size - 1))
"""

SHAPES = {
    "few inputs": ("binary-p05-q08-untied", ["model.n_ctx=512"], 24),
    "relative positions": (
        "binary-p05-q08-untied",
        ["model.n_ctx=128", "model.positional_embedding_type=relative"],
        24,
    ),
    "two layers, every checkpoint": ("in-context-k3-shortformer", ["checkpoints={every=1}"], 16),
    "walk": ("walk-k6-half", [], 32),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from Linux's /proc")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_member_takes_no_more_than_estimated(shape):
    name, changes, size = SHAPES[shape]
    recipe = load_recipe(name).with_set([*changes, "steps=3"])
    command = [sys.executable, "-c", MEASURE, json.dumps(recipe.to_data()), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # A quarter for what the allocator keeps; and no estimate so wide that a budget would stand half empty.
    assert member_bytes(recipe) / 4 < float(done.stdout) < 1.25 * member_bytes(recipe)
