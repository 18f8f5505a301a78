"""Memory that runs out: smaller chunks, smaller stacks, the same answers, and it is said.

Run by `test_out_of_memory` in a process of its own: a limit on memory binds all that runs in a process.
"""

import gc
from itertools import pairwise

import numpy as np
import pytest
import torch
import xarray as xr
from jobs import GOLDEN
from run_files import memory_limit

from mechmarkov.probing import chunking
from mechmarkov.probing.chunking import CHUNK_ELEMENTS, Chunk, in_chunks_that_fit
from mechmarkov.probing.recording import ATTENTION, SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.runs import Run, load
from mechmarkov.training import load_recipe
from mechmarkov.training.train import train_members
from mechmarkov.training.workload import members_of, workload_of
from mechmarkov.utils.memory import is_out_of_memory

SMALLER = "out of memory: again in stacks of at most "


def allocate(n_bytes: int) -> torch.Tensor:
    """A real allocation: it fails where the process may not have so much."""
    return torch.empty(n_bytes, dtype=torch.uint8)


def test_what_torch_says_of_a_real_failure():
    with memory_limit(64 << 20), pytest.raises(RuntimeError) as error:
        allocate(1 << 30)
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    cublas = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    assert is_out_of_memory(RuntimeError(cublas))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def many_steps(run: Run, count: int) -> Run:
    """A run with its last weights at so many steps."""
    states = {name: value[-1:].repeat(count, *[1] * (value.ndim - 1)) for name, value in run.states.items()}
    for index in range(count):
        states["unembed.W_U"][index] *= 1 + index / count
    steps = torch.arange(count)
    return Run(config=run.config, source=run.source, objective=run.objective, steps=steps, states=states)


def test_recording_falls_back_to_smaller_chunks(monkeypatch, capsys):
    """A quarter of the first chunk fits; that, of 64 models, needs 4 GB, more than is free in any heap."""
    run = many_steps(load(GOLDEN), 64)
    whole, found = Subject.of(run, "all"), Subject.of(run, "all")
    whole.recorded(SCORES)
    need = allocate  # what a pass over so many models and sequences takes beside its own tensors

    def hungry(members, *rest):
        need((members.stop - members.start) << 26)
        return Chunk(members, *rest)

    monkeypatch.setattr(chunking, "Chunk", hungry)
    gc.collect()
    with memory_limit(1280 << 20):
        found.recorded(SCORES)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "out of memory, recording: again in chunks of 1/4 of the size"
    np.testing.assert_allclose(found.recorded(SCORES), whole.recorded(SCORES), rtol=1e-5, atol=1e-6)
    ours, theirs = found.recorded(ATTENTION), whole.recorded(ATTENTION)
    np.testing.assert_allclose(ours.lag_mass, theirs.lag_mass, rtol=1e-6, atol=1e-7)


def test_chunks_are_quartered_what_follows_starts_anew_and_the_smallest_still_fails(capsys):
    sizes = []

    def work(elements: int) -> str:
        sizes.append(elements)
        allocate(elements << 13)  # 16 GB, 4 GB, 1 GB: far from the limit, whatever a heap has free
        return "done"

    with memory_limit(2 << 30):
        assert in_chunks_that_fit(work, "first", 1 << 21) == "done"
        assert in_chunks_that_fit(work, "second", 1 << 17) == "done"
    assert sizes == [1 << 21, 1 << 19, 1 << 17, 1 << 17]
    assert capsys.readouterr().err.splitlines() == [
        f"out of memory, first: again in chunks of 1/{share} of the size" for share in (4, 16)
    ]

    def never(elements: int) -> None:
        sizes.append(elements)
        allocate(1 << 30)

    with memory_limit(64 << 20), pytest.raises(RuntimeError, match="memory"):
        in_chunks_that_fit(never, "third", 1 << 21)
    assert sizes[4:] == [1 << power for power in (21, 19, 17, 15, 13, 11)]


def test_a_probe_that_runs_out_of_memory_measures_in_smaller_chunks(capsys):
    """Its records are kept, and what is asked after it starts with chunks of the first size."""
    sizes = []

    class Hungry:
        def applies(self, subject):
            return None

        def measure(self, subject):
            sizes.append(subject.chunk_elements)
            lag_mass = subject.recorded(ATTENTION).lag_mass
            allocate(subject.chunk_elements << 13)
            return xr.Dataset({"lag_mass": (("step", "layer", "head", "lag"), lag_mass)})

    subject = Subject.of(load(GOLDEN), find=lambda name: Hungry())
    with memory_limit(2 << 30):
        found = subject.result("hungry")
    assert sizes == [1 << 21, 1 << 19, 1 << 17]
    assert subject.chunk_elements == CHUNK_ELEMENTS == 1 << 21
    assert subject.recorded(ATTENTION).lag_mass is found["lag_mass"].values
    assert capsys.readouterr().err.splitlines()[-1] == (
        "out of memory, hungry: again in chunks of 1/16 of the size"
    )


def test_another_error_is_no_reason_to_try_again():
    tries = []

    def broken(elements: int) -> None:
        tries.append(1)
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        in_chunks_that_fit(broken, "it", 1 << 21)
    assert tries == [1]


def test_a_fleet_is_halved_until_it_fits(monkeypatch, capsys, tmp_path):
    """Sixteen members at once do not fit, fewer do; each is the member that is trained alone."""
    from mechmarkov.training import execute

    recipe = load_recipe("binary-p05-q08-tied").with_set(
        ["model.n_ctx=8", "data.batch=4", "steps=3", "checkpoints=[]"]
    )
    members = members_of(recipe, range(16))
    whole = train_members(members, at_once=1, progress=False)
    training, stacks = execute.StackInTraining, []

    def hungry(stack, *arguments):
        stacks.append(len(stack.members))
        assert len(stacks) < 20, "the budget does not shrink"
        held = allocate(len(stack.members) << 26)
        assert len(held) > 0
        return training(stack, *arguments)

    monkeypatch.setattr(execute, "StackInTraining", hungry)
    (tmp_path / "partial-0.pt").write_bytes(b"what a stack of another size left")
    paths = [tmp_path / f"{seed}.pt" for seed in range(16)]
    gc.collect()
    with memory_limit(400 << 20):
        found = train_members(members, at_once=1, progress=False, paths=paths)
    assert stacks[0] == 16
    assert max(stacks[-2:]) <= 8  # how soon it fits depends on what the process had freed before
    said = capsys.readouterr().err.splitlines()
    assert len(said) == stacks.index(stacks[-1])
    sizes = [line.removeprefix(SMALLER).split() for line in said]
    budgets = [float(number) * {"kB": 1e3, "MB": 1e6}[unit] for number, unit in sizes]
    fleet_bytes = 16 * workload_of(recipe).bytes
    assert budgets[0] == pytest.approx(fleet_bytes / 2, rel=5e-3)  # of three digits
    assert all(after == pytest.approx(before / 2, rel=1e-2) for before, after in pairwise(budgets))
    for one, other in zip(whole, found, strict=True):
        for name, value in one.states.items():
            torch.testing.assert_close(other.states[name], value, rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
