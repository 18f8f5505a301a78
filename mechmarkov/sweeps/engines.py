"""Where tasks are carried out: here, or on a Ray cluster. Both give results as they come."""

import json
import logging
import os
import socket
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mechmarkov.sweeps.tasks import Done, Task

Work = Callable[[Task], Done]
Outcome = tuple[Task, Done | Exception]


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and what is asked of it for each task.

    Attributes:
        address: As `ray.init` takes it: `auto` (the cluster this machine belongs to), `HOST:PORT`,
            `ray://HOST:PORT`, or `local` for one of this machine's cores that lives as long as the sweep.
        gpus_per_task: GPUs that Ray keeps for a task, or a part of one; with any it trains there, with none
            on the processor.
        cpus_per_task: Cores that Ray keeps for a task, which trains as many stacks at once.
        retries: How often a task goes to another node when its node or process dies.

    Raises:
        ValueError: Numbers that make no sense.
    """

    address: str
    gpus_per_task: float | int = 0
    cpus_per_task: int = 1
    retries: int = 3

    def __post_init__(self) -> None:
        """Refuse what Ray would refuse later."""
        least = {"gpus_per_task": 0, "cpus_per_task": 1, "retries": 0}
        for name, low in least.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least {low}")

    @property
    def device(self) -> str:
        """Where a task trains."""
        return "cuda" if self.gpus_per_task else "cpu"


def here(tasks: Iterable[Task], work: Work) -> Iterator[Outcome]:
    """One task after the other, in this process."""
    for task in tasks:
        yield task, work(task)


def on_ray(tasks: Sequence[Task], work: Work, cluster: Cluster) -> Iterator[Outcome]:
    """Each task on some node of a Ray cluster.

    This process owns the results, and no shared folder is needed. The rows of a task travel inside its reply
    (Ray sends up to 100 KB so, far more than a fleet's rows take): what a node has finished is here, what it
    has not is given to another node when it is lost. Kept runs are larger and are fetched at once; a node
    that dies in between costs their task once more, and still no row is lost or there twice.

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
    ray = _ray()
    _check_answers(cluster.address)
    if cluster.address == "local":  # a cluster of our own making tells nobody of it
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        if cluster.gpus_per_task and not ray.cluster_resources().get("GPU"):
            warnings.warn("no node of the cluster has a GPU now: tasks wait until one does", stacklevel=2)

        def remote(task: Task) -> bytes:
            return pack(work(task))

        options = {
            "num_cpus": cluster.cpus_per_task,
            "num_gpus": cluster.gpus_per_task,
            "max_retries": cluster.retries,
        }
        submit = ray.remote(**options)(remote)
        waiting = {submit.remote(task): task for task in tasks}
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            task = waiting.pop(ready)
            try:
                yield task, unpack(ray.get(ready))
            except ray.exceptions.RayError as error:
                yield task, error
    finally:
        ray.shutdown()


def pack(done: Done) -> bytes:
    """Results as few bytes: rows as compressed JSON, so that Ray sends them with the reply (under 100 KB)."""
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


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError("Ray is not installed: pip install 'mechmarkov[cluster]'") from None
    return ray
