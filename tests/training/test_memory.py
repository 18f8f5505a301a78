"""What a fleet takes, measured by the operating system, against the estimate that splits it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mechmarkov.training.memory import member_bytes
from mechmarkov.training.recipe import load_recipe

MEASURE = r"""
import json, os, re, sys, torch
from pathlib import Path
from mechmarkov.training.trainer import fit
from mechmarkov.training.members import members_of
from mechmarkov.training.recipe import Recipe
torch.set_num_threads(1)
for recipe, size in json.loads(sys.argv[1]):
    if os.fork():  # each shape in a process of its own, whose peak starts from what all share
        assert os.wait()[1] == 0
        continue
    peaks = []
    for members in (1, size):
        fit(members_of(Recipe.from_data(recipe), range(members)))
        # Not getrusage: a new process starts with the peak of the one that started it.
        peaks.append(int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
    print((peaks[1] - peaks[0]) / (size - 1), flush=True)
    os._exit(0)
"""

SHAPES = {
    "few inputs": ("binary-p05-q08-untied", ["model.n_ctx=512"], 12),
    "relative positions": (
        "binary-p05-q08-untied",
        ["model.n_ctx=128", "model.positional_embedding_type=relative"],
        12,
    ),
    "two layers, every checkpoint": ("in-context-k3-shortformer", ["checkpoints={every=1}"], 12),
    "grouped queries and gates": (
        "in-context-k3-shortformer",
        [
            "model.n_key_value_heads=1",
            "model.use_qk_norm=true",
            "model.attn_only=false",
            "model.gated_mlp=true",
            "model.act_fn=silu",
            "model.d_mlp=128",
        ],
        12,
    ),
    "walk": ("walk-k6-half", [], 32),
}


@pytest.fixture(scope="module")
def measured():
    """Bytes that a further member took, by shape."""
    runs = [[recipe_of(shape).to_data(), SHAPES[shape][2]] for shape in SHAPES]
    command = [sys.executable, "-c", MEASURE, json.dumps(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(SHAPES, map(float, done.stdout.split()), strict=True))


def recipe_of(shape):
    name, changes, _ = SHAPES[shape]
    return load_recipe(name).with_set([*changes, "steps=3"])


@pytest.mark.system
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from Linux's /proc")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_member_takes_no_more_than_estimated(measured, shape):
    estimate = member_bytes(recipe_of(shape))
    # A quarter for what the allocator keeps; and no estimate so wide that a budget would stand half empty.
    assert estimate / 4 < measured[shape] < 1.25 * estimate
