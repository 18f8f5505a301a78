"""The cases of the emulated device on a real one: `make gpu`, where there is a GPU."""

import operator
import sys
from pathlib import Path

import pytest
import torch
from device_cases import MISTAKES, differing, tried

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from fitting import start_of, take_step

import mechmarkov as mm
from mechmarkov.training.cuda_graph import STEPS_BEFORE, StepAsGraph
from mechmarkov.training.workload import members_of

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no CUDA device; runs in make gpu where there is one"
)
# Losses of three steps and what interventions give: sums in another order. Half precision rounds to 8 or 11
# bits, and a sum in another order may round to the next one.
HALF = {"trained with bfloat16": 1e-2, "trained with float16, scaled": 1e-3}
EXACT = ("counted", "edit", "resumed")  # integers, moved numbers, deterministic kernels
WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # as CUDA asks for deterministic products
IN_STACKS = [name for name in mm.recipes() if mm.load_recipe(name).model.shares_stacks]


@pytest.fixture(scope="module")
def found():
    return tried("--cuda", env=WORKSPACE)


def test_the_device_gives_what_the_processor_gives(found):
    assert len(found) > 40
    assert differing(found, EXACT, HALF, 1e-4) == {}


def test_mistakes_end_in_an_error(found):
    assert {case: "error" in found[case] for case in MISTAKES} == dict.fromkeys(MISTAKES, True)


@pytest.fixture
def deterministic(monkeypatch):
    for name, value in WORKSPACE.items():
        monkeypatch.setenv(name, value)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", IN_STACKS)
def test_a_replayed_step_gives_the_bits_of_one_that_is_launched(name):
    recipe = mm.load_recipe(name).with_set(["steps=9", "checkpoints=[]"])
    replayed, launched = (start_of(members_of(recipe, range(2)), "cuda") for _ in range(2))
    launched.launch = operator.call
    for _ in range(STEPS_BEFORE + 5):
        take_step(replayed)
        take_step(launched)
    assert replayed.launch._graph is not None
    for name, values in launched.metrics.items():
        assert torch.equal(values, replayed.metrics[name]), name
    for name, value in launched.learner.parameters.items():
        assert torch.equal(value, replayed.learner.parameters[name]), name


def test_a_step_that_waits_for_the_device_is_called_as_it_is():
    launch, total = StepAsGraph(), torch.zeros((), device="cuda")

    def step(x):
        total.add_(x.item())
        return {"total": total.clone()}

    def steps(count):
        return [launch(step, torch.ones((), device="cuda"))["total"].item() for _ in range(count)]

    assert steps(STEPS_BEFORE - 1) == [1, 2]
    with pytest.warns(UserWarning, match=r"waits for the GPU \(.*test_gpu.py"):
        steps(1)
    assert steps(2) == [4, 5]
