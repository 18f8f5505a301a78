"""Without a package that only some need: what still works is the same, and the rest names the extra."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mechmarkov.utils.extras import EXTRAS

ROOT = Path(__file__).parents[1]
HIDING = """
import sys
import transformer_lens  # which has needs of its own

HIDDEN = {hidden!r}

class Blocking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

for name in [name for name in sys.modules if name.partition(".")[0] == HIDDEN]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocking())
"""
TRAINED = """
import json
import mechmarkov as mm
recipe = mm.load_recipe("binary-p05-q08-untied")
recipe = recipe.with_set(["steps=3", "model.n_ctx=32", "checkpoints={every=3}"])
run = mm.train(recipe, seed=0, device="cpu", progress=False)
excess = mm.probe(run, ["behaviour"], sequences=64, progress=False)["behaviour"].scores["excess_loss"].value
import torch
hidden = mm.load_recipe("mess3").source
drawn = hidden.sample(4, 50, generator=torch.Generator().manual_seed(0)).sum().item()
print(json.dumps([run.metrics["loss"]["value"].tolist(), excess, drawn]))
"""


def run(code, hidden=""):
    head = HIDING.format(hidden=hidden) if hidden else ""
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=False)


def test_every_extra_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = declared["optional-dependencies"]
    assert {*EXTRAS.values()} <= {*extras}
    assert {*EXTRAS.values()} - {"devinterp"} <= {*extras["all"][0].partition("[")[2][:-1].split(",")}
    always = {word.split(">")[0] for word in declared["dependencies"]}
    assert not always & {*EXTRAS}


@pytest.mark.system
def test_without_numba_numbers_are_the_same():
    fast, plain = run(TRAINED), run(TRAINED, "numba")
    assert plain.returncode == 0, plain.stderr
    (losses, excess, drawn), (theirs, its, also) = json.loads(plain.stdout), json.loads(fast.stdout)
    assert losses == pytest.approx(theirs, abs=1e-5)
    assert excess == pytest.approx(its, abs=1e-4)
    assert drawn == also


SWEEP = "{'name': 'a', 'recipe': 'walk-k6-half', 'seeds': 1, 'grid': {'source.p': [0.5]}}"
CALLS = {
    "pyarrow": "mm.sweep",
    "ray": f"mm.sweep({SWEEP}, 'out', cluster=mm.Cluster('local'))",
    "huggingface_hub": "mm.load('hf://owner/name')",
}


@pytest.mark.system
@pytest.mark.parametrize("package", CALLS)
def test_a_missing_package_names_its_extra(package, tmp_path):
    done = run(f"import os, mechmarkov as mm; os.chdir({str(tmp_path)!r}); {CALLS[package]}", package)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert f"mechmarkov[{EXTRAS[package]}]" in last


@pytest.mark.system
@pytest.mark.parametrize("words", [["sweep", "binary-phase"], ["mcp"]])
def test_a_command_says_it_in_one_line(words, tmp_path):
    hidden = {"sweep": "pyarrow", "mcp": "mcp"}[words[0]]
    code = f"import os; os.chdir({str(tmp_path)!r}); from mechmarkov.cli import main; main({words!r})"
    done = run(code, hidden)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith(f"error: the package {hidden} is missing: pip install")
    assert [*tmp_path.iterdir()] == []
