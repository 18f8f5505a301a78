"""`sweep`: train the members without a row, keep every row as it comes, then the table and the picture."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa

from mechmarkov.catalogue.probes import registered
from mechmarkov.runs.owner import owned
from mechmarkov.sweeps import curve, page
from mechmarkov.sweeps import phase as diagram
from mechmarkov.sweeps import table as tables
from mechmarkov.sweeps.board import Board
from mechmarkov.sweeps.engines import Cluster, Outcome, in_processes, on_ray
from mechmarkov.sweeps.spec import Phase, Point, Sweep, SweepError, load_sweep, points, seeds_of, varied
from mechmarkov.sweeps.store import Store
from mechmarkov.sweeps.tasks import Done, Settings, Task, carry_out, fleets, member_key
from mechmarkov.training.split import MEMORY
from mechmarkov.training.workload import Member
from mechmarkov.utils.device import pick_device
from mechmarkov.utils.errors import integer_of, path_of
from mechmarkov.utils.files import check_writable, made_folder
from mechmarkov.utils.text import counted, near_misses, printable, shown

FLEET = 64  # members a task by default: more on a processor gain nothing, and are lost together


@dataclass(frozen=True, eq=False, repr=False)
class Swept:
    """The results of a sweep.

    Attributes:
        sweep: What was run.
        folder: Where rows, table and picture are.
        table: One row a member (`mechmarkov.sweeps.table.table`).
        phase: The phase diagram, or a score over the field where one is varied; None where there is neither.
        trained: How many members this call trained; the others were there.
    """

    sweep: Sweep
    folder: Path
    table: pa.Table
    phase: go.Figure | None
    trained: int

    def __repr__(self) -> str:
        """The first line of its summary, and what to do with the results."""
        then = "swept.table is a pyarrow table, swept.phase a figure, swept.summary() all lines"
        return f"Swept({self.summary()[0]})\n  {then}"

    def summary(self) -> list[str]:
        """The result for people, a line each; the last is the path of the picture, or of the table."""
        status, n_points = self.table["status"].to_pylist(), len(points(self.sweep))
        diverged, before = status.count("diverged"), len(status) - self.trained
        n_seeds = len(seeds_of(self.sweep))
        lines = [
            f"{self.sweep.name}: {counted(len(status), 'run')}, "
            f"{counted(n_points, 'point')} of {counted(n_seeds, 'seed')}"
            + (f", {before} were there already" if before else "")
            + (f", {diverged} diverged" if diverged else "")
        ]
        stuck = diagram.share(self.table["stuck"].to_pylist())
        if stuck.n:
            lines.append(
                f"stuck below half of the gain over the unigram: {stuck.hits} of {stuck.n} "
                f"({stuck.low:.3f} to {stuck.high:.3f}, Wilson's 95 % interval)"
            )
        why = diagram.undecided(self.table, "stuck")
        for reason, n in Counter(w for w, s in zip(why, status, strict=True) if w and s == "ok").items():
            lines.append(f"undecided whether stuck: {counted(n, 'run')}, as {reason}")
        for name in self.table.column_names:
            if name.endswith(".failed"):
                reasons = self.table[name].drop_null().to_pylist()
                probe = name.removesuffix(".failed")
                lines.append(f"probe {probe} failed on {len(reasons)} runs: {reasons[0]}")
        lines.append(str(self.folder / "table.parquet"))
        return lines + [str(self.folder / "phase.html")] * (self.phase is not None)


def sweep(
    sweep: Sweep | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    device: str = "auto",
    fleet: int = FLEET,
    jobs: int = 1,
    cluster: Cluster | None = None,
    progress: bool | None = None,
) -> Swept:
    """Run a sweep, or what is missing of it.

    Members that may share a stack train as one, at most `fleet` at a time. Every member has a row in
    `out/rows`, named by the hash of its recipe and seed and written as soon as it is known; a call with the
    same `out` trains only the members that have none. Then `out/table.parquet` and, where the sweep has a
    phase or varies one field, `out/phase.html` are written for this sweep's members.

    Args:
        sweep: A sweep, its data, a TOML file, or the name of a shipped sweep.
        out: The folder; `sweeps/<name>` by default.
        device: `auto` (CUDA where there is any), `cpu` or `cuda`; on a cluster it follows from the GPUs of a
            task.
        fleet: Most members of a task.
        jobs: Tasks at once on the processor, each in a process with one thread; in a script they need
            `if __name__ == "__main__":`, as all of Python's processes do.
        cluster: Where to run instead of on this machine.
        progress: Whether to show progress; by default in a terminal or a notebook.

    Raises:
        SweepError: A sweep that cannot be used, or tasks that failed in another process; what was done is
            kept. A folder whose table is that of another sweep, or that another sweep is using.
        ValueError: A device, a fleet or a number of jobs that makes no sense.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> small = {"model.n_ctx": 8, "data.batch": 4, "steps": 2, "checkpoints": []}
        >>> both = {"name": "mine", "recipe": "binary-p05-q08-tied", "grid": {"source.p": [0.2, 0.5]}}
        >>> with TemporaryDirectory() as folder:
        ...     swept = sweep(both | {"set": small}, folder)
        >>> swept.table.num_rows, swept.trained
        (2, 2)
    """
    given, sweep = sweep, load_sweep(sweep)
    _check(sweep, device, fleet, jobs, cluster)
    try:
        members = _members(sweep)
    except SweepError as error:
        if not isinstance(given, str | Path):
            raise
        raise SweepError(printable(f"{given}: {error}")) from None
    store = Store(Path("sweeps") / sweep.name if out is None else path_of("out", out))
    with ExitStack() as held:
        held.enter_context(made_folder(store.folder, SweepError))
        held.enter_context(owned(store.folder, SweepError))
        held.enter_context(made_folder(store.folder / "rows", SweepError))
        check_writable(store.folder / "table.parquet", store.folder / "phase.html")
        store.check_table(members)
        todo = store.missing(sweep, {key: member for key, (_, member) in members.items()})
        tasks = fleets(todo, fleet)
        lost: list[tuple[Task, Exception]] = []
        settings = Settings(device, sweep.steps, sweep.keep_runs)
        with closing(Board(tasks, progress)) as board:
            if cluster is None:
                engine = _local_engine(tasks, replace(settings, scratch=store.scratch), jobs, board)
            else:
                share = replace(
                    settings, device=cluster.device, cores=cluster.cpus_per_task, gpu_share=cluster.gpu_share
                )
                engine = on_ray(tasks, partial(carry_out, settings=share), cluster)
            for task, outcome in engine:
                if isinstance(outcome, Done):
                    store.keep(outcome, task)
                    store.tidy(task)
                    board.done(task, outcome)
                else:
                    lost.append((task, outcome))
        if lost:
            runs = sum(len(task.items) for task, _ in lost)
            why = str(lost[0][1]).strip().splitlines() or [type(lost[0][1]).__name__]
            raise SweepError(
                f"{runs} of {len(members)} runs failed ({why[-1].strip()}); "
                "the others are kept, the same call goes on with these"
            ) from lost[0][1]
        store.tidy()
        return _finish(sweep, members, store, sum(item.run is None for item in todo))


def _members(sweep: Sweep) -> dict[str, tuple[Point, Member]]:
    """Every member and its point under its key, in the order of the table."""
    members = [(point, Member(point.recipe, seed)) for point in points(sweep) for seed in seeds_of(sweep)]
    return {member_key(member): (point, member) for point, member in members}


def _local_engine(tasks: list[Task], settings: Settings, jobs: int, board: Board) -> Iterator[Outcome]:
    at_once = min(jobs, len(tasks))
    if at_once > 1 and pick_device(settings.device).type == "cpu":
        share = replace(settings, device="cpu", cores=1, memory=MEMORY // at_once)
        return in_processes(tasks, partial(carry_out, settings=share), at_once, board.moved)
    return ((task, carry_out(task, settings, board.progress_of(task))) for task in tasks)


def _finish(sweep: Sweep, members: dict[str, tuple[Point, Member]], store: Store, trained: int) -> Swept:
    rows = [row for key in members if (row := store.row(key, tabled=True)) is not None]
    table = tables.table([(point, member.seed) for point, member in members.values()], rows)
    tables.write(table, store.folder / "table.parquet")
    picture, phase, fields = None, sweep.phase, varied(sweep)
    if phase is None and len(fields) == 1:
        phase = Phase(x=fields[0])
    if phase is not None:
        shares = None if phase.y is None else diagram.counts(table, phase)
        picture = curve.figure(table, phase) if shares is None else diagram.figure(shares, phase, sweep.title)
        curves = {row["key"]: row["curve"] for row in rows if row.get("curve")}
        levels = {key: _levels(point) for key, (point, _) in members.items()}
        page.write(picture, table, phase, store.folder / "phase.html", curves, levels, name=sweep.title)
    return Swept(sweep, store.folder, table, picture, trained)


def _levels(point: Point) -> dict[str, float]:
    """The losses of exact predictors that a point's source knows in closed form, in nats; none on scores."""
    if point.recipe.objective.kind != "cross_entropy":
        return {}
    source = point.recipe.source
    known = {"unigram": "unigram_entropy", "best": "entropy_rate"}
    return {name: float(getattr(source, of)) for name, of in known.items() if hasattr(source, of)}


def _check(sweep: Sweep, device: str, fleet: int, jobs: int, cluster: Cluster | None) -> None:
    known = registered()
    for name in sweep.probes:
        if name not in known:
            raise SweepError(f"probes has {name!r}{near_misses(name, list(known))}")
    integer_of("fleet", fleet, least=1)
    if cluster is not None and not isinstance(cluster, Cluster):
        raise TypeError(f"cluster is {shown(cluster)}, expected mm.Cluster(address)")
    if integer_of("jobs", jobs) < 1 or (jobs > 1 and cluster is not None):
        raise ValueError(f"jobs is {jobs}, expected at least 1, and 1 with a cluster")
    if cluster is None:
        pick_device(device)  # now, and not after the first task
    elif device not in ("auto", cluster.device):
        raise ValueError(
            f"device is {device!r}, expected {cluster.device!r} on a cluster "
            f"that gives each task {cluster.gpus_per_task:g} GPUs"
        )
