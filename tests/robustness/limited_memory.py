"""Memory that runs out: smaller chunks, smaller stacks, the same answers, and it is said.

Run by `test_out_of_memory` in a process of its own: a limit on memory binds all that runs in a process.
"""

import contextvars
import gc

import numpy as np
import pytest
import torch
from jobs import GOLDEN
from run_files import memory_limit

from mechmarkov.probing.chunking import chunk_elements, in_smaller_chunks
from mechmarkov.probing.recording import record as recording
from mechmarkov.probing.subject import Subject
from mechmarkov.runs import Run, load
from mechmarkov.training import load_recipe
from mechmarkov.training.members import members_of
from mechmarkov.training.smaller_stacks import train_as_it_fits
from mechmarkov.utils.memory import is_out_of_memory


def allocate(n_bytes: int) -> torch.Tensor:
    """A real allocation: it fails where the process may not have so much."""
    return torch.empty(n_bytes, dtype=torch.uint8)


def test_what_torch_says_of_a_real_failure():
    with memory_limit(64 << 20), pytest.raises(RuntimeError) as error:
        allocate(1 << 30)
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def many_steps(run: Run, count: int) -> Run:
    """A run with its last weights at so many steps."""
    states = {name: value[-1:].repeat(count, *[1] * (value.ndim - 1)) for name, value in run.states.items()}
    for index in range(count):
        states["unembed.W_U"][index] *= 1 + index / count
    return Run(
        model=run.model, source=run.source, objective=run.objective, steps=torch.arange(count), states=states
    )


def test_recording_falls_back_to_smaller_chunks(monkeypatch, capsys):
    """A quarter of the first chunk fits; that, of 64 models, needs 4 GB, more than is free in any heap."""
    run = many_steps(load(GOLDEN), 64)
    whole = Subject.of(run, "all").recording
    need = allocate  # what a pass over so many models and sequences takes beside its own tensors
    forward = recording.part_of

    def hungry(stack, start, stop):
        need((stop - start) << 26)
        return forward(stack, start, stop)

    monkeypatch.setattr(recording, "part_of", hungry)
    gc.collect()
    with memory_limit(1280 << 20):
        found = contextvars.copy_context().run(lambda: Subject.of(run, "all").recording)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "out of memory, recording: again in chunks of 1/4 of the size"
    np.testing.assert_allclose(found.scores, whole.scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.attention.lag_mass, whole.attention.lag_mass, rtol=1e-6, atol=1e-7)


def test_what_follows_keeps_to_the_smaller_chunks_and_the_smallest_still_fails(capsys):
    sizes = []

    def work() -> str:
        sizes.append(chunk_elements(1 << 21))
        allocate(sizes[-1] << 13)  # 16 GB, 4 GB, 1 GB: far from the limit, whatever a heap has free
        return "done"

    def both() -> tuple[str, str]:
        with memory_limit(2 << 30):
            return in_smaller_chunks(work, "first", 1 << 21), in_smaller_chunks(work, "second", 1 << 21)

    assert contextvars.copy_context().run(both) == ("done", "done")
    assert sizes == [1 << 21, 1 << 19, 1 << 17, 1 << 17]
    said = capsys.readouterr().err
    assert "first" in said
    assert "second" not in said

    def never() -> None:
        with memory_limit(64 << 20):
            in_smaller_chunks(lambda: allocate(1 << 30), "third", 1 << 21)

    with pytest.raises(RuntimeError, match="memory"):
        contextvars.copy_context().run(never)


def test_another_error_is_no_reason_to_try_again():
    tries = []

    def broken() -> None:
        tries.append(1)
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        in_smaller_chunks(broken, "it", 1 << 21)
    assert tries == [1]


def test_a_fleet_is_halved_until_it_fits(monkeypatch, capsys, tmp_path):
    """Sixteen members at once do not fit, fewer do; each is the member that is trained alone."""
    from mechmarkov.training import fleet

    recipe = load_recipe("binary-p05-q08-tied").with_set(
        ["model.n_ctx=8", "data.batch=4", "steps=3", "checkpoints=[]"]
    )
    members = members_of(recipe, range(16))
    whole = train_as_it_fits(members, at_once=1, progress=False)
    fit, stacks = fleet.fit, []

    def hungry(chosen, *arguments, **options):
        stacks.append(len(chosen))
        held = allocate(len(chosen) << 26)
        assert len(held) > 0
        return fit(chosen, *arguments, **options)

    monkeypatch.setattr(fleet, "fit", hungry)
    (tmp_path / "partial-0.pt").write_bytes(b"what a stack of another size left")
    paths = [tmp_path / f"{seed}.pt" for seed in range(16)]
    gc.collect()
    with memory_limit(400 << 20):
        found = train_as_it_fits(members, at_once=1, progress=False, paths=paths)
    assert stacks[0] == 16
    assert max(stacks[-2:]) <= 8  # how soon it fits depends on what the process had freed before
    said = capsys.readouterr().err.splitlines()
    assert len(said) == stacks.index(stacks[-1])
    assert all(line.startswith("out of memory: again in stacks of at most ") for line in said)
    for one, other in zip(whole, found, strict=True):
        for name, value in one.states.items():
            torch.testing.assert_close(other.states[name], value, rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
