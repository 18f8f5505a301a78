"""What a later call of a sweep takes for done, and what a row says of its time."""

import json
import time

from sweep_cases import tiny, two_points

from mechmarkov.sweeps import load_sweep, sweep
from mechmarkov.sweeps.spec import points
from mechmarkov.sweeps.tasks import Item, Settings, Task, carry_out, member_key
from mechmarkov.training.workload import Member


def test_last_scores_are_not_those_of_all_steps(tmp_path):
    recipe = tiny(seeds=1, grid={"source.p": [0.2]}, phase=None, probes=["attention"], keep_runs=True)
    last = sweep(recipe, tmp_path)
    (row,) = (tmp_path / "rows").iterdir()
    assert json.loads(row.read_text("utf-8"))["steps"] == "last"
    written = row.stat().st_mtime_ns
    every = sweep(recipe | {"steps": "all"}, tmp_path)
    assert (last.trained, every.trained) == (1, 0)  # measured again, on the run that was kept
    assert row.stat().st_mtime_ns > written
    assert json.loads(row.read_text("utf-8"))["steps"] == "all"
    written = row.stat().st_mtime_ns
    sweep(recipe | {"steps": "all"}, tmp_path)
    assert row.stat().st_mtime_ns == written


def test_runs_seconds_add_up_to_their_tasks():
    members = [Member(point.recipe, seed) for point in points(load_sweep(two_points())) for seed in (0, 1)]
    task = Task(0, tuple(Item(member_key(member), member) for member in members))
    began = time.perf_counter()
    rows = carry_out(task, Settings(device="cpu")).rows
    around = time.perf_counter() - began
    seconds = [row["seconds"] for row in rows]
    assert len(set(seconds)) == 1
    assert around / 2 < sum(seconds) <= around
