"""The plan of a training: recipes, seeds, device, memory and files, resolved once; execution only reads it.

A fleet is cut into stacks: members of one shape, trained as one model with a leading axis. On the CPU several
stacks train at once, each in a copy of this process that computes with one thread. None waits for another,
so that a busy machine slows a fleet down only by what it takes from it. Where processes cannot be copied
these are threads, which wait for Python's lock: 1.2 to 1.4 times the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from mechmarkov.runs.run import Run
from mechmarkov.training import resume
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.split import budget_of, split_fleet
from mechmarkov.training.workload import Member, Workload, workload_of
from mechmarkov.utils.device import pick_device
from mechmarkov.utils.errors import integer_of, list_of, number_of
from mechmarkov.utils.forked import can_fork
from mechmarkov.utils.memory import bytes_of
from mechmarkov.utils.text import shown
from mechmarkov.utils.threads import cores

MAX_SEED = 1 << 63
# Tokens a step of a stack on a CPU. With fewer than the least an operation takes as long to launch as to
# compute, and threads launch theirs one after the other. With more than the most a stack gains nothing.
LEAST_TOKENS_IN_PROCESSES, LEAST_TOKENS_IN_THREADS = 1 << 11, 1 << 13
MOST_TOKENS = 1 << 17


@dataclass(frozen=True, eq=False)
class Stack:
    """Models of one shape that train as one model, with a leading axis.

    Attributes:
        places: The places of its members in the fleet.
        members: Its members.
        workload: The workload of the first; shape, steps and checkpoints are the same for all.
        paths: Where each run is saved; empty for nowhere.
        partial: What an interrupted training resumes from.
    """

    places: tuple[int, ...]
    members: tuple[Member, ...]
    workload: Workload
    paths: tuple[Path, ...] = ()
    partial: Path | None = None


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """All that decides a training: what is trained, in which stacks, where, and into which files.

    Attributes:
        members: What is trained, in the order of the results.
        paths: The file of each, or none.
        earlier: Runs of an earlier call that are in these files, by the member's place.
        start: A run that every member starts from.
        save_every: Seconds between writes of what is needed to resume.
        device: Where stacks train.
        bytes: What each member takes, by estimate.
        memory: Bytes that all stacks that train at once may take together.
        at_once: How many stacks train at the same time.
        copied: Whether stacks train in copies of this process; else in threads.
        stacks: The stacks; none where every run is there already.
    """

    members: tuple[Member, ...]
    paths: tuple[Path, ...] = ()
    earlier: Mapping[int, Run] = field(default_factory=dict)
    start: Run | None = None
    save_every: float = 10.0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    bytes: tuple[int, ...] = ()
    memory: int = 0
    at_once: int = 1
    copied: bool = False
    stacks: tuple[Stack, ...] = ()

    def halved(self) -> "TrainingPlan | None":
        """Returns a plan of the same training for half the memory; None where a single model is larger.

        What the stacks of either plan left to be resumed is deleted: theirs are of another size.
        """
        half = min(self.memory, sum(self.bytes)) // 2  # half of more than the whole fleet would fail again
        if half < max(self.bytes):
            return None
        smaller = plan_training(
            self.members,
            device=self.device.type,
            start=self.start,
            paths=self.paths or None,
            save_every=self.save_every,
            memory=half,
            at_once=self.at_once,
        )
        for stack in self.stacks + smaller.stacks:
            if stack.partial is not None:
                stack.partial.unlink(missing_ok=True)
        return smaller


def plan_training(
    members: Sequence[Member],
    *,
    device: str = "auto",
    start: Run | None = None,
    paths: Sequence[Path] | None = None,
    save_every: float = 10.0,
    memory: int | str | None = None,
    at_once: int | None = None,
) -> TrainingPlan:
    """Resolve what to train, where, and in which stacks; nothing is written.

    Args:
        members: What to train: a recipe and a seed each.
        device: `auto` (CUDA where there is any), `cpu` or `cuda`.
        start: A run whose last weights every member starts from; not with `paths`.
        paths: A file for each member, in folders that exist. Runs that are there already are read.
        save_every: Seconds between writes of what is needed to resume.
        memory: Bytes that all stacks that train at once may take together, or a text such as "2GB".
        at_once: Stacks that train at once on a CPU; by default as many as this process may use cores.

    Raises:
        TypeError, ValueError, RunFileError: What `train_members` refuses.

    Example:
        >>> from mechmarkov.training.recipe import load_recipe
        >>> short = load_recipe("walk-k6-half").with_set(["model.n_ctx=5", "data={batch=4}"])
        >>> long = short.with_set(["model.n_ctx=9"])
        >>> members = [Member(short, 0), Member(long, 0), Member(short, 1)]
        >>> plan = plan_training(members, device="cpu")
        >>> [stack.places for stack in plan.stacks]  # of one shape each
        [(0, 2), (1,)]
    """
    members = tuple(list_of("members", members, "a list of mm.training.Member(recipe, seed)"))
    _check_members(members)
    number_of("save_every", save_every, "seconds, at least 0", least=0, most=float("inf"))
    if paths is not None and [isinstance(path, Path) for path in paths] != [True] * len(members):
        raise TypeError(f"paths is {shown(paths)}, expected a pathlib.Path for each member")
    if at_once is not None:
        integer_of("at_once", at_once, least=1)
    if start is not None and not isinstance(start, Run):
        raise TypeError(f"start is {shown(start)}, expected a Run: mm.load(path) reads one from a file")
    if start is not None and paths is not None:
        raise ValueError(
            "start is given and files are asked for, expected one of them: files do not say where a training "
            "began"
        )
    files = tuple(paths or ())
    earlier = resume.earlier_runs(files, members)
    if len(earlier) == len(members):
        return TrainingPlan(members, files, earlier)
    different = {id(member.recipe): member.recipe for member in members}  # mostly one, shared by all
    workloads = {key: workload_of(recipe) for key, recipe in different.items()}
    if start is not None:
        for workload in workloads.values():
            _check_start(start, workload)
    works = [workloads[id(member.recipe)] for member in members]
    place = pick_device(device)
    on_cpu, largest = place.type == "cpu", max(work.bytes for work in works)
    budget = budget_of(place, largest) if memory is None else bytes_of("memory", memory)
    at_once = min(len(members), at_once or cores(), max(1, budget // largest)) if on_cpu else 1
    # A compiled step hangs in a copy of a process that has compiled.
    copied = on_cpu and can_fork() and not any(recipe.compile for recipe in different.values())
    least = LEAST_TOKENS_IN_PROCESSES if copied else LEAST_TOKENS_IN_THREADS
    split = split_fleet(works, budget, at_once=at_once, least=least, most=MOST_TOKENS if on_cpu else None)
    stacks = tuple(
        Stack(
            tuple(places),
            tuple(members[i] for i in places),
            works[places[0]],
            tuple(files[i] for i in places) if files else (),
            resume.partial_path(files[places[0]].parent, number, len(split)) if files else None,
        )
        for number, places in enumerate(split)
    )
    sizes = tuple(work.bytes for work in works)
    return TrainingPlan(
        members, files, earlier, start, save_every, place, sizes, budget, at_once, copied, stacks
    )


def _check_members(members: Sequence[Member]) -> None:
    for member in members:
        if not isinstance(member, Member) or not isinstance(member.recipe, Recipe):
            raise TypeError(f"members has {shown(member)}, expected mm.training.Member(recipe, seed)")
    seeds = [member.seed for member in members]
    good = all(type(seed) is int and 0 <= seed < MAX_SEED for seed in seeds)
    if not seeds or not good or len({(id(each.recipe), each.seed) for each in members}) < len(members):
        if len(seeds) == 1:
            raise ValueError(f"seed is {shown(seeds[0])}, expected an integer from 0 to 2^63 - 1")
        some = f"{seeds[:20]}"[:-1] + (", …]" if len(seeds) > 20 else "]")
        raise ValueError(f"seeds are {some}, expected different integers from 0 to 2^63 - 1")


def _check_start(start: Run, workload: Workload) -> None:
    theirs = start.config.model_dump()
    for name, value in workload.config.model_dump().items():
        if theirs[name] != value and name != "initializer_range":
            raise ValueError(
                f"start has model.{name} {theirs[name]!r}, expected {value!r} as in recipe "
                f"{workload.recipe.name!r}"
            )
