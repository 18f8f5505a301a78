"""What test_sweep_ray runs in a process of its own: a Ray cluster of several nodes on this machine."""

import fcntl
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
sys.path.insert(0, str(Path(__file__).parent))

import ray
from ray.cluster_utils import Cluster as Nodes
from sweep_cases import two_points

from mechmarkov.sweeps import Cluster, SweepError, run, sweep
from mechmarkov.sweeps.engines import on_ray

HEAD = {"num_cpus": 0, "include_dashboard": False}


def note(folder, **event):
    """Add a line to the log that all nodes share."""
    with open(folder / "events.jsonl", "a", encoding="utf-8") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        log.write(json.dumps(event) + "\n")


def noted(folder, what):
    path = folder / "events.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["what"] == what]


def with_work(around):
    """Put `around(work, task)` in the place of the work that is sent to the nodes."""

    def engine(tasks, work, cluster):
        return on_ray(tasks, lambda task: around(work, task), cluster)

    run.on_ray = engine


def killed_node(nodes, folder):
    """Four fleets on two nodes of one core; the node that begins the second is killed while it is at it."""
    workers = [nodes.add_node(num_cpus=1) for _ in range(2)]

    def around(work, task):
        node = ray.get_runtime_context().get_node_id()
        note(folder, what="begun", task=task.index, node=node)
        # On its first node the second never ends: a worker may outlive its killed node and still answer.
        while task.index == 1 and node in [None, *({e["node"] for e in noted(folder, "killed")} or {node})]:
            time.sleep(0.05)
        done = work(task)
        note(folder, what="ended", task=task.index, node=node)
        return done

    def kill():
        while not (begun := [event for event in noted(folder, "begun") if event["task"] == 1]):
            time.sleep(0.05)
        (worker,) = (worker for worker in workers if worker.node_id == begun[0]["node"])
        nodes.remove_node(worker, allow_graceful=False)
        note(folder, what="killed", task=1, node=worker.node_id)

    with_work(around)
    killer = threading.Thread(target=kill)
    killer.start()
    sweep(two_points(keep_runs=True), folder / "there", fleet=1, cluster=Cluster(nodes.address))
    killer.join()


def failing_task(nodes, folder):
    """One of four fleets raises; a second call does it alone."""
    nodes.add_node(num_cpus=1)

    def around(work, task):
        if task.index == 2:
            raise ValueError("no luck")
        return work(task)

    with_work(around)
    try:
        sweep(two_points(), folder, fleet=1, cluster=Cluster(nodes.address, retries=0))
    except SweepError as error:
        said = {"first": str(error), "rows_then": len([*(folder / "rows").iterdir()])}
    again = sweep(two_points(), folder, fleet=1, cluster=Cluster(nodes.address))
    (folder / "said.json").write_text(json.dumps(said | {"trained_later": again.trained}), "utf-8")


def dying_process(nodes, folder):
    """The process of one of four fleets is killed each time it begins."""
    nodes.add_node(num_cpus=1)

    def around(work, task):
        if task.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(task)

    with_work(around)
    print("dying process begins", flush=True)
    try:
        sweep(two_points(), folder, fleet=1, cluster=Cluster(nodes.address, retries=1))
    except SweepError as error:
        (folder / "said.json").write_text(json.dumps({"first": str(error)}), "utf-8")
    print("dying process ends", flush=True)


if __name__ == "__main__":
    nodes = Nodes(initialize_head=True, head_node_args=HEAD)
    for scene in (killed_node, failing_task, dying_process):
        scene(nodes, Path(sys.argv[1]) / scene.__name__)
    nodes.shutdown()
