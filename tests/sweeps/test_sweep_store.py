"""The folder of a sweep: what is kept, what counts as done, and what is refused."""

import json
import math
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mechmarkov.sweeps import SweepError, load_sweep
from mechmarkov.sweeps.engines import Cluster, pack, unpack
from mechmarkov.sweeps.spec import Point
from mechmarkov.sweeps.store import Store
from mechmarkov.sweeps.table import table
from mechmarkov.sweeps.tasks import Done, Item, Task, fleets, member_key, with_runs
from mechmarkov.training.recipe import load_recipe
from mechmarkov.training.workload import Member

RECIPE = load_recipe("walk-k6-half")
MEMBER = Member(RECIPE, 3)
KEY = member_key(MEMBER)
BASE = {"name": "a", "recipe": "walk-k6-half"}
EMPTY = {"message": None, "metrics": {}, "scores": {}, "skipped": {}, "failed": {}, "stuck": None}
ROW = {
    "key": KEY,
    "status": "ok",
    "probes": ["attention"],
    "steps": "last",
    "step": 50,
    "seconds": 1.0,
    **EMPTY,
}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "rows").mkdir()
    return Store(tmp_path)


def keep(store, runs=(), **changes):
    store.keep(Done(({**ROW, **changes},), dict(runs)), Task(0, (Item(KEY, MEMBER),)))


def missing(store, **keys):
    return store.missing(load_sweep(BASE | keys), {KEY: MEMBER})


def test_a_row_says_what_it_is_of(store):
    keep(store, {KEY: b"run"})
    kept = {"format": "mechmarkov.sweep-row", "version": 1, "recipe": RECIPE.to_data(), "seed": 3}
    assert store.row(KEY) == {**kept, **ROW}
    assert store.run_file(KEY).read_bytes() == b"run"
    assert store.row("other") is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_is_json_or_nothing(store, value):
    with pytest.raises(ValueError, match="JSON compliant"):
        keep(store, seconds=value)
    assert list((store.folder / "rows").iterdir()) == []


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"format": "mechmarkov.sweep-row", "key": "x"}', '{"format": "x"}']
)
def test_another_file_is_not_a_row(store, content):
    store.row_file(KEY).write_text(content, "utf-8")
    with pytest.raises(SweepError, match="is not a row of this sweep: delete it"):
        store.row(KEY)


def test_the_row_of_another_member_is_not_this_ones(store):
    """Somebody renamed or copied a file."""
    keep(store)
    store.row_file("other").write_text(store.row_file(KEY).read_text("utf-8"), "utf-8")
    assert store.row(KEY)["key"] == KEY
    with pytest.raises(SweepError, match=r"other.json is not a row of this sweep: delete it"):
        store.row("other")


WRONG = {
    **dict.fromkeys(("status", "probes", "steps", "step", "seconds", "metrics", "scores")),
    **{name: [1] for name in ("message", "skipped", "failed", "stuck", "curve")},
}
SCORE = {"value": 1.0, "unit": "nats"}


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_another_type_is_no_row(store, name):
    keep(store, **{name: WRONG[name]})
    with pytest.raises(SweepError, match="is not a row of this sweep: delete it"):
        missing(store)


def test_a_row_that_the_table_cannot_read_is_refused(store):
    keep(store)
    assert store.row(KEY, tabled=True) == store.row(KEY)
    path = store.row_file(KEY)
    path.write_text(json.dumps({name: x for name, x in store.row(KEY).items() if name != "metrics"}), "utf-8")
    with pytest.raises(SweepError, match="is not a row of this sweep"):
        store.row(KEY, tabled=True)


@pytest.mark.parametrize(
    "wrong", [{"value": []}, {"unit": None}, {"null": [1.0]}, {"null": [1.0] * 4}, {"interval": [1.0, None]}]
)
def test_a_score_of_another_form_is_no_row(store, wrong):
    keep(store, scores={"attention": {"spread": SCORE}})
    assert missing(store) == []
    keep(store, scores={"attention": {"spread": SCORE | wrong}})
    with pytest.raises(SweepError, match="is not a row of this sweep"):
        missing(store)


def test_brackets_without_end_are_no_row(store):
    store.row_file(KEY).write_text("[" * 100_000, "utf-8")
    with pytest.raises(SweepError, match="is not a row of this sweep"):
        store.row(KEY)


@pytest.mark.timeout(60)
def test_pipes_of_a_sweep_are_refused_at_once(store):
    os.mkfifo(store.row_file(KEY))
    with pytest.raises(SweepError, match="is not a row of this sweep"):
        store.row(KEY)
    os.mkfifo(store.folder / "table.parquet")
    with pytest.raises(SweepError, match="is not the table of a sweep"):
        store.check_table([])


@pytest.mark.parametrize(
    ("row", "sweep", "is_done"),
    [
        ({}, {}, True),
        ({}, {"probes": ["attention"]}, True),
        ({}, {"probes": ["attention", "behaviour"]}, True),
        ({}, {"probes": ["attention", "symmetry"]}, False),
        ({}, {"steps": "all"}, True),  # of probes only
        ({}, {"probes": ["attention"], "steps": "all"}, False),
        ({}, {"keep_runs": True}, False),
        ({"status": "diverged"}, {"probes": ["symmetry"], "keep_runs": True}, True),
    ],
)
def test_a_member_is_done_with_all_that_is_wanted(store, row, sweep, is_done):
    assert missing(store) == [Item(KEY, MEMBER)]
    keep(store, **row)
    assert (missing(store, **sweep) == []) == is_done


def test_a_kept_run_is_not_trained_again(store):
    keep(store, {KEY: b"run"})
    assert missing(store, keep_runs=True) == []
    wanted = ("attention", "symmetry")
    assert missing(store, probes=["symmetry"]) == [Item(KEY, MEMBER, wanted, store.run_file(KEY))]
    keep(store, {}, status="stopped")
    assert missing(store, probes=["symmetry"]) == [Item(KEY, MEMBER, wanted, None)]


def test_a_table_of_other_runs_is_not_replaced(store):
    path = store.folder / "table.parquet"
    store.check_table([])
    pq.write_table(pa.table({"key": ["a", "b"]}), path)
    store.check_table(["a", "b", "c"])
    with pytest.raises(SweepError, match=r"table of another sweep \(1 of its 2 runs would be lost from it\)"):
        store.check_table(["a"])
    pq.write_table(pa.table({"name": ["a"]}), path)
    with pytest.raises(SweepError, match="is not the table of a sweep"):
        store.check_table(["a"])


def test_only_a_finished_tasks_snapshots_go(store):
    tasks = [Task(number, (Item(str(number), MEMBER),)) for number in range(2)]
    for task in tasks:
        (store.scratch / task.name).mkdir(parents=True)
    assert tasks[0].name != tasks[1].name == Task(7, tasks[1].items).name
    assert len(tasks[0].name) == 16
    store.tidy(tasks[0])
    assert [path.name for path in store.scratch.iterdir()] == [tasks[1].name]
    store.tidy()
    assert not store.scratch.exists()
    store.tidy()


def test_a_fleet_has_members_of_one_kind():
    items = [Item(str(seed), Member(RECIPE, seed)) for seed in range(5)]
    with_run = Item("9", Member(RECIPE, 9), run=b"run")
    other = Item("8", Member(RECIPE.with_set(["steps=3"]), 8))
    found = fleets([*items, with_run, other], most=3)
    keys = [[item.key for item in task.items] for task in found]
    assert keys == [["0", "1", "2"], ["3", "4"], ["9"], ["8"]]
    assert [task.index for task in found] == [0, 1, 2, 3]


def test_runs_travel_with_their_task(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"abc")
    items = Item("a", MEMBER, run=tmp_path / "a.pt"), Item("b", MEMBER, run=b"b"), Item("c", MEMBER)
    assert [item.run for item in with_runs(Task(0, items)).items] == [b"abc", b"b", None]
    done = Done(({"key": "a"}, {"key": "b"}), {"a": b"\n\n", "b": b"", "c": b"x\ny"})
    assert unpack(pack(done)) == done


def test_columns_stand_where_they_came_first():
    def row(key, scores, **more):
        empty = {"message": None, "step": 4, "metrics": {}, "stuck": None, "skipped": {}, "failed": {}}
        return {"key": key, "status": "diverged", "scores": scores, "seconds": 2.0, **empty, **more}

    score = {"value": 1.0, "unit": "nats"}
    rows = [row("x", {"a": {"one": score}}), row("y", {"a": {"two": score, "one": score}}, message="why")]
    found = table([(Point(1, {"p": 0.5}, RECIPE), 0), (Point(1, {"p": 0.5}, RECIPE), 1)], rows)
    names = ["p", "seed", "status", "message", "step", "stuck", "stuck.excess", "stuck.line"]
    columns = [name for name in found.column_names if name != "stuck.reason"]
    assert columns == [*names, "a.two", "a.one", "seconds", "key"]
    assert found["stuck.reason"].to_pylist() == [None, "why"]
    assert found.schema.field("seconds").metadata == {b"unit": b"s"}
    assert found.schema.field("stuck.excess").metadata == {b"unit": b"nats"}
    assert found.schema.field("seed").metadata is None
    assert json.loads(json.dumps(found.to_pylist()))[0]["a.two"] is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ""),
        ({"gpus_per_task": 0.5}, ""),
        ({"gpus_per_task": -0.1}, "gpus_per_task"),
        ({"cpus_per_task": 1}, ""),
        ({"cpus_per_task": 0}, "cpus_per_task"),
        ({"retries": 0}, ""),
        ({"retries": -1}, "retries"),
    ],
)
def test_a_cluster_has_sensible_numbers(settings, words):
    if words:
        with pytest.raises(ValueError, match=f"^{words} is "):
            Cluster("auto", **settings)
    else:
        assert Cluster("auto", **settings).device == ("cuda" if "gpus_per_task" in settings else "cpu")


@pytest.mark.parametrize(("gpus", "share"), [(0, 1.0), (0.25, 0.25), (1, 1.0), (2, 1.0)])
def test_a_task_has_a_share_of_a_gpu(gpus, share):
    assert Cluster("auto", gpus_per_task=gpus).gpu_share == share
