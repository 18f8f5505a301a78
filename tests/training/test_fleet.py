"""Fleets: recipes of one shape in one stack, splits that fit a budget, stacks at once, interruptions."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fitting import BASE, fit, fit_members, same_run

from mechmarkov.runs import RunFileError, load
from mechmarkov.training import execute, plan, split
from mechmarkov.training.execute import Diverged
from mechmarkov.training.plan import plan_training
from mechmarkov.training.split import budget_of
from mechmarkov.training.train import train, train_members
from mechmarkov.training.workload import Member, fleet_key, members_of, workload_of
from mechmarkov.utils.forked import can_fork
from mechmarkov.utils.progress import Progress

EACH = workload_of(BASE).bytes
# What a member may have for itself.
OWN = [
    "name=other",
    "source.p=0.9",
    "source={kind='chain', P=[[0.1, 0.9], [0.5, 0.5]]}",
    "optimiser.lr=0.1",
    "optimiser.weight_decay=0.5",
    "optimiser.schedule=constant",
    "init.std=0.3",
    "init.scheme=guideline",
    "init.scheme=rank_one",
]
SHARED = [
    "model.d_model=4", "model.tied=true", "steps=21", "data.batch=5", "objective.read=last",
    "optimiser.betas=[0.9, 0.99]", "optimiser={kind='gd', lr=0.1}", "precision=bfloat16",
    "source={kind='circle', n_states=3, p=0.5}",
]  # fmt: skip
KINDS = ("relative", "relative_bias", "alibi", "rotary", "shortformer", "none")
SHAPES = [
    ["model.tied=true"],
    ["model.window=3"],
    *([f"model.positional_embedding_type={kind}"] for kind in KINDS),
    ["model.attn_only=true"],
    ["model.n_layers=2", "model.normalization_type=RMSPre"],
    ["model.n_layers=2", "model.normalization_type=LN", "model.norm_first=false"],
]


def files(folder, count):
    return [folder / f"{i}.pt" for i in range(count)]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def interrupt_at(step):
    def progress(done, steps):
        if done >= step:
            raise InterruptedError

    return progress


@pytest.fixture
def before_stacks(monkeypatch):
    """Puts a call with each stack before it begins to train."""
    real = execute.StackInTraining

    def put(note):
        def begin(stack, *rest):
            note(stack)
            return real(stack, *rest)

        monkeypatch.setattr(execute, "StackInTraining", begin)

    return put


@pytest.mark.parametrize("change", OWN)
def test_a_mixed_stack_trains_members_as_alone(change):
    own = BASE.with_set([change])
    assert fleet_key(own) == fleet_key(BASE)
    stack = fit_members([Member(BASE, 5), Member(own, 5), Member(own, 2)])
    for index, member in enumerate(stack.members):
        alone = fit(member.recipe, [member.seed])
        states, metrics = stack.member(index)
        expected, expected_metrics = alone.member(0)
        assert torch.equal(metrics["loss"][0], expected_metrics["loss"][0]) or change.startswith("init")
        for name, value in states.items():
            assert torch.equal(value[0], expected[name][0]), name
            # The issue's own bound: rounding of another order of summation, over 20 steps.
            torch.testing.assert_close(value[-1], expected[name][-1], rtol=0, atol=1e-5)
    first, second = stack.member(0)[0], stack.member(1)[0]
    differs = max(float((first[name][-1] - second[name][-1]).abs().max()) for name in first)
    assert (differs > 1e-3) == (not change.startswith("name"))


@pytest.mark.parametrize("change", SHARED)
def test_recipes_of_two_shapes_share_no_stack(change):
    other = BASE.with_set([change, "name=other"])
    assert fleet_key(other) != fleet_key(BASE)
    stacks = plan_training([Member(BASE, 0), Member(other, 0)], device="cpu").stacks
    assert [stack.places for stack in stacks] == [(0,), (1,)]


@pytest.mark.parametrize("shape", SHAPES, ids=" ".join)
def test_every_shape_trains_in_a_stack(shape):
    recipe = BASE.with_set(shape)
    stack = fit(recipe, [3, 1])
    for index, seed in enumerate((3, 1)):
        for name, value in fit(recipe, [seed]).checkpoints[20].items():
            torch.testing.assert_close(stack.checkpoints[20][name][index], value[0], rtol=0, atol=1e-5)
    assert (stack.metrics["loss"][-1] != stack.metrics["loss"][0]).all()


def test_several_shapes_come_back_in_order(tmp_path):
    tied = BASE.with_set(["model.tied=true", "steps=10"])
    members = [Member(BASE, 0), Member(tied, 0), Member(BASE, 1), Member(tied, 7)]
    paths, seen = files(tmp_path, 4), []
    runs = train_members(members, device="cpu", paths=paths, progress=lambda *done: seen.append(done))
    assert seen == sorted(set(seen))
    assert seen[-1] == (30, 30)
    for member, run, path in zip(members, runs, paths, strict=True):
        assert (run.seed, run.recipe) == (member.seed, member.recipe.to_keep())
        same_run(run, load(path))
        same_run(run, train(member.recipe, seed=member.seed, device="cpu"), atol=1e-5)
    assert names(tmp_path) == [path.name for path in paths]


COPIES = pytest.mark.skipif(not can_fork(), reason="processes are copied on Linux alone, with no GPU in use")


@pytest.fixture(params=[pytest.param("processes", marks=COPIES), "threads"])
def in_parallel(request, monkeypatch):
    """Two stacks at once, in copies of this process or in threads of it."""
    monkeypatch.setattr(plan, "LEAST_TOKENS_IN_PROCESSES", 1)
    monkeypatch.setattr(plan, "LEAST_TOKENS_IN_THREADS", 1)
    monkeypatch.setattr(plan, "cores", lambda: 2)
    if request.param == "threads":
        monkeypatch.setattr(plan, "can_fork", lambda: False)
    before = _system_threads()
    yield request.param
    # A thread that Python has joined may still hold a lock of MKL for a moment, which a copy would inherit.
    # Those of a BLAS, which may begin meanwhile, stay.
    for _ in range(100):
        if not _system_threads() - before - {thread.native_id for thread in threading.enumerate()}:
            break
        time.sleep(0.01)


def _system_threads():
    tasks = Path("/proc/self/task")
    return {int(path.name) for path in tasks.iterdir()} if tasks.exists() else set()


def test_stacks_at_once_give_the_same_bits(in_parallel):
    one_by_one, at_once = (
        train_members(members_of(BASE, range(6)), device="cpu", at_once=n, memory=EACH * 2 * n)
        for n in (1, 2)
    )
    assert {run.provenance["trained_together"] for run in one_by_one + at_once} == {2}
    assert all(run.provenance["computed_by"] for run in one_by_one + at_once)
    for one, other in zip(one_by_one, at_once, strict=True):
        same_run(one, other)


@pytest.mark.parametrize("at_once", [0, -1])
def test_at_least_one_stack_trains_at_once(at_once):
    with pytest.raises(ValueError, match=f"^at_once is {at_once}, expected .*at least 1$"):
        plan_training(members_of(BASE, [0]), device="cpu", at_once=at_once)


def test_stacks_at_once_train_where_they_should(in_parallel, before_stacks):
    here = []
    before_stacks(here.append)
    train_members(members_of(BASE, range(4)), device="cpu")
    assert len(here) == (2 if in_parallel == "threads" else 0)


@pytest.mark.parametrize("changes", [[], ["compile=true"], ["model.n_layers=2", "compile=true"]])
@pytest.mark.parametrize("forks", [True, False])
def test_a_process_that_compiles_is_not_copied(changes, forks, monkeypatch):
    monkeypatch.setattr(plan, "can_fork", lambda: forks)
    members = [*members_of(BASE, range(2)), *members_of(BASE.with_set(changes), range(2))]
    assert plan_training(members, device="cpu").copied == (forks and not changes)


@pytest.mark.parametrize(("forks", "together"), [(True, 2), (False, 4)])
def test_stacks_of_threads_have_more_tokens(forks, together, monkeypatch):
    """Threads launch their operations one after the other: of small stacks two take longer than one."""
    monkeypatch.setattr(plan, "cores", lambda: 2)
    monkeypatch.setattr(plan, "can_fork", lambda: forks)
    recipe = BASE.with_set(["model.n_ctx=64", "data.batch=16"])
    stacks = plan_training(members_of(recipe, range(4)), device="cpu").stacks
    assert {len(stack.members) for stack in stacks} == {together}


def test_an_error_in_one_stack_stops_all(in_parallel, tmp_path, before_stacks):
    long = BASE.with_set(["steps=100_000", "checkpoints={every=100_000}"])  # minutes

    def fail(stack):
        if stack.members[0].seed == 0:
            raise ArithmeticError("of the first stack")

    before_stacks(fail)
    with pytest.raises(ArithmeticError, match="of the first stack"):
        train_members(members_of(long, range(4)), device="cpu", paths=files(tmp_path, 4))
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith("partial")]


def test_an_interrupted_fleet_resumes_to_the_bit(in_parallel, tmp_path):
    recipe = BASE.with_set(["steps=100", "checkpoints={every=50}"])
    members, paths = members_of(recipe, range(4)), files(tmp_path, 4)
    whole = train_members(members, device="cpu")
    options = {"device": "cpu", "paths": paths, "save_every": 0}
    with pytest.raises(InterruptedError):
        train_members(members, **options, progress=interrupt_at(25))
    left = {*names(tmp_path)}
    assert left
    assert left <= {"partial-0.pt", "partial-1.pt"}
    seen = []
    resumed = train_members(members, **options, progress=lambda *done: seen.append(done))
    assert seen[-1] == (200, 200)
    for one, other in zip(whole, resumed, strict=True):
        same_run(one, other)
    assert names(tmp_path) == [path.name for path in paths]


def test_a_stack_that_ended_is_read(tmp_path, before_stacks):
    paths, members = files(tmp_path, 4), members_of(BASE, range(4))
    options = {"device": "cpu", "paths": paths, "at_once": 1, "memory": 2 * EACH}
    with pytest.raises(InterruptedError):
        train_members(members, **options, progress=interrupt_at(21))
    assert [path.exists() for path in paths] == [True, True, False, False]
    trained, seen = [], []
    before_stacks(lambda stack: trained.extend(member.seed for member in stack.members))
    runs = train_members(members, **options, progress=lambda *done: seen.append(done))
    assert trained == [2, 3]
    assert seen[-1] == (40, 40)
    assert [run.seed for run in runs] == [0, 1, 2, 3]
    with pytest.raises(RunFileError, match=r"0\.pt is of another recipe"):
        train_members(members_of(BASE.with_set(["source.p=0.9"]), range(4)), **options)


@COPIES
def test_a_killed_process_of_a_stack_is_told(monkeypatch, before_stacks):
    monkeypatch.setattr(plan, "LEAST_TOKENS_IN_PROCESSES", 1)
    before_stacks(lambda stack: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RuntimeError, match=r"killed, possibly out of memory: memory=\.\.\."):
        execute.execute(plan_training(members_of(BASE, range(4)), device="cpu", at_once=2))


def test_one_large_model_trains_without_a_limit(monkeypatch):
    monkeypatch.setattr(split, "MEMORY", EACH // 2)
    stacks = {n: plan_training(members_of(BASE, range(n)), device="cpu").stacks for n in (1, 2)}
    assert {n: [stack.places for stack in found] for n, found in stacks.items()} == {
        1: [(0,)],
        2: [(0,), (1,)],  # one after the other, since two do not fit
    }
    with pytest.raises(ValueError, match="but one model of recipe 'base' needs about"):
        plan_training(members_of(BASE, [0]), device="cpu", memory=EACH // 2)


@pytest.mark.parametrize(
    ("memory", "words"), [(1, "1 byte"), ("999", "999 bytes"), ("1.5kB", "1.5 kB"), (123_456, "123 kB")]
)
def test_too_small_a_memory_is_named_as_given(memory, words):
    assert 100_000 < EACH < 1_000_000
    message = f"memory is {words}, but one model of recipe 'base' needs about {EACH / 1e3:.0f} kB"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        plan_training(members_of(BASE, [0]), device="cpu", memory=memory)


def test_one_that_diverges_spares_the_others(tmp_path):
    wild = BASE.with_set(["optimiser.lr=1e6", "model.normalization_type=none", "init.std=1e3"])
    calm = BASE.with_set(["model.normalization_type=none"])
    fleet = [Member(calm, 0), Member(wild, 0), Member(calm, 1)]
    first, lost, last = train_members(fleet, device="cpu", paths=files(tmp_path, 3))
    assert lost == Diverged(wild, 0)
    assert lost.message == "weights of seed 0 are not finite after 20 steps"
    assert names(tmp_path) == ["0.pt", "2.pt"]
    for run, seed in ((first, 0), (last, 1)):
        same_run(run, train(calm, seed=seed, device="cpu"), atol=1e-5)


COMPILED = """
import json, sys, torch
import mechmarkov as mm
base = mm.Recipe.from_data(json.loads(sys.argv[1]))
one, other = (
    mm.train(recipe, seeds=[0, 1], device="cpu")[1] for recipe in (base, base.with_set(["compile=true"]))
)
counters = torch._dynamo.utils.counters["stats"]
assert counters["unique_graphs"] >= 1, counters
for name, value in one.states.items():
    if not name.endswith("b_K"):  # its gradient is rounding alone, which Adam divides by itself
        torch.testing.assert_close(other.states[name], value, rtol=0, atol=1e-5)
print("same")
"""


@pytest.mark.slow
def test_a_compiled_training_is_the_training():
    # In a process of its own: the checks of shapes that pytest adds to every function cannot be compiled.
    command = [sys.executable, "-c", COMPILED, json.dumps(BASE.to_data())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "same", done.stderr[-2000:]


def test_the_budget_of_a_gpu_is_shared(monkeypatch):
    """It counts what torch keeps and what others may take."""
    gpu, gigabyte = torch.device("cuda"), 10**9
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (20 * gigabyte, 100 * gigabyte))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 50 * gigabyte)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda place: 10 * gigabyte)
    assert budget_of(gpu, 0) == pytest.approx(0.7 * 60 * gigabyte)
    assert budget_of(gpu, 0, share=0.25) == pytest.approx(0.7 * 25 * gigabyte)


def test_running_out_of_memory_halves_the_plan(tmp_path):
    """Half of the budget, or of what the fleet takes; only the plans' own files are removed."""
    whole = plan_training(members_of(BASE, range(8)), device="cpu", at_once=1, paths=files(tmp_path, 8))
    for name in ("partial.pt", "partial-0.pt", "partial-9.pt"):
        (tmp_path / name).touch()
    half = whole.halved()
    assert half.memory == 4 * EACH
    assert [len(stack.members) for stack in half.stacks] == [4, 4]
    assert names(tmp_path) == ["partial-9.pt"]
    assert half.halved().halved().memory == EACH
    assert half.halved().halved().halved() is None
    assert replace(whole, memory=6 * EACH).halved().memory == 3 * EACH


def test_the_bar_has_the_loss_next_to_the_entropy_rate(capsys):
    progress = Progress("walk", 2, 10, True, at_each_step=True, aim=", entropy rate 0.61")
    progress._bar.delay = 0
    progress.loss(0, 0.7)
    progress.loss(1, 0.9)
    progress.step(0, 5)
    progress._bar.refresh()
    progress.close()
    assert "loss 0.8, entropy rate 0.61" in capsys.readouterr().err
