"""What a grid of 10 000 runs takes on one machine and on a Ray cluster: predicted from measured parts.

    python -m benchmarks.fleet_scaling [--check] [--exponents] [--price 0.04]

The parts are a task's seconds by its steps (all cores at work), what a worker and Ray take to begin, what the
driver does with a row, and memory. `--check` runs a small grid on a local Ray of 2 and of 4 workers and sets
its time beside the prediction. `--exponents` fits how a stack's cost grows with models, steps and batch. The
tables are written into `benchmarks/README.md`.
"""

import argparse
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mechmarkov as mm
from benchmarks.timing import write_table
from mechmarkov.sweeps.engines import pack, unpack
from mechmarkov.sweeps.run import FLEET
from mechmarkov.sweeps.store import Store
from mechmarkov.sweeps.tasks import Item, Settings, carry_out, fleets, member_key
from mechmarkov.training.workload import Member, members_of
from mechmarkov.utils.threads import cores

GRID = 10_000  # runs, of the steps of the sweep `binary-phase`
GRID_STEPS = 400
WORKERS = (8, 64, 512)
MEASURED_STEPS = (20, 60)
CHECKED = {"tasks": 12, "steps": 40}  # of the small grid
SIZE = {"model.n_ctx": 64, "model.d_model": 8, "model.d_head": 8, "checkpoints": "{every=1000000}"}
GROWTH = {"models": (16, 32, 64, 128), "steps": (63, 126, 252, 504), "batch": (16, 32, 64, 128)}
START = {"models": 16, "steps": 63, "batch": 16}


@dataclass(frozen=True)
class Parts:
    """What was measured, in seconds and bytes.

    Attributes:
        fixed: Of a task, whatever its steps.
        per_step: Of a task, for each step.
        worker: Until a worker has imported what it needs, all cores doing so.
        ray: Until Ray has begun, and to end it.
        row: What the driver does with a row: unpack, write, and the table in the end.
        reply: Bytes of a row on its way to the driver.
        memory: Peak of a worker's resident memory.
    """

    fixed: float
    per_step: float
    worker: float
    ray: float
    row: float
    reply: float
    memory: float


def predicted(parts: Parts, runs: int, steps: int, workers: int, cores: int) -> float:
    """Wall seconds of a grid; workers that share cores are slower by as much."""
    slower = max(1.0, workers / cores)
    task = (parts.fixed + parts.per_step * steps) * slower
    rounds = math.ceil(math.ceil(runs / FLEET) / workers)
    trained = parts.worker * slower + rounds * task
    return parts.ray + max(trained, runs * parts.row) + FLEET * parts.row


def grid(runs: int, steps: int) -> dict[str, Any]:
    """A sweep of so many runs in one shape, so that every task is full."""
    return {
        "name": "grid",
        "recipe": "binary-p05-q08-tied",
        "seeds": FLEET,
        "set": {"model.n_ctx": 256, "steps": steps, "checkpoints": []},
        "grid": {"source.p": np.linspace(0.1, 0.9, runs // FLEET).round(6).tolist()},
    }


def measured_task(steps: int) -> float:
    """Wall seconds of a task, one on each core at once; without what a process takes to begin."""
    with tempfile.TemporaryDirectory() as folder:
        found = mm.sweep(grid(cores() * FLEET, steps), folder, jobs=cores(), progress=False)
    return statistics.median(found.table["seconds"].to_pylist()) * FLEET


def measured_worker() -> float:
    """Seconds until processes on all cores have imported what a task needs."""
    began = time.perf_counter()
    command = [sys.executable, "-c", "import mechmarkov.sweeps.tasks, mechmarkov.probes.behaviour"]
    for process in [subprocess.Popen(command) for _ in range(cores())]:
        process.wait()
    return time.perf_counter() - began


def measured_driver() -> tuple[float, float]:
    """Seconds and bytes of a row: unpacked, written, and put into the table."""
    recipe = mm.load_recipe("binary-p05-q08-tied").with_set(["steps=4", "checkpoints=[]", "model.n_ctx=256"])
    members = [Member(recipe, seed) for seed in range(FLEET)]
    (task,) = fleets([Item(member_key(member), member) for member in members], FLEET)
    reply = pack(carry_out(task, Settings(cores=1)))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.row_file("").parent.mkdir()
        began = time.perf_counter()
        store.keep(unpack(reply), task)
        for item in task.items:
            store.row(item.key)
        taken = time.perf_counter() - began
    return taken / FLEET, len(reply) / FLEET


@contextmanager
def local_ray(workers: int) -> Iterator[mm.Cluster]:
    """A Ray of this machine with so many workers."""
    ray = str(Path(sys.executable).with_name("ray"))
    start = [ray, "start", "--head", f"--num-cpus={workers}", "--port=6399", "--include-dashboard=false"]
    subprocess.run(start, check=True, capture_output=True)
    try:
        yield mm.Cluster("127.0.0.1:6399")
    finally:
        subprocess.run([ray, "stop", "--force"], check=True, capture_output=True)


def seconds_on_ray(cluster: mm.Cluster, runs: int, steps: int) -> float:
    """Wall seconds of a sweep."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        mm.sweep(grid(runs, steps), folder, cluster=cluster, progress=False)
        return time.perf_counter() - began


def measured(repeats: int) -> Parts:
    """All parts, medians."""
    few, many = (statistics.median(measured_task(steps) for _ in range(repeats)) for steps in MEASURED_STEPS)
    per_step = (many - few) / (MEASURED_STEPS[1] - MEASURED_STEPS[0])
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    row, reply = measured_driver()
    worker = statistics.median(measured_worker() for _ in range(repeats))
    with local_ray(cores()) as cluster:
        # One task of one step: what is not the task is Ray's, its worker's imports taken off.
        whole = statistics.median(seconds_on_ray(cluster, FLEET, 1) for _ in range(repeats))
    fixed = few - per_step * MEASURED_STEPS[0]
    return Parts(fixed, per_step, worker, max(0.0, whole - worker - fixed), row, reply, memory)


def prediction(parts: Parts, price: float) -> list[str]:
    """The table of the large grid."""
    rows = [f"this machine, {cores()} cores", *(f"Ray, {n} workers of a core each" for n in WORKERS)]
    lines = [
        f"| {GRID:,} runs of {GRID_STEPS} steps, T = 256 | wall | core hours | at {price:g} an hour each "
        "| memory, all workers | replies |",
        "|---|---|---|---|---|---|",
    ]
    for name, workers in zip(rows, (cores(), *WORKERS), strict=True):
        wall = predicted(parts, GRID, GRID_STEPS, workers, workers)
        hours = wall * workers / 3600
        lines.append(
            f"| {name} | {wall / 60:.0f} min | {hours:.1f} | {hours * price:.2f} "
            f"| {workers * parts.memory / 1e9:.1f} GB | {GRID * parts.reply / 1e6:.0f} MB |"
        )
    return lines


def check(parts: Parts, repeats: int) -> list[str]:
    """A small grid on a local Ray, beside its prediction."""
    runs, steps = CHECKED["tasks"] * FLEET, CHECKED["steps"]
    lines = [
        f"| {runs} runs of {steps} steps on this machine's {cores()} cores | predicted | measured | off by |"
    ]
    lines += ["|---|---|---|---|"]
    for workers in (2, 4):
        with local_ray(workers) as cluster:
            taken = [seconds_on_ray(cluster, runs, steps) for _ in range(repeats)]
        expected, found = predicted(parts, runs, steps, workers, cores()), statistics.median(taken)
        spread = f"{min(taken):.0f} to {max(taken):.0f}, {repeats}"
        off = expected / found - 1
        lines.append(f"| Ray, {workers} workers | {expected:.0f} s | {found:.0f} s ({spread}) | {off:+.0%} |")
    return lines


def seconds(models: int, steps: int, batch: int) -> float:
    """Wall time of one stack."""
    changes = {**SIZE, "data.batch": batch, "steps": steps}
    recipe = mm.load_recipe("binary-p05-q08-untied").with_set([f"{k}={v}" for k, v in changes.items()])
    began = time.perf_counter()
    mm.training.train_members(members_of(recipe, range(models)), device="cpu", at_once=1, progress=False)
    return time.perf_counter() - began


def exponent(sizes: Sequence[int], taken: Sequence[float]) -> float:
    """The slope of log time over log size."""
    return float(np.polyfit(np.log(sizes), np.log(taken), 1)[0])


def exponents() -> None:
    """Print how a stack's cost grows, 1 being linear."""
    seconds(**START)
    for name, sizes in GROWTH.items():
        rounds = [[seconds(**(START | {name: size})) for size in sizes] for _ in range(3)]
        taken = [statistics.median(column) for column in zip(*rounds, strict=True)]
        shown = ", ".join(f"{size}: {t:.2f} s" for size, t in zip(sizes, taken, strict=True))
        print(f"{name:>6}: exponent {exponent(sizes, taken):.2f}  ({shown})", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="run a small grid on a local Ray too")
    parser.add_argument("--exponents", action="store_true", help="fit exponents instead")
    parser.add_argument("--price", type=float, default=0.04, help="of an hour of a core, in any currency")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.exponents:
        exponents()
        raise SystemExit
    parts = measured(options.repeats)
    print(parts, flush=True)
    table = prediction(parts, options.price)
    if options.check:
        table += ["", *check(parts, options.repeats)]
    print("\n".join(table))
    write_table("benchmarks.fleet_scaling", table)
