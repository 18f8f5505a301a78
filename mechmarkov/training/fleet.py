"""Fleets: many members, trained as stacks that fit a budget and kept as they go.

On the CPU several stacks train at once, each in a copy of this process that computes with one thread. None
waits for another, so that a busy machine slows a fleet down only by what it takes from it. Where processes
cannot be copied these are threads, which wait for Python's lock: 1.2 to 1.4 times the time.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mechmarkov.runs.loading import load
from mechmarkov.runs.owner import owned
from mechmarkov.runs.provenance import provenance
from mechmarkov.runs.run import Run
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.training import resume as partials
from mechmarkov.training.members import Member, check_members
from mechmarkov.training.memory import sizes_of, split
from mechmarkov.training.recipe import Recipe, RecipeError
from mechmarkov.training.trainer import Fitted, Snapshot, fit
from mechmarkov.utils.device import pick_device
from mechmarkov.utils.errors import integer_of, list_of, number_of
from mechmarkov.utils.forked import can_fork, forked
from mechmarkov.utils.memory import freed_memory_kept, with_less_memory
from mechmarkov.utils.progress import watched
from mechmarkov.utils.text import shown
from mechmarkov.utils.threads import cores, threads

MEMORY = 2_000_000_000  # bytes, for all stacks at once; on a GPU a share of what is free
SHARE_OF_GPU = 0.7
START_WITH_FILES = (
    "start is given and files are asked for, expected one of them: files do not say where a training began"
)
ADVICE = "memory=... takes how many bytes may be used"
# Tokens a step of a stack on a CPU. With fewer than the least an operation takes as long to launch as to
# compute, and threads launch theirs one after the other. With more than the most a stack gains nothing.
LEAST_TOKENS_IN_PROCESSES, LEAST_TOKENS_IN_THREADS = 1 << 11, 1 << 13
MOST_TOKENS = 1 << 17

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


class _StoppedError(Exception):
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
        device: The device, as in `train`.
        start: The one of `train`, not with `paths`: what resumes a training does not say where it began.
        paths: A file for each member, in folders that exist. A member is saved there when its stack is done;
            until then what is needed to resume is next to its stack's first path, and the same call after
            an interruption goes on from there, to the same bits. A stack whose files are all there is read.
        progress: The progress bar, as in `train`; steps are counted over all stacks.
        save_every: The number of steps, as in `train`.
        memory: Bytes that all stacks that train at once may take together, by estimate (`member_bytes`). By
            default 2 GB, or one model where that is more; on a GPU 70 % of what is free. A larger fleet is
            split.
        at_once: Stacks that train at once on a CPU; by default as many as this process may use cores.

    Returns:
        For each member its run, or `Diverged`.

    Raises:
        RunFileError: Files that cannot be read or written, what another training left, or a folder that
            another one is using.
        ValueError: Members or a device that make no sense, a `start` of another shape, or a budget too small
            for one model.
        TypeError: An argument of the wrong kind.
    """
    members = list_of("members", members, "a list of mm.Member(recipe, seed)")
    check_members(members)
    _check_how(members, paths, memory, at_once)
    if start is not None:
        _check_start(start, members, paths)
    place = pick_device(device)
    largest = max(sizes_of(members))
    budget = budget_of(place, largest) if memory is None else memory
    at_once = min(len(members), at_once or cores(), max(1, budget // largest)) if place.type == "cpu" else 1
    # A compiled step hangs in a copy of a process that has compiled.
    copied = place.type == "cpu" and can_fork() and not any(member.recipe.compile for member in members)
    least = LEAST_TOKENS_IN_PROCESSES if copied else LEAST_TOKENS_IN_THREADS
    most = MOST_TOKENS if place.type == "cpu" else None
    stacks = split(members, budget=budget, at_once=at_once, least=least, most=most)
    results: dict[int, Run | Diverged] = {}
    total = sum(members[stack[0]].recipe.steps for stack in stacks)
    shown = watched() if progress is None else progress is True
    name = members[0].recipe.name
    with tqdm(total=total, desc=name, delay=2.0, disable=not shown) as bar:
        alone = min(len(stacks), at_once) == 1
        told = _Told(progress if callable(progress) else None, bar, total, len(stacks), alone)

        def train_stack(number: int) -> list[Run | Diverged]:
            chosen = [members[i] for i in stacks[number]]
            files, partial = None, None
            if paths is not None:
                files = [paths[i] for i in stacks[number]]
                partial = files[0].parent / (f"partial-{number}.pt" if len(stacks) > 1 else partials.NAME)
            return _train_stack(
                chosen, place, start, files, partial, lambda step: told.step(number, step), save_every
            )

        with ExitStack() as held, threads(1 if place.type == "cpu" else torch.get_num_threads()):
            for folder in sorted({path.parent for path in paths or ()}):
                held.enter_context(owned(folder, RunFileError))
            trained = forked(
                train_stack,
                range(len(stacks)),
                at_once,
                copied=copied,
                advice=ADVICE,
                meanwhile=told.tell,
                stop=told.stop,
            )
            for number, runs in trained:
                results.update(zip(stacks[number], runs, strict=True))
    return [results[i] for i in range(len(members))]


def train_as_it_fits(
    members: Sequence[Member], *, paths: Sequence[Path] | None = None, memory: int | None = None, **how: Any
) -> list[Run | Diverged]:
    """`train_members`; each time that memory runs out, again in stacks of half the size.

    What the interrupted stacks left to be resumed is of their size, and is deleted.

    Raises:
        MemoryError, RuntimeError: If memory is out for a single model too.
        RunFileError, ValueError: As `train_members`.
    """
    members = list_of("members", members, "a list of mm.Member(recipe, seed)")
    check_members(members)
    _check_how(members, paths, memory, None)
    sizes = sizes_of(members)
    budget = memory or budget_of(pick_device(how.get("device", "auto")), max(sizes, default=0))
    first = min(budget, sum(sizes))  # half of more than the whole fleet takes would fail again

    def train(budget: int) -> list[Run | Diverged]:
        if budget == first:
            return train_members(members, paths=paths, memory=memory, **how)
        for folder in {path.parent for path in paths or ()}:
            for partial in folder.glob("partial*.pt"):
                partial.unlink(missing_ok=True)
        return train_members(members, paths=paths, memory=budget, **how)

    return with_less_memory(
        train,
        first,
        divisor=2,
        smallest=max(sizes, default=0),
        message=lambda budget: f": again in stacks of at most {budget / 1e6:.0f} MB",
    )


def _check_how(
    members: Sequence[Member], paths: Sequence[Path] | None, memory: int | None, at_once: int | None
) -> None:
    if paths is not None and [isinstance(path, Path) for path in paths] != [True] * len(members):
        raise TypeError(f"paths is {shown(paths)}, expected a pathlib.Path for each member")
    if memory is not None:
        number_of("memory", memory, "bytes", least=float("-inf"), most=float("inf"))
    if at_once is not None:
        integer_of("at_once", at_once, least=1)


def _check_start(start: Run, members: Sequence[Member], paths: Sequence[Path] | None) -> None:
    if not isinstance(start, Run):
        raise TypeError(f"start is {shown(start)}, expected a Run: mm.load(path) reads one from a file")
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


class _Told:
    """Counts the steps of every stack, tells whoever wants to know, and stops all once one has failed."""

    def __init__(
        self, callback: Callable[[int, int], None] | None, bar: tqdm, total: int, stacks: int, alone: bool
    ) -> None:
        self._callback, self._bar, self._total, self._told, self._alone = callback, bar, total, 0, alone
        # The steps of each stack, and last whether to stop. Processes share it.
        self._steps: Any = [0] * (stacks + 1) if alone else RawArray("q", stacks + 1)

    def step(self, stack: int, step: int) -> None:
        """A stack has taken `steps` steps."""
        if self._steps[-1]:
            raise _StoppedError
        self._steps[stack] = step
        if self._alone:
            self.tell()

    def tell(self) -> None:
        """Say how many steps are done."""
        before, self._told = self._told, sum(self._steps[:-1])
        self._bar.update(self._told - before)
        if self._callback is not None and self._told > before:
            self._callback(self._told, self._total)

    def stop(self) -> None:
        """Let every stack end at its next step."""
        self._steps[-1] = 1


def _train_stack(
    members: Sequence[Member],
    place: torch.device,
    start: Run | None,
    paths: Sequence[Path] | None,
    partial: Path | None,
    tell: Callable[[int], None],
    save_every: int | float,
) -> list[Run | Diverged]:
    steps = members[0].recipe.steps
    if paths is not None and partial is not None and not partial.exists():
        # Its stack ended before another one was interrupted.
        kept = finished(paths, members)
        if kept is not None:
            tell(steps)
            return list(kept)
    resume_from = None if partial is None else partials.read(partial, members, place)
    written = time.monotonic()

    def on_step(step: int, snapshot: Snapshot) -> None:
        nonlocal written
        if partial is not None and step < steps and time.monotonic() - written >= save_every:
            partials.write(partial, members, place, snapshot())
            written = time.monotonic()
        tell(step)

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


def finished(paths: Sequence[Path], members: Sequence[Member]) -> list[Run] | None:
    """The results of an earlier call, or None if there are not all of them.

    Raises:
        RunFileError: For one that cannot be read, or is of another recipe or seed than its member.
    """
    runs = []
    for path, member in zip(paths, members, strict=True):
        if not path.exists():
            continue
        run = load(path)
        try:  # a recipe that was written before a setting existed has its default
            theirs = None if run.recipe is None else Recipe.from_data(run.recipe).to_data()
        except RecipeError as error:
            raise RunFileError(
                f"{path} has a recipe that cannot be read ({error}): delete it or choose another folder"
            ) from None
        same = theirs == member.recipe.to_data()
        if not same or run.seed != member.seed:
            what = f"seed ({run.seed})" if same else "recipe"
            raise RunFileError(f"{path} is of another {what}: delete it or choose another folder")
        runs.append(run)
    return runs if len(runs) == len(paths) else None


def _run(fitted: Fitted, index: int, start: Run | None) -> Run:
    recipe = fitted.members[index].recipe
    states, metrics = fitted.member(index)
    return Run(
        model=recipe.decoder_config,
        source=recipe.source,
        objective=recipe.objective,
        trainable=recipe.trainable_slices,
        recipe=recipe.to_keep(),
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
