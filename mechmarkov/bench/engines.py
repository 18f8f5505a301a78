"""Where draws are measured: here, in processes of this machine, or on a Ray cluster."""

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby

from mechmarkov.bench.draws import Cell, Draw, cells
from mechmarkov.bench.kept_cells import KeptCells, name_of
from mechmarkov.bench.method import Method
from mechmarkov.bench.trained import BLOCK
from mechmarkov.sweeps.engines import Cluster, sent_to_ray
from mechmarkov.utils.forked import Stop, can_fork, forked
from mechmarkov.utils.threads import threads

Task = list[tuple[Draw, list[Method]]]  # draws of a case whose models are trained together
Found = dict[Draw, dict[str, Cell]]  # by the name of the method


def measured(
    draws: Sequence[Draw],
    methods: Sequence[Method],
    kept: KeptCells | None,
    *,
    jobs: int,
    cluster: Cluster | None,
    progress: Callable[[str], None] | None,
) -> Found:
    """Read what is kept of every method in every draw; measure the rest, and keep it as it comes.

    Args:
        draws: What to measure.
        methods: What is asked.
        kept: Where cells are kept; None for nowhere.
        jobs: Processes, without a cluster.
        cluster: Where to measure instead.
        progress: Told the name of the case for each of its draws that is done.

    Raises:
        RuntimeError: A task of the cluster was lost; what the others gave is kept.
    """
    found: Found = {draw: {} for draw in draws}
    if kept is not None:
        for draw in draws:
            there = kept.read(draw)
            for method in methods:
                name = name_of(draw, method)
                if name is not None and name in there and there[name].is_tabled:
                    found[draw][method.name] = there[name]
    left: Task = [(draw, [m for m in methods if m.name not in found[draw]]) for draw in draws]
    tasks: list[Task] = [
        list(some)
        for _, some in groupby(
            ((draw, asked) for draw, asked in left if asked),
            key=lambda each: (each[0].case, each[0].seed // BLOCK),
        )
    ]
    stop = Stop()

    def here(index: int) -> Found:
        """A task by its place: methods need no pickle. It is kept as it comes, so that nothing is lost."""
        task = tasks[index]
        done: Found = {draw: {} for draw, _ in task}
        with threads(1):
            for draw, asked in task:
                for method, cell in cells(draw, asked):
                    done[draw][method.name] = cell
                    _keep(kept, draw, method, cell)
                    stop.check()
        return done

    def told(draw: Draw) -> None:
        if progress is not None:
            progress(draw.case)

    for draw, asked in left:
        if not asked:
            told(draw)
    if cluster is None:
        answers = forked(
            here, range(len(tasks)), jobs, copied=can_fork(), advice="use one job", stop=stop.set
        )
        for _, done in answers:
            for draw, of_draw in done.items():
                found[draw] |= of_draw
                told(draw)
        return found
    lost = None
    for index, data in sent_to_ray(tasks, _packed, cluster):
        if isinstance(data, Exception):
            lost = data
            continue
        of_task = json.loads(zlib.decompress(data))
        for (draw, asked), of_draw in zip(tasks[index], of_task, strict=True):
            for method, cell in zip(asked, of_draw, strict=True):
                found[draw][method.name] = Cell(**cell)
                _keep(kept, draw, method, found[draw][method.name])
            told(draw)
    if lost is not None:
        raise RuntimeError("a task was lost; the others are kept in the folder, if one was given") from lost
    return found


def _keep(kept: KeptCells | None, draw: Draw, method: Method, cell: Cell) -> None:
    if kept is not None and (name := name_of(draw, method)) is not None:
        kept.add(draw, name, cell)


def _packed(task: Task) -> bytes:
    """Returns what a node sends back: plain rows."""
    with threads(1):
        rows = [[asdict(cell) for _, cell in cells(draw, asked)] for draw, asked in task]
    return zlib.compress(json.dumps(rows).encode())
