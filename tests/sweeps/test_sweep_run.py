"""A sweep from end to end: what is written, what a second call does, and how it ends."""

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sweep_cases import tiny, two_points

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.runs import RunFileError
from mechmarkov.runs.training_curve import training_curve
from mechmarkov.sweeps import SweepError, load_sweep, sweep
from mechmarkov.sweeps.spec import points
from mechmarkov.sweeps.store import Store
from mechmarkov.sweeps.tasks import Done, Item, Settings, Task, carry_out, member_key, with_runs
from mechmarkov.training.workload import Member

TIMED = ["seconds"]


def stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "rows").iterdir()}


def comparable(table):
    return table.drop_columns(TIMED).to_pylist()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "new" / "folder"
    return sweep(tiny(), folder)


def test_members_have_rows_in_their_order(finished):
    table = finished.table.select(["source.p", "source.q", "seed", "status", "step"]).to_pylist()
    assert [tuple(row.values()) for row in table] == [
        (p, q, seed, "ok", 4) for p in (0.2, 0.5) for q in (0.2, 0.8) for seed in (0, 1)
    ]
    assert pq.read_table(finished.folder / "table.parquet").equals(finished.table)
    assert sorted(path.name for path in finished.folder.iterdir()) == ["phase.html", "rows", "table.parquet"]


def test_a_member_is_the_run_trained_alone(finished):
    row = finished.table.to_pylist()[5]
    (point,) = [p for p in points(finished.sweep) if p.values == {"source.p": 0.5, "source.q": 0.2}]
    run = mm.train(point.recipe, seed=row["seed"])
    scores = mm.probe(run, ["behaviour"])["behaviour"].scores
    # Four steps in another stack: rounding, far below 1e-5 (float32).
    assert row["final_loss"] == pytest.approx(float(run.metrics["loss"]["value"][-1]), abs=1e-5)
    assert row["behaviour.kl_bigram"] == pytest.approx(scores["kl_bigram"].value, abs=1e-5)
    assert row["behaviour.kl_bigram.null_high"] == pytest.approx(scores["kl_bigram"].null[2], abs=1e-6)
    assert finished.table.schema.field("behaviour.kl_bigram").metadata == {b"unit": b"nats"}
    curve = json.loads((finished.folder / "rows" / f"{row['key']}.json").read_text("utf-8"))["curve"]
    assert curve["step"] == run.metrics["loss"]["step"].tolist()
    # kept with five digits
    assert curve["loss"] == pytest.approx(run.metrics["loss"]["value"].tolist(), abs=1e-4)


def test_a_curve_of_many_steps_is_their_means():
    steps = np.arange(1, 1001)
    loss = {"step": torch.from_numpy(steps), "value": torch.from_numpy(1.0 / steps)}
    curve = training_curve({"loss": loss})
    ends = curve["step"]
    assert len(ends) <= 50
    assert ends[-1] == 1000
    for start, end, mean in zip([0, *ends], ends, curve["loss"], strict=False):
        assert mean == pytest.approx((1.0 / steps[start:end]).mean(), rel=1e-4)
    assert training_curve({}) is None


def test_a_second_call_does_nothing_again(finished):
    before = stamps(finished.folder)
    again = sweep(tiny(), finished.folder)
    assert (again.trained, stamps(finished.folder)) == (0, before)
    assert again.table.equals(finished.table)


def test_only_what_is_missing_is_done(tmp_path):
    first = sweep(two_points(seeds=1), tmp_path)
    before = stamps(tmp_path)
    more = sweep(two_points(), tmp_path)
    assert (first.trained, more.trained) == (2, 2)
    after = stamps(tmp_path)
    assert {name: after[name] for name in before} == before
    lost = tmp_path / "rows" / f"{more.table['key'][3].as_py()}.json"
    lost.unlink()
    again = sweep(two_points(), tmp_path)
    assert again.trained == 1
    assert comparable(again.table)[:3] == comparable(more.table)[:3]
    for name, value in comparable(again.table)[3].items():
        # trained alone now, and in a stack before
        expected = comparable(more.table)[3][name]
        assert value == (pytest.approx(expected, abs=1e-5) if isinstance(expected, float) else expected)


def test_another_sweeps_folder_is_refused(tmp_path):
    table = tmp_path / "table.parquet"
    sweep(two_points(seeds=1), tmp_path)
    before = table.read_bytes(), stamps(tmp_path)
    said = rf"^{tmp_path} holds the table of another sweep \(1 of its 2 runs would be lost from it\): choose"
    with pytest.raises(SweepError, match=said):
        sweep(two_points(seeds=1, grid={"source.p": [0.2, 0.8]}), tmp_path)
    assert (table.read_bytes(), stamps(tmp_path)) == before
    pq.write_table(pq.read_table(table).select(["seed"]), table)  # of somebody else
    of_another = table.read_bytes()
    for content in (of_another, b"", b"mine"):
        table.write_bytes(content)
        with pytest.raises(SweepError, match=f"^{table} is not the table of a sweep: choose another folder"):
            sweep(two_points(seeds=1), tmp_path)
        assert table.read_bytes() == content


def test_an_interruption_keeps_the_written_rows(tmp_path, monkeypatch):
    class Stop(BaseException):
        pass

    kept = []
    keep = Store.keep

    def once(self, done, task):
        if kept:
            raise Stop
        kept.append(task)
        keep(self, done, task)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "keep", once)
        with pytest.raises(Stop):
            sweep(two_points(), tmp_path, fleet=3)
    assert len(stamps(tmp_path)) == 3
    assert not (tmp_path / "table.parquet").exists()
    assert sweep(two_points(), tmp_path, fleet=3).trained == 1


def test_later_scores_come_from_kept_runs(tmp_path):
    recipe = tiny(keep_runs=True, seeds=1, grid={"source.p": [0.2]}, phase=None)
    first = sweep(recipe, tmp_path)
    (path,) = (tmp_path / "runs").iterdir()
    written = path.stat().st_mtime_ns
    assert mm.load(path).recipe == points(load_sweep(recipe))[0].recipe.to_keep()
    more = sweep(recipe | {"probes": ["attention"]}, tmp_path)
    assert (more.trained, path.stat().st_mtime_ns) == (0, written)  # not trained again
    assert "1 were there already" in more.summary()[0]
    old, new = first.table.to_pylist()[0], more.table.to_pylist()[0]
    assert new["attention.parent_score"] is not None
    assert {name: new[name] for name in old if name not in TIMED} == {
        name: value for name, value in old.items() if name not in TIMED
    }
    assert sweep(recipe, tmp_path).table.column_names == more.table.column_names  # nothing is forgotten


def test_a_broken_kept_run_is_named_everywhere(tmp_path):
    recipe = tiny(keep_runs=True, seeds=1, grid={"source.p": [0.2]}, phase=None)
    sweep(recipe, tmp_path)
    (path,) = (tmp_path / "runs").iterdir()
    path.write_bytes(b"broken")
    with pytest.raises(RunFileError, match=f"^{path}: is not a file written by torch.save"):
        sweep(recipe | {"probes": ["attention"]}, tmp_path)
    member = Member(points(load_sweep(recipe))[0].recipe, 0)
    task = with_runs(Task(0, (Item(path.stem, member, run=path),)))
    assert task.items[0].run == b"broken"  # a node has no such folder
    with pytest.raises(RunFileError, match=f"^runs/{path.name}: is not a file written by torch.save"):
        carry_out(task, Settings(device="cpu"))


def test_wanted_runs_that_are_missing_are_made(tmp_path):
    recipe = tiny(seeds=1, grid={"source.p": [0.2]}, phase=None)
    sweep(recipe, tmp_path)
    assert not (tmp_path / "runs").exists()
    assert sweep(recipe | {"keep_runs": True}, tmp_path).trained == 1
    assert len([*(tmp_path / "runs").iterdir()]) == 1


def test_a_diverging_member_has_a_row(tmp_path):
    together = tiny(grid={"optimiser.lr": [1e-3, 1e6]}, phase=None)
    found = sweep(together, tmp_path / "together")
    rows = found.table.to_pylist()
    assert [row["status"] for row in rows] == ["ok", "ok", "diverged", "diverged"]
    assert "not finite" in rows[2]["message"]
    assert rows[2]["behaviour.kl_bigram"] is None
    assert rows[2]["stuck"] is None
    alone = sweep(together | {"grid": {"optimiser.lr": [1e-3]}}, tmp_path / "alone").table.to_pylist()
    for row, other in zip(rows, alone, strict=False):
        assert row["behaviour.kl_bigram"] == pytest.approx(other["behaviour.kl_bigram"], abs=1e-6)
    assert sweep(together, tmp_path / "together").trained == 0  # it would diverge again


def test_one_wrong_point_stops_all_before_writing(tmp_path):
    with pytest.raises(SweepError, match=r"point 3 \(source.p = 1.5, source.q = 0.2\)"):
        sweep(tiny(grid={"source.p": [0.2, 1.5], "source.q": [0.2, 0.8]}), tmp_path / "out")
    with pytest.raises(SweepError, match=r"probes has 'atention', did you mean attention\?"):
        sweep(tiny(probes=["atention"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_keys_tell_members_apart():
    found = points(load_sweep(tiny()))
    keys = {member_key(Member(point.recipe, seed)) for point in found for seed in range(3)}
    assert len(keys) == 12
    recipe = found[0].recipe
    again = mm.Recipe.from_data(json.loads(json.dumps(recipe.to_data())))
    assert member_key(Member(again, 1)) == member_key(Member(recipe, 1))
    assert Done((), {}) == Done((), {})


def test_the_command_ends_with_the_picture(tmp_path, capsys):
    path = tmp_path / "tiny.toml"
    path.write_text(
        'name = "tiny"\nrecipe = "binary-p05-q08-tied"\ngrid.source.p = [0.2]\ngrid.source.q = [0.2, 0.8]\n'
        "set.model.n_ctx = 8\nset.data.batch = 4\nset.steps = 2\nset.checkpoints = []\n"
        'phase = { x = "source.p", y = "source.q" }\n',
        "utf-8",
    )
    main(["sweep", str(path), "--out", str(tmp_path / "out"), "--device", "cpu"])
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert lines[0] == "tiny: 2 runs, 2 points of 1 seed"
    # p + q = 1 tells nothing
    assert lines[1].startswith("stuck below half of the gain over the unigram: 1 of 1 (0.207 to 1.000")
    why = "the unigram is as good as the bigram here"
    assert lines[2] == f"undecided whether stuck: 1 run, as {why}"
    assert f"<td>undecided: {why}</td>" in (tmp_path / "out" / "phase.html").read_text("utf-8")
    assert lines[3:] == [str(tmp_path / "out" / "table.parquet"), str(tmp_path / "out" / "phase.html")]
    assert output.err == ""  # no progress where nobody looks


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such"], "no shipped sweep is called 'no-such'"),
        (
            ["binary-phase", "--gpus-per-task", "1"],
            "--gpus-per-task is an option of Ray, but no cluster is given",
        ),
        (
            ["binary-phase", "--device", "cuda", "--ray", "auto"],
            "device is 'cuda', expected 'cpu' on a cluster",
        ),
    ],
)
def test_the_command_refuses_in_one_line(arguments, said, capsys, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["sweep", *arguments, "--out", str(tmp_path / "out")])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")
    assert not (tmp_path / "out").exists()


def test_a_misspelt_field_is_named_with_its_file(capsys, tmp_path):
    path = tmp_path / "typo.toml"
    path.write_text(
        'name = "typo"\nrecipe = "walk-k6-half"\ngrid.source.p = [0.2]\nset.checkpionts = []\n', "utf-8"
    )
    with pytest.raises(SystemExit):
        main(["sweep", str(path), "--out", str(tmp_path / "out")])
    said = f"error: {path}: set: unknown key checkpionts, did you mean checkpoints"
    assert capsys.readouterr().err.startswith(said)
    assert not (tmp_path / "out").exists()


def test_progress_is_a_table_that_grows(tmp_path, capsys):
    sweep(tiny(seeds=1), tmp_path, fleet=3, progress=True)
    output = capsys.readouterr()
    assert output.out == ""
    lines = [line for line in output.err.replace("\r", "\n").splitlines() if re.match(r" +\d/2 ", line)]
    # fleet, runs, diverged, stuck (one point of each cannot be told: p + q = 1), seconds, all runs
    assert [[*line.split()[:6], line.split()[-1]] for line in lines] == [
        ["1/2", "3", "0", "2", "of", "2", "3/4"],
        ["2/2", "1", "0", "1", "of", "1", "4/4"],
    ]


def test_recipes_that_train_a_part_can_be_swept(tmp_path):
    part = {"unembed.b_U": None, "embed.W_E": [[0, 2], [0, 4]]}
    found = sweep(
        tiny(grid={"model.tied": [False]}, phase=None, set={**tiny()["set"], "trainable": part}), tmp_path
    )
    assert found.table["status"].to_pylist() == ["ok", "ok"]
