"""On a real Ray cluster of several nodes on this machine: a node dies, nothing is lost or done twice."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sweep_cases import tiny, two_points

from mechmarkov.sweeps import Cluster, sweep
from mechmarkov.sweeps.engines import on_ray, pack, unpack
from mechmarkov.sweeps.run import FLEET
from mechmarkov.sweeps.tasks import Done

SCRIPT = Path(__file__).with_name("ray_cluster.py")
SECONDS = 900  # three clusters start and end, a minute each where the machine is busy

pytestmark = pytest.mark.timeout(SECONDS + 60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Where one cluster left what happened: Ray leaves processes and warnings that are not ours to judge."""
    folder = tmp_path_factory.mktemp("cluster")
    for scene in ("killed_node", "failing_task", "dying_process"):
        (folder / scene).mkdir()
    process = subprocess.run(
        [sys.executable, SCRIPT, folder], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert process.returncode == 0, process.stderr[-4000:]
    (folder / "stdout").write_text(process.stdout, "utf-8")
    return folder


# The first of these: processes of a cluster may outlive it for a while, and would be found.
def test_without_a_cluster_the_advice_is_ours(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(
        ConnectionError, match=r"no Ray cluster answers at auto: .*ray start --head.*HOST:PORT"
    ):
        sweep(tiny(seeds=1), tmp_path / "new", cluster=Cluster("auto"))
    assert not (tmp_path / "new").exists()


@pytest.mark.system
def test_a_dying_node_leaves_the_table_whole(cluster, tmp_path):
    folder = cluster / "killed_node"
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text("utf-8").splitlines()]
    begun = [event["task"] for event in events if event["what"] == "begun"]
    ended = [event["task"] for event in events if event["what"] == "ended"]
    (killed,) = (event for event in events if event["what"] == "killed")
    assert sorted(ended) == [0, 1, 2, 3]  # every task to its end, once
    assert sorted(begun) == sorted([0, 1, 2, 3, killed["task"]])  # and only the lost one begun again
    nodes = [
        event["node"] for event in events if event["what"] == "begun" and event["task"] == killed["task"]
    ]
    assert nodes[0] == killed["node"]
    assert nodes[1] != killed["node"]
    ours = sweep(two_points(keep_runs=True), tmp_path, fleet=1)
    theirs = pq.read_table(folder / "there" / "table.parquet")
    assert ours.table.column_names == theirs.column_names
    for mine, other in zip(ours.table.to_pylist(), theirs.to_pylist(), strict=True):
        for name in set(mine) - {"seconds"}:
            # The stacks that a fleet is split into follow the number of cores, and rounding follows them.
            close = pytest.approx(mine[name], abs=1e-6) if isinstance(mine[name], float) else mine[name]
            assert other[name] == close, name
    runs = [{path.name for path in (place / "runs").iterdir()} for place in (tmp_path, folder / "there")]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 4


@pytest.mark.system
def test_an_always_failing_task_spares_the_others(cluster):
    said = json.loads((cluster / "failing_task" / "said.json").read_text("utf-8"))
    words = "1 of 4 runs failed (ValueError: no luck); the others are kept, the same call goes on with these"
    assert said["first"] == words
    assert said["rows_then"] == 3
    assert said["trained_later"] == 1


@pytest.mark.system
def test_a_dead_process_is_one_line(cluster):
    said = json.loads((cluster / "dying_process" / "said.json").read_text("utf-8"))
    assert said["first"] == (
        "1 of 4 runs failed (its process died: killed, or out of memory); "
        "the others are kept, the same call goes on with these"
    )
    printed = (cluster / "stdout").read_text("utf-8")
    assert "dying process begins\ndying process ends\n" in printed


def test_results_travel_as_bytes():
    done = Done(
        ({"key": "a", "scores": {"x": [0.1, None, True]}}, {"key": "b"}), {"a": b"\n\x00run", "b": b""}
    )
    assert unpack(pack(done)) == done


def test_a_fleet_of_results_travels_inside_its_reply(tmp_path):
    # Ray sends what is below 100 KB with the reply of a task; what is larger stays on the node until fetched.
    sweep(two_points(seeds=4, grid={"source.p": [0.2]}), tmp_path)
    rows = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "rows").iterdir()]
    sent = [{name: row[name] for name in row if name not in ("recipe", "seed")} for row in rows]
    assert len(sent) == 4
    assert len(pack(Done(tuple(sent), {}))) < 50_000 * 4 / FLEET


def test_numbers_ray_would_refuse_are_refused_at_once():
    with pytest.raises(ValueError, match="gpus_per_task is -1, expected at least 0"):
        Cluster("auto", gpus_per_task=-1)
    with pytest.raises(ValueError, match="cpus_per_task is 0, expected at least 1"):
        Cluster("auto", cpus_per_task=0)
    assert (Cluster("auto").device, Cluster("auto", gpus_per_task=0.5).device) == ("cpu", "cuda")


def test_an_address_without_a_cluster_is_named(tmp_path):
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"no Ray cluster answers at {address}"):
            sweep(tiny(seeds=1), tmp_path, cluster=Cluster(address))


def test_nothing_to_do_asks_for_no_cluster():
    assert list(on_ray([], lambda task: Done((), {}), Cluster("no-such-host:1"))) == []
