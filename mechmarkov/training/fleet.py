"""Fleets: many members, trained as stacks that fit a budget and kept as they go.

On the CPU several stacks train at once, each in a thread of its own that computes with one thread: no two
threads ever wait for each other, so that a busy machine slows a fleet down only by what it takes from it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from mechmarkov.runs.provenance import provenance
from mechmarkov.runs.run import Run
from mechmarkov.training import resume as partials
from mechmarkov.training.members import Member, check_members
from mechmarkov.training.memory import member_bytes, split
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.trainer import Fitted, Snapshot, fit
from mechmarkov.utils.device import pick_device
from mechmarkov.utils.memory import freed_memory_kept
from mechmarkov.utils.progress import watched
from mechmarkov.utils.threads import cores, threads

MEMORY = 2_000_000_000  # bytes, for all stacks at once; on a GPU a share of what is free
SHARE_OF_GPU = 0.7
START_WITH_FILES = (
    "start is given and files are asked for, expected one of them: files do not say where a training began"
)
MAX_TOKENS_PER_STEP = 1 << 17  # larger stacks gain nothing on a CPU

Progress = bool | Callable[[int, int], None] | None


@dataclass(frozen=True)
class Diverged:
    """A member whose weights or metrics are no longer finite; it has no run."""

    recipe: Recipe
    seed: int

    @property
    def message(self) -> str:
        """One line."""
        return f"weights of seed {self.seed} are not finite after {self.recipe.steps} steps"


class _CancelledError(Exception):
    """Another stack failed."""


@freed_memory_kept()
def train_members(
    members: Sequence[Member],
    *,
    device: str = "auto",
    start: Run | None = None,
    paths: Sequence[Path] | None = None,
    progress: Progress = None,
    save_every: int | float = 10.0,
    memory: int | None = None,
    at_once: int | None = None,
) -> list[Run | Diverged]:
    """Train a fleet; recipes of one shape share stacks.

    Args:
        members: What to train.
        device: As in `train`.
        start: As in `train`. Not with `paths`: what resumes a training does not say where it began.
        paths: A file for each member, in folders that exist. A member is saved there when its stack is done;
            until then what is needed to resume is kept beside its stack's first path, and the same call after
            an interruption goes on from there, to the same bits.
        progress: As in `train`; steps are counted over all stacks.
        save_every: As in `train`.
        memory: Bytes that all stacks that train at once may take together, by estimate (`member_bytes`). By
            default 2 GB, or one model where that is more; on a GPU 70 % of what is free. A larger fleet is
            split.
        at_once: Stacks that train at once on a CPU; by default as many as this process may use cores.

    Returns:
        For each member its run, or `Diverged`.

    Raises:
        RunFileError: Files that cannot be read or written, or what another training left.
        ValueError: Members or a device that make no sense, a `start` of another shape, or a budget too small
            for one model.
    """
    check_members(members)
    if start is not None:
        _check_start(start, members, paths)
    place = pick_device(device)
    largest = max(member_bytes(member.recipe) for member in members)
    budget = budget_of(place, largest) if memory is None else memory
    at_once = min(len(members), at_once or cores(), max(1, budget // largest)) if place.type == "cpu" else 1
    most = MAX_TOKENS_PER_STEP if place.type == "cpu" else None
    stacks = split(members, budget=budget, at_once=at_once, most=most)
    results: dict[int, Run | Diverged] = {}
    total = sum(members[stack[0]].recipe.steps for stack in stacks)
    shown = watched() if progress is None else progress is True
    name = members[0].recipe.name
    with tqdm(total=total, desc=name, delay=2.0, disable=not shown) as bar:
        tell = _Tell(progress if callable(progress) else None, bar, total)

        def train_stack(number: int) -> None:
            stack = stacks[number]
            chosen = [members[i] for i in stack]
            files, partial = None, None
            if paths is not None:
                files = [paths[i] for i in stack]
                partial = files[0].parent / (f"partial-{number}.pt" if len(stacks) > 1 else partials.NAME)
            found = _train_stack(chosen, place, start, files, partial, tell, save_every)
            results.update(zip(stack, found, strict=True))

        with threads(1 if place.type == "cpu" else torch.get_num_threads()):
            _run_all(train_stack, len(stacks), at_once, tell)
    return [results[i] for i in range(len(members))]


def _check_start(start: Run, members: Sequence[Member], paths: Sequence[Path] | None) -> None:
    if paths is not None:
        raise ValueError(START_WITH_FILES)
    theirs = start.model.model_dump()
    for member in members:
        for name, value in member.recipe.decoder_config.model_dump().items():
            if theirs[name] != value and name != "initializer_range":
                raise ValueError(
                    f"start has model.{name} {theirs[name]!r}, expected {value!r} as in recipe "
                    f"{member.recipe.name!r}"
                )


def budget_of(place: torch.device, largest: int, share: float = 1.0) -> int:
    """Bytes that training may take where nobody gives a limit; on the CPU at least those of one model.

    `share` is the part of a GPU that is this process's, where several train on it.
    """
    if place.type == "cpu":
        return max(MEMORY, largest)
    free, total = torch.cuda.mem_get_info(place)
    # What torch keeps of freed tensors is taken in the eyes of the driver, and free to us.
    kept = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
    return int(min(free + kept, total * share) * SHARE_OF_GPU)


class _Tell:
    """Counts steps over stacks, tells whoever wants to know, and stops all stacks once one has failed."""

    def __init__(self, callback: Callable[[int, int], None] | None, bar: tqdm, total: int) -> None:
        self._callback, self._bar, self._total = callback, bar, total
        self._done, self._lock = 0, threading.Lock()
        self.failed = threading.Event()

    def steps(self, count: int, *, aloud: bool = True) -> None:
        if self.failed.is_set():
            raise _CancelledError
        with self._lock:
            self._done += count
            self._bar.update(count)
            if aloud and self._callback is not None:
                self._callback(self._done, self._total)


def _run_all(work: Callable[[int], None], count: int, at_once: int, tell: _Tell) -> None:
    if count == 1 or at_once == 1:
        for number in range(count):
            work(number)
        return

    def guarded(number: int) -> None:
        if tell.failed.is_set():
            return
        try:
            torch.set_num_threads(1)  # each thread has a number of its own
            work(number)
        except BaseException:
            tell.failed.set()
            raise

    with ThreadPoolExecutor(at_once, thread_name_prefix="stack") as pool:
        futures = [pool.submit(guarded, number) for number in range(count)]
        try:
            errors = [future.exception() for future in futures]
        except BaseException:  # an interrupt reaches this thread, not those
            tell.failed.set()
            raise
    # That of the stack which failed, before those that it stopped.
    for error in sorted(filter(None, errors), key=lambda error: isinstance(error, _CancelledError)):
        raise error


def _train_stack(
    members: Sequence[Member],
    place: torch.device,
    start: Run | None,
    paths: Sequence[Path] | None,
    partial: Path | None,
    tell: _Tell,
    save_every: int | float,
) -> list[Run | Diverged]:
    steps = members[0].recipe.steps
    resume_from = None if partial is None else partials.read(partial, members, place)
    if resume_from is not None:
        tell.steps(resume_from["step"], aloud=False)
    written = time.monotonic()

    def on_step(step: int, snapshot: Snapshot) -> None:
        nonlocal written
        if partial is not None and step < steps and time.monotonic() - written >= save_every:
            partials.write(partial, members, place, snapshot())
            written = time.monotonic()
        tell.steps(1)

    weights = None if start is None else {name: values[-1] for name, values in start.states.items()}
    fitted = fit(members, place.type, start=weights, resume_from=resume_from, on_step=on_step)
    results: list[Run | Diverged] = []
    for index, member in enumerate(members):
        if fitted.diverged(index):
            results.append(Diverged(member.recipe, member.seed))
            continue
        run = _run(fitted, index, start)
        if paths is not None:
            run.save(paths[index])
        results.append(run)
    if partial is not None:
        partial.unlink(missing_ok=True)
    return results


def _run(fitted: Fitted, index: int, start: Run | None) -> Run:
    recipe = fitted.members[index].recipe
    states, metrics = fitted.member(index)
    return Run(
        model=recipe.decoder_config,
        source=recipe.source,
        objective=recipe.objective,
        trainable=recipe.trainable_slices,
        recipe=recipe.to_data(),
        seed=fitted.members[index].seed,
        steps=torch.tensor(sorted(fitted.checkpoints)),
        states={name: tensor.to(torch.float32) for name, tensor in states.items()},
        metrics={name: {"step": torch.arange(len(v)), "value": v} for name, v in metrics.items()},
        provenance={
            **provenance(fitted.device, wall_seconds=fitted.seconds),
            "trained_together": len(fitted.members),
            **({} if start is None else {"started_from": start.title()}),
        },
    )
