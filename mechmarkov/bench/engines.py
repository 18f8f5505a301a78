"""Where draws are measured: here, in processes of this machine, or on a Ray cluster."""

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, groupby

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
    found: Found = {draw: _read(kept, draw, methods) for draw in draws}
    left: Task = [(draw, [m for m in methods if m.name not in found[draw]]) for draw in draws]
    together = groupby(
        [(draw, asked) for draw, asked in left if asked],
        key=lambda each: (each[0].case, each[0].seed // BLOCK),
    )
    tasks: list[Task] = [list(some) for _, some in together]
    there = ((draw, dict[str, Cell]()) for draw, asked in left if not asked)
    rest = _here(tasks, kept, jobs) if cluster is None else _on_cluster(tasks, kept, cluster)
    for draw, of_draw in chain(there, rest):
        found[draw] |= of_draw
        if progress is not None:
            progress(draw.case)
    return found


def _here(tasks: list[Task], kept: KeptCells | None, jobs: int) -> Iterator[tuple[Draw, dict[str, Cell]]]:
    """Yields the cells of each draw, by method, from processes of this machine."""
    stop = Stop()

    def done(index: int) -> Found:
        """A task by its place: methods need no pickle. It is kept as it comes, so that nothing is lost."""
        given: Found = {draw: {} for draw, _ in tasks[index]}
        with threads(1):
            for draw, asked in tasks[index]:
                for method, cell in cells(draw, asked):
                    given[draw][method.name] = cell
                    _keep(kept, draw, method, cell)
                    stop.check()
        return given

    places = range(len(tasks))
    for _, given in forked(done, places, jobs, copied=can_fork(), advice="use one job", stop=stop.set):
        yield from given.items()


def _on_cluster(
    tasks: list[Task], kept: KeptCells | None, cluster: Cluster
) -> Iterator[tuple[Draw, dict[str, Cell]]]:
    """Yields the same from a cluster; a task that was lost is an error once all others are there."""
    lost = None
    for index, data in sent_to_ray(tasks, _packed, cluster):
        if isinstance(data, Exception):
            lost = data
            continue
        for (draw, asked), rows in zip(tasks[index], json.loads(zlib.decompress(data)), strict=True):
            of_draw = {method.name: Cell(**cell) for method, cell in zip(asked, rows, strict=True)}
            for method in asked:
                _keep(kept, draw, method, of_draw[method.name])
            yield draw, of_draw
    if lost is not None:
        raise RuntimeError("a task was lost; the others are kept in the folder, if one was given") from lost


def _read(kept: KeptCells | None, draw: Draw, methods: Sequence[Method]) -> dict[str, Cell]:
    """Returns what is kept of a draw, by method."""
    there = {} if kept is None else kept.read(draw)
    names = {method.name: name_of(draw, method) for method in methods if there}
    return {method: there[name] for method, name in names.items() if name in there and there[name].is_tabled}


def _keep(kept: KeptCells | None, draw: Draw, method: Method, cell: Cell) -> None:
    if kept is not None and (name := name_of(draw, method)) is not None:
        kept.add(draw, name, cell)


def _packed(task: Task) -> bytes:
    """Returns what a node sends back: plain rows."""
    with threads(1):
        rows = [[asdict(cell) for _, cell in cells(draw, asked)] for draw, asked in task]
    return zlib.compress(json.dumps(rows).encode())
