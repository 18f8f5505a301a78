"""Fleets: recipes of one shape in one stack, splits that fit a budget, precision, starts."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from fitting import fit

from mechmarkov.runs import RunFileError, load
from mechmarkov.training import fleet as fleet_of_runs
from mechmarkov.training import fleet as fleets
from mechmarkov.training.fleet import Diverged, budget_of, train_members
from mechmarkov.training.members import Member, fleet_key, members_of
from mechmarkov.training.memory import member_bytes, split
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.trainer import fit as fit_members
from mechmarkov.utils.forked import can_fork

BASE = Recipe.from_data(
    {
        "name": "base",
        "source": {"kind": "binary", "p": 0.2, "q": 0.3},
        "model": {"kind": "decoder", "n_layers": 1, "d_model": 8, "d_head": 4, "n_ctx": 12},
        "optimiser": {"kind": "adamw", "lr": 0.01},
        "data": {"batch": 4},
        "steps": 20,
        "checkpoints": {"every": 10},
    }
)
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
    "model.d_model=4",
    "model.tied=true",
    "steps=21",
    "data.batch=5",
    "objective.read=last",
    "optimiser.betas=[0.9, 0.99]",
    "optimiser={kind='gd', lr=0.1}",
    "precision=bfloat16",
    "source={kind='circle', n_states=3, p=0.5}",
]


@pytest.mark.parametrize("change", OWN)
def test_a_member_of_a_mixed_stack_trains_as_alone(change):
    own = BASE.with_set([change])
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


@pytest.mark.parametrize("change", OWN)
def test_what_is_a_members_own_shares_a_stack(change):
    assert fleet_key(BASE.with_set([change])) == fleet_key(BASE)


@pytest.mark.parametrize("change", SHARED)
def test_what_is_the_stacks_own_does_not(change):
    other = BASE.with_set([change, "name=other"])
    assert fleet_key(other) != fleet_key(BASE)
    with pytest.raises(ValueError, match="recipes 'base' and 'other' cannot share a stack"):
        fit_members([Member(BASE, 0), Member(other, 0)])


def test_a_fleet_of_several_shapes_comes_back_in_order(tmp_path):
    tied = BASE.with_set(["model.tied=true", "steps=10"])
    members = [Member(BASE, 0), Member(tied, 0), Member(BASE, 1), Member(tied, 7)]
    paths = [tmp_path / f"{i}.pt" for i in range(4)]
    seen = []
    runs = train_members(members, device="cpu", paths=paths, progress=lambda *done: seen.append(done))
    assert seen == sorted(set(seen))
    assert seen[-1] == (30, 30)
    for member, run, path in zip(members, runs, paths, strict=True):
        assert (run.seed, run.recipe) == (member.seed, member.recipe.to_keep())
        alone = fit(member.recipe, [member.seed]).member(0)[0]
        saved = load(path)
        for name, value in alone.items():
            torch.testing.assert_close(saved.states[name], value, rtol=0, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in paths]


COPIES = pytest.mark.skipif(not can_fork(), reason="processes are copied on Linux alone, with no GPU in use")


@pytest.fixture(params=[pytest.param("processes", marks=COPIES), "threads"])
def in_parallel(request, monkeypatch):
    """Two stacks at once, in copies of this process or in threads of it."""
    monkeypatch.setattr(fleet_of_runs, "LEAST_TOKENS_IN_PROCESSES", 1)
    monkeypatch.setattr(fleet_of_runs, "LEAST_TOKENS_IN_THREADS", 1)
    monkeypatch.setattr(fleet_of_runs, "cores", lambda: 2)
    if request.param == "threads":
        monkeypatch.setattr(fleet_of_runs, "can_fork", lambda: False)
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


def test_stacks_at_once_give_what_they_give_one_by_one(in_parallel):
    one_by_one, at_once = (
        train_members(members_of(BASE, range(6)), device="cpu", at_once=n, memory=member_bytes(BASE) * 2 * n)
        for n in (1, 2)
    )
    assert {run.provenance["trained_together"] for run in one_by_one + at_once} == {2}
    for one, other in zip(one_by_one, at_once, strict=True):
        assert one.recipe == other.recipe
        for name, value in one.states.items():
            assert torch.equal(value, other.states[name]), name


def test_stacks_at_once_are_where_they_should_be(in_parallel, monkeypatch):
    real, folder = fleet_of_runs.fit, []

    def fit_here(members, *arguments, **options):
        folder.append(members)
        return real(members, *arguments, **options)

    monkeypatch.setattr(fleet_of_runs, "fit", fit_here)
    train_members(members_of(BASE, range(4)), device="cpu")
    assert len(folder) == (2 if in_parallel == "threads" else 0)


@pytest.mark.parametrize("changes", [[], ["compile=true"], ["model.n_layers=2", "compile=true"]])
@pytest.mark.parametrize("forks", [True, False])
def test_a_process_that_compiles_is_not_copied(changes, forks, monkeypatch):
    seen = []

    def train_no_stack(work, arguments, at_once, **options):
        seen.append(options["copied"])
        return iter(())

    monkeypatch.setattr(fleet_of_runs, "can_fork", lambda: forks)
    monkeypatch.setattr(fleet_of_runs, "forked", train_no_stack)
    members = [*members_of(BASE, range(2)), *members_of(BASE.with_set(changes), range(2))]
    with pytest.raises(KeyError):  # no results
        train_members(members, device="cpu")
    assert seen == [forks and not changes]


def test_stacks_of_threads_have_more_tokens_than_those_of_processes(monkeypatch):
    """Threads launch their operations one after the other: of small stacks two take longer than one."""
    monkeypatch.setattr(fleet_of_runs, "cores", lambda: 2)
    recipe = BASE.with_set(["model.n_ctx=64", "data.batch=16", "steps=1", "checkpoints={every=1}"])
    together = {}
    for forks in (True, False):
        monkeypatch.setattr(fleet_of_runs, "can_fork", lambda forks=forks: forks and can_fork())
        runs = train_members(members_of(recipe, range(4)), device="cpu")
        together[forks] = {run.provenance["trained_together"] for run in runs}
    assert together == {True: {2 if can_fork() else 4}, False: {4}}


def test_an_error_in_one_stack_stops_the_others_and_is_told(in_parallel, tmp_path, monkeypatch):
    real = fleet_of_runs.fit
    long = BASE.with_set(["steps=100_000", "checkpoints={every=100_000}"])  # minutes

    def fit_or_fail(members, *arguments, **options):
        if members[0].seed == 0:
            raise ArithmeticError("of the first stack")
        fitted = real(members, *arguments, **options)
        (tmp_path / "trained").touch()
        return fitted

    monkeypatch.setattr(fleet_of_runs, "fit", fit_or_fail)
    with pytest.raises(ArithmeticError, match="of the first stack"):
        train_members(members_of(long, range(4)), device="cpu")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_fleet_goes_on_to_the_same_bits(in_parallel, tmp_path, monkeypatch):
    recipe = BASE.with_set(["steps=100", "checkpoints={every=50}"])
    paths = [tmp_path / f"{i}.pt" for i in range(4)]
    whole = train_members(members_of(recipe, range(4)), device="cpu")

    class PowerCutError(Exception):
        pass

    def stop(done, total):
        assert total == 200
        if done >= 25:
            raise PowerCutError

    options = {"device": "cpu", "paths": paths, "save_every": 0}
    with pytest.raises(PowerCutError):
        train_members(members_of(recipe, range(4)), **options, progress=stop)
    left = {path.name for path in tmp_path.iterdir()}
    assert left
    assert left <= {"partial-0.pt", "partial-1.pt"}
    real, steps = fleet_of_runs.fit, []

    def fit_the_rest(members, *arguments, resume_from, **options):
        assert (resume_from is not None) == (f"partial-{members[0].seed // 2}.pt" in left)
        return real(members, *arguments, resume_from=resume_from, **options)

    monkeypatch.setattr(fleet_of_runs, "fit", fit_the_rest)
    resumed = train_members(members_of(recipe, range(4)), **options, progress=lambda *d: steps.append(d))
    assert steps[-1] == (200, 200)
    for one, other in zip(whole, resumed, strict=True):
        for name, value in one.states.items():
            assert torch.equal(value, other.states[name]), name
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in paths]


def test_a_stack_that_ended_before_an_interruption_is_read_and_not_trained_again(tmp_path, monkeypatch):
    paths = [tmp_path / f"{i}.pt" for i in range(4)]
    options = {"device": "cpu", "paths": paths, "at_once": 1, "memory": 2 * member_bytes(BASE)}

    def stop(done, total):
        if done > total // 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train_members(members_of(BASE, range(4)), **options, progress=stop)
    assert [path.exists() for path in paths] == [True, True, False, False]
    real, trained, steps = fleet_of_runs.fit, [], []

    def fit_the_rest(members, *arguments, **how):
        trained.extend(member.seed for member in members)
        return real(members, *arguments, **how)

    monkeypatch.setattr(fleet_of_runs, "fit", fit_the_rest)
    runs = train_members(members_of(BASE, range(4)), **options, progress=lambda *done: steps.append(done))
    assert trained == [2, 3]
    assert steps[-1] == (40, 40)
    assert [run.seed for run in runs] == [0, 1, 2, 3]
    with pytest.raises(RunFileError, match=r"0\.pt is of another recipe"):
        train_members(members_of(BASE.with_set(["source.p=0.9"]), range(4)), **options)


@COPIES
def test_a_stack_whose_process_is_killed_is_told(monkeypatch):
    monkeypatch.setattr(fleet_of_runs, "LEAST_TOKENS_IN_PROCESSES", 1)
    monkeypatch.setattr(fleet_of_runs, "fit", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RuntimeError, match=r"killed, possibly out of memory: memory=\.\.\."):
        train_members(members_of(BASE, range(4)), device="cpu", at_once=2)


def test_one_large_model_is_trained_where_nobody_set_a_limit(monkeypatch):
    needed = member_bytes(BASE)
    monkeypatch.setattr(fleet_of_runs, "MEMORY", needed // 2)
    (alone,) = train_members(members_of(BASE, [0]), device="cpu")
    two = train_members(members_of(BASE, [0, 1]), device="cpu")  # one after the other, since two do not fit
    assert torch.equal(alone.states["embed.W_E"], two[0].states["embed.W_E"])
    with pytest.raises(ValueError, match="but one model of recipe 'base' needs about"):
        train_members(members_of(BASE, [0]), device="cpu", memory=needed // 2)


def test_a_fleet_is_split_to_its_budget():
    members = [Member(BASE, seed) for seed in range(10)]
    each = member_bytes(BASE)
    assert split(members, budget=10 * each) == [list(range(10))]
    assert [len(stack) for stack in split(members, budget=4 * each)] == [4, 4, 2]
    assert [len(stack) for stack in split(members, budget=4 * each, at_once=2)] == [2] * 5
    tokens = 4 * 12
    assert [len(stack) for stack in split(members, budget=10**12, most=5 * tokens)] == [5, 5]
    with pytest.raises(ValueError, match=r"memory is 0 MB, but one model of recipe 'base' needs about \d MB"):
        split(members, budget=100)


def test_one_that_diverges_is_reported_and_the_others_are_saved(tmp_path):
    wild = BASE.with_set(["optimiser.lr=1e6", "model.normalization_type=none", "init.std=1e3"])
    calm = BASE.with_set(["model.normalization_type=none"])
    paths = [tmp_path / "0.pt", tmp_path / "1.pt", tmp_path / "2.pt"]
    fleet = [Member(calm, 0), Member(wild, 0), Member(calm, 1)]
    first, lost, last = train_members(fleet, device="cpu", paths=paths)
    assert lost == Diverged(wild, 0)
    assert lost.message == "weights of seed 0 are not finite after 20 steps"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.pt", "2.pt"]
    for run, seed in ((first, 0), (last, 1)):
        alone = fit(calm, [seed]).member(0)[0]
        for name, value in alone.items():
            torch.testing.assert_close(run.states[name], value, rtol=0, atol=1e-5)


COMPILED = """
import json, sys, torch
from mechmarkov.training.trainer import fit
from mechmarkov.training.members import members_of
from mechmarkov.training.recipe import Recipe
base = Recipe.from_data(json.loads(sys.argv[1]))
one, other = (fit(members_of(recipe, [0, 1])) for recipe in (base, base.with_set(["compile=true"])))
counters = torch._dynamo.utils.counters["stats"]
assert counters["unique_graphs"] >= 1, counters
for name, value in one.checkpoints[20].items():
    if not name.endswith("b_K"):  # its gradient is rounding alone, which Adam divides by itself
        torch.testing.assert_close(other.checkpoints[20][name], value, rtol=0, atol=1e-5)
print("same")
"""


@pytest.mark.slow
def test_a_compiled_fleet_is_the_fleet():
    # In a process of its own: the checks of shapes that pytest adds to every function cannot be compiled.
    command = [sys.executable, "-c", COMPILED, json.dumps(BASE.to_data())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "same", done.stderr[-2000:]


@pytest.mark.parametrize(
    "shape",
    [
        ["model.tied=true"],
        ["model.window=3"],
        ["model.positional_embedding_type=relative"],
        ["model.positional_embedding_type=rotary"],
        ["model.positional_embedding_type=shortformer"],
        ["model.positional_embedding_type=none"],
        ["model.attn_only=true"],
        ["model.n_layers=2", "model.normalization_type=RMSPre"],
    ],
    ids=" ".join,
)
def test_variants_train_through_the_same_path(shape):
    recipe = BASE.with_set(shape)
    stack = fit(recipe, [3, 1])
    for index, seed in enumerate((3, 1)):
        for name, value in fit(recipe, [seed]).checkpoints[20].items():
            torch.testing.assert_close(stack.checkpoints[20][name][index], value[0], rtol=0, atol=1e-5)
    assert (stack.metrics["loss"][-1] != stack.metrics["loss"][0]).all()


def test_the_budget_of_a_gpu_counts_what_torch_keeps_and_what_others_may_take(monkeypatch):
    gpu, gigabyte = torch.device("cuda"), 10**9
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (20 * gigabyte, 100 * gigabyte))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 50 * gigabyte)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda place: 10 * gigabyte)
    assert budget_of(gpu, 0) == pytest.approx(0.7 * 60 * gigabyte)
    assert budget_of(gpu, 0, share=0.25) == pytest.approx(0.7 * 25 * gigabyte)


def test_after_running_out_of_memory_half_of_the_gpus_budget_is_tried_and_not_of_the_cpus(monkeypatch):
    tried = []

    def train(members, *, memory, **_):
        tried.append(memory)
        if len(tried) < 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return []

    monkeypatch.setattr(fleets, "budget_of", lambda place, largest: 97 * 10**9)
    monkeypatch.setattr(fleets, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(fleets, "sizes_of", lambda members: [30 * 10**9] * len(members))
    monkeypatch.setattr(fleets, "train_members", train)
    fleets.train_as_it_fits(members_of(BASE, range(4)), device="cuda")
    assert tried == [None, 97 * 10**9 // 2]
