"""Engines that carry tasks out: processes of this machine, a Ray cluster."""

import json
import logging
import math
import multiprocessing
import os
import socket
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch

from mechmarkov.sweeps.tasks import Done, Task, with_runs
from mechmarkov.utils import forked
from mechmarkov.utils.errors import number_of
from mechmarkov.utils.forked import PATIENCE, begin_spawned, shut_down, without_interruptions
from mechmarkov.utils.text import shown

Work = Callable[..., Done]  # of a task
Outcome = tuple[Task, Done | Exception]


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and the resources that each task takes of it.

    Attributes:
        address: The address for `ray.init`: `auto` (the cluster this machine belongs to), `HOST:PORT`,
            `ray://HOST:PORT`, or `local` for one of this machine's cores that lives as long as the sweep.
        gpus_per_task: GPUs that Ray keeps for a task, or a part of one; with any it trains there, with none
            on the processor.
        cpus_per_task: Cores that Ray keeps for a task, which trains as many stacks at once.
        retries: How often a task goes to another node when its node or process dies.

    Raises:
        ValueError, TypeError: Numbers that make no sense.
    """

    address: str
    gpus_per_task: float | int = 0
    cpus_per_task: int = 1
    retries: int = 3

    def __post_init__(self) -> None:
        """Refuse what Ray would refuse later."""
        least = {"gpus_per_task": 0, "cpus_per_task": 1, "retries": 0}
        if not isinstance(self.address, str):
            raise TypeError(f"address is {shown(self.address)}, expected a text such as 'auto'")
        for name, low in least.items():
            number_of(name, getattr(self, name), f"at least {low}", least=low, most=float("inf"))

    @property
    def device(self) -> str:
        """Returns where a task trains."""
        return "cuda" if self.gpus_per_task else "cpu"

    @property
    def gpu_share(self) -> float:
        """Returns the part of a GPU that is a task's own: 1 where it has whole ones, or none.

        Example:
            >>> [Cluster("auto", gpus_per_task=gpus).gpu_share for gpus in (0, 0.5, 2)]
            [1.0, 0.5, 1.0]
        """
        return min(1.0, self.gpus_per_task or 1.0)


def in_processes(
    tasks: Sequence[Task], work: Work, count: int, moved: Callable[[float], None]
) -> Iterator[Outcome]:
    """Tasks on the cores of this machine, each in a process with one thread.

    Args:
        tasks: What is to be done.
        work: Does one, and takes `progress` too; a process imports it.
        count: Processes.
        moved: Told now and then how many runs' worth of the unfinished tasks is trained.

    Yields:
        Each task with what it gave, or with why it gave nothing; tasks come as they end.
    """
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(tasks) + 1, lock=False)
    others = {*multiprocessing.active_children()}
    pool = ProcessPoolExecutor(count, context, begin_spawned, (shares,))
    patience = PATIENCE
    try:
        with without_interruptions():
            waiting = {pool.submit(_carry_out, work, tasks[i], i): i for i in range(len(tasks))}
        while waiting:
            ready, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in ready:
                task, error = tasks[waiting.pop(future)], future.exception()
                yield task, error if isinstance(error, Exception) else future.result()
            moved(sum((len(tasks[i].items) * shares[i] for i in waiting.values()), 0.0))
        patience = math.inf
    finally:
        shares[STOP] = 1
        shut_down(pool, others, patience=patience)


STOP = -1  # where `shares` says whether to stop; what each task has done of its steps is before it


class _StoppedError(Exception):
    """Nobody waits for the task, and the next call goes on from what was left."""


def _carry_out(work: Work, task: Task, index: int) -> Done:
    def progress(step: int, steps: int) -> None:
        if forked.shared[STOP]:
            raise _StoppedError
        forked.shared[index] = step / steps

    torch.set_num_threads(1)
    progress(0, 1)
    return work(task, progress=progress)


def on_ray(tasks: Sequence[Task], work: Work, cluster: Cluster) -> Iterator[Outcome]:
    """Each task on some node of a Ray cluster (`sent_to_ray`).

    The rows of a task travel inside its reply (Ray sends up to 100 KB so, far more than a fleet's rows take):
    what a node has finished is here. Kept runs are larger and are fetched at once; a node that dies in
    between costs their task once more, and still no row is lost or there twice.

    Args:
        tasks: What is to be done.
        work: Does one; the nodes import it, so they need the same version of this library.
        cluster: Where.

    Yields:
        Each task with what it gave, or with why it gave nothing; tasks come as they end.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: There is no cluster at that address.
    """
    if not tasks:
        return
    for index, answer in sent_to_ray(map(with_runs, tasks), lambda task: pack(work(task)), cluster):
        yield tasks[index], answer if isinstance(answer, Exception) else unpack(answer)


def sent_to_ray(
    arguments: Iterable[Any], work: Callable[[Any], bytes], cluster: Cluster
) -> Iterator[tuple[int, bytes | Exception]]:
    """Call a function with each argument, on some node of a Ray cluster.

    This process owns the results, and no shared folder is needed. What a node has not finished is given to
    another one when it is lost.

    Args:
        arguments: What it is called with.
        work: Gives bytes; the nodes import what it needs.
        cluster: Where.

    Yields:
        The place of an argument with what came of it, or with why nothing did; they come as they end.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: There is no cluster at that address.
        ValueError: It is not an address.
    """
    try:
        import ray
    except ImportError:
        raise ImportError("Ray is not installed: pip install 'mechmarkov[cluster]'") from None
    _check_answers(cluster.address)
    if cluster.address == "local":  # a cluster that we start reports no usage
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:  # Ray's own advice names an option of its command
        raise ConnectionError(
            f"no Ray cluster answers at {cluster.address}: begin one with `ray start --head`, "
            "or give its HOST:PORT, or local"
        ) from None
    except ValueError:  # its advice has many lines
        raise ValueError(f"address is {shown(cluster.address)}, expected auto, HOST:PORT or local") from None
    # Ray prints on stdout why a worker died, whatever its log options are: the outcome says it in one line.
    printing = ray._private.worker
    ray_prints, printing.print_to_stdstream = printing.print_to_stdstream, lambda *_, **__: None
    try:
        if cluster.gpus_per_task and not ray.cluster_resources().get("GPU"):
            warnings.warn("no node of the cluster has a GPU now: tasks wait until one does", stacklevel=2)

        def remote(argument: Any) -> bytes:
            return work(argument)

        options = {
            "num_cpus": cluster.cpus_per_task,
            "num_gpus": cluster.gpus_per_task,
            "max_retries": cluster.retries,
        }
        submit = ray.remote(**options)(remote)
        waiting = {submit.remote(argument): index for index, argument in enumerate(arguments)}
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            index = waiting.pop(ready)
            try:
                yield index, ray.get(ready)
            except ray.exceptions.WorkerCrashedError:
                yield index, RuntimeError("its process died: killed, or out of memory")
            except ray.exceptions.RayError as error:
                yield index, error
    finally:
        ray.shutdown()
        printing.print_to_stdstream = ray_prints


def pack(done: Done) -> bytes:
    """Results as few bytes: rows as compressed JSON, so that Ray sends them with the reply (under 100 KB).

    `unpack` undoes it.
    """
    rows = zlib.compress(json.dumps(done.rows).encode())
    head = json.dumps(
        {"rows": len(rows), "runs": {key: len(data) for key, data in done.runs.items()}}
    ).encode()
    return b"\n".join([head, rows + b"".join(done.runs.values())])


def unpack(data: bytes) -> Done:
    """Undo `pack`.

    Example:
        >>> done = Done(({"key": "a", "seed": 0},), {"a": b"run", "b": b"other"})
        >>> unpack(pack(done)) == done
        True
    """
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    start, runs = head["rows"], {}
    for key, size in head["runs"].items():
        runs[key], start = rest[start : start + size], start + size
    return Done(tuple(json.loads(zlib.decompress(rest[: head["rows"]]))), runs)


def _check_answers(address: str) -> None:
    """Ask whether anybody is there: Ray itself tries for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # auto, local
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from None
