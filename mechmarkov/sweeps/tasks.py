"""Tasks: the members of a sweep grouped into fleets, trained and evaluated wherever an engine runs."""

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from mechmarkov.runs.loading import load
from mechmarkov.runs.run import Run
from mechmarkov.runs.training_curve import training_curve
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sweeps.evaluate import Evaluation, evaluate
from mechmarkov.training.execute import Diverged
from mechmarkov.training.split import budget_of
from mechmarkov.training.train import train_members
from mechmarkov.training.workload import Member, fleet_key
from mechmarkov.utils.device import pick_device
from mechmarkov.utils.forked import can_fork, forked
from mechmarkov.utils.threads import cores, threads

ROW_VERSION = 1  # of the fields of a row and their meaning; another version is another key
Row = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """A member and the scores that are wanted of it.

    Attributes:
        key: The key that its row is kept under.
        member: Recipe and seed.
        probes: The probes whose scores are wanted; `behaviour` always is.
        run: Its `run.pt`, where an earlier call kept it and only scores are missing; its bytes on another
            machine.
    """

    key: str
    member: Member
    probes: tuple[str, ...] = ()
    run: Path | bytes | None = None


@dataclass(frozen=True)
class Task:
    """Members that train as one stack."""

    index: int
    items: tuple[Item, ...]

    @property
    def name(self) -> str:
        """The same for the same members."""
        return hashlib.sha256(" ".join(item.key for item in self.items).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Settings:
    """The settings by which tasks are carried out.

    Attributes:
        device: `auto`, `cpu` or `cuda`.
        steps: Which checkpoints the probes see.
        keep_runs: Whether `run.pt` files come back too.
        cores: Stacks that train at once on a processor; None for as many as this process may use.
        memory: Bytes for all of these; None for what `train_members` takes.
        gpu_share: A share of a GPU, where several tasks share one.
        scratch: A folder for the snapshots that an interrupted task resumes from, None for none.
    """

    device: str = "auto"
    steps: Literal["last", "all"] = "last"
    keep_runs: bool = False
    cores: int | None = None
    memory: int | None = None
    gpu_share: float = 1.0
    scratch: Path | None = None


@dataclass(frozen=True)
class Done:
    """Results of a task: a row for each member, in order, and the `run.pt` of those to be kept, by key."""

    rows: tuple[Row, ...]
    runs: dict[str, bytes]


def member_key(member: Member) -> str:
    """A hash of the recipe's data, the seed and the version of rows: the same member has it everywhere.

    Example:
        >>> from mechmarkov.training import load_recipe
        >>> recipe = load_recipe("walk-k6-half")
        >>> member_key(Member(recipe, 0)) == member_key(Member(recipe, 1))
        False
    """
    data = {"version": ROW_VERSION, "recipe": member.recipe.to_data(), "seed": member.seed}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]


def fleets(items: Iterable[Item], most: int) -> list[Task]:
    """Items that may share a stack together, at most `most` in a task; the order of first sight is kept.

    Example:
        >>> from mechmarkov.training import load_recipe
        >>> items = [Item(str(seed), Member(load_recipe("walk-k6-half"), seed)) for seed in range(3)]
        >>> [len(task.items) for task in fleets(items, most=2)]
        [2, 1]
    """
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault((fleet_key(item.member.recipe), item.run is None), []).append(item)
    parts = [tuple(group[i : i + most]) for group in groups.values() for i in range(0, len(group), most)]
    return [Task(index, part) for index, part in enumerate(parts)]


def with_runs(task: Task) -> Task:
    """The same task for another machine: kept runs are read, so that it holds their bytes and no paths."""
    items = (
        replace(item, run=item.run.read_bytes()) if isinstance(item.run, Path) else item
        for item in task.items
    )
    return replace(task, items=tuple(items))


def carry_out(task: Task, settings: Settings, progress: Callable[[int, int], None] | None = None) -> Done:
    """Train a task's members as one stack and evaluate them.

    Args:
        task: The task.
        settings: How.
        progress: Called after every training step with its number and the number of steps.

    Returns:
        Rows as plain JSON data; `seconds` is a member's share of the task's wall time.
    """
    began = time.perf_counter()
    device = pick_device(settings.device).type
    kept_runs = [_kept(item) for item in task.items if item.run is not None]  # of all members, or of none
    trained = kept_runs or _train(task, settings, device, progress)
    rows = _rows(task, trained, settings, device)
    share = (time.perf_counter() - began) / len(task.items)
    files = {
        item.key: run.to_bytes()
        for item, run in zip(task.items, trained, strict=True)
        if settings.keep_runs and item.run is None and isinstance(run, Run)
    }
    return Done(tuple({**row, "seconds": share} for row in rows), files)


def _train(
    task: Task, settings: Settings, device: str, progress: Callable[[int, int], None] | None
) -> list[Run | Diverged]:
    paths = None
    if settings.scratch is not None:
        folder = settings.scratch / task.name
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{item.key}.pt" for item in task.items]
    memory = settings.memory
    if device == "cuda" and settings.gpu_share < 1:
        memory = budget_of(pick_device(device), 0, settings.gpu_share)
    members, at_once = [item.member for item in task.items], settings.cores
    return train_members(
        members, device=device, paths=paths, progress=progress or False, at_once=at_once, memory=memory
    )


def _rows(task: Task, trained: Sequence[Run | Diverged], settings: Settings, device: str) -> list[Row]:
    rows: dict[str, Row] = {}
    healthy: list[tuple[Item, Run]] = []
    for item, run in zip(task.items, trained, strict=True):
        if isinstance(run, Diverged):
            ended = {"status": "diverged", "message": run.message, "step": run.recipe.steps}
            rows[item.key] = _row(item, settings, **ended)
        else:
            healthy.append((item, run))
    groups = groupby(healthy, key=lambda pair: (pair[1].recipe, pair[0].probes))
    points = [list(pairs) for _, pairs in groups]

    def evaluations_of(number: int) -> list[Evaluation]:
        runs = [run for _, run in points[number]]
        return evaluate(runs, points[number][0][0].probes, steps=settings.steps, device=device)

    jobs = min(settings.cores or cores(), 8)
    with threads(1):
        copied = device == "cpu" and can_fork()
        numbers = range(len(points))
        evaluated = dict(forked(evaluations_of, numbers, jobs, copied=copied, advice="use fewer processes"))
    for number, point in enumerate(points):
        for (item, run), evaluation in zip(point, evaluated[number], strict=True):
            rows[item.key] = _row(
                item,
                settings,
                status="ok",
                step=int(run.steps[-1]),
                metrics=_final(run),
                curve=training_curve(run.metrics),
                provenance=run.provenance,
                **asdict(evaluation),
            )
    return [rows[item.key] for item in task.items]


def _row(item: Item, settings: Settings, **fields: Any) -> Row:
    empty: Row = {"message": None, "metrics": {}, "scores": {}, "skipped": {}, "failed": {}, "stuck": None}
    return {"key": item.key, "probes": list(item.probes), "steps": settings.steps, **empty, **fields}


def _final(run: Run) -> dict[str, float]:
    """The last value of every metric that is a number."""
    values = {name: series["value"] for name, series in run.metrics.items()}
    return {name: float(value[-1]) for name, value in values.items() if len(value) and value[-1].ndim == 0}


def _kept(item: Item) -> Run:
    assert item.run is not None
    if isinstance(item.run, Path):
        return load(item.run)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{item.key}.pt"
        path.write_bytes(item.run)
        try:
            return load(path)
        except RunFileError as error:  # that folder is nobody's: the file is this one of the sweep's
            raise RunFileError(str(error).replace(folder, "runs")) from error
