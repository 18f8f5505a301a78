"""The ends of a command: modules that are loaded, processes that measure, files that are written."""

import gc
import os
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import xarray as xr
from distributions import install

import mechmarkov as mm
from mechmarkov.catalogue.probes import GROUP
from mechmarkov.cli import main
from mechmarkov.probing import Probe
from mechmarkov.probing.probe import load_probe
from mechmarkov.report.save import save_all
from mechmarkov.sources.sampling import paths
from mechmarkov.utils.extras import CAN_COMPILE
from mechmarkov.utils.forked import can_fork

copies = pytest.mark.skipif(not can_fork(), reason="processes are copied on Linux alone")


def counting(folder):
    """A probe that leaves a file each time it measures, and one that reads its data."""

    def count(subject):
        (folder / str(len(list(folder.iterdir())))).touch()
        return xr.Dataset({"times": (subject.axis, [1.0])}, {subject.axis: subject.coordinates})

    def read(subject):
        return subject.result("count").rename(times="read")

    of_run = {"cites": "", "has_null": lambda _: False}
    return [
        Probe("read", "What was counted?", measure=read, after_others=True, **of_run),
        Probe("count", "How often?", measure=count, **of_run),
    ]


@copies
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_others_read_is_measured_once(jobs, tmp_path):
    result = mm.probe(mm.example("walk"), [*counting(tmp_path), "attention"], sequences=8, jobs=jobs)
    assert float(result["read"].data["read"][-1]) == 1.0
    assert len(list(tmp_path.iterdir())) == 1
    assert list(result.outcomes) == ["read", "count", "attention"]


@copies
@pytest.mark.usefixtures("few_nulls")
def test_the_times_of_events_wait_for_others(tmp_path):
    behaviour = load_probe("behaviour")

    def counted(subject):
        (tmp_path / f"{subject.axis} in {os.getpid()}").touch()
        return behaviour.measure(subject)

    asked = [replace(behaviour, measure=counted), "attention", "dynamics"]
    mm.probe(mm.example("walk"), asked, steps=[0, 50], sequences=8, jobs=2)
    assert len([*tmp_path.glob("step in *")]) == 1


def test_a_probe_may_have_any_name(tmp_path):
    def measure(subject):
        return xr.Dataset({"one": (subject.axis, [1.0])}, {subject.axis: subject.coordinates})

    names = ["first screen", "results.nc"]
    probes = [Probe(name, "Is it shown?", "", measure=measure, has_null=lambda _: False) for name in names]
    save_all({tmp_path / "out": mm.probe(mm.example("walk"), probes, sequences=8)}, jobs=2)
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert all(name in page for name in names)


def test_many_numbers_are_drawn_by_the_loop(monkeypatch):
    monkeypatch.setattr(paths, "_entries_so_far", 0)
    cpu = torch.device("cpu")
    assert paths.loops_for(cpu, paths.FEW_ENTRIES) is None
    assert paths.loops_for(torch.device("meta"), 1) is None
    assert (paths.loops_for(cpu, 1) is not None) is CAN_COMPILE


@copies
@pytest.mark.system
@pytest.mark.usefixtures("few_nulls")
def test_two_processes_tell_the_same_times():
    asked = {"probes": ["behaviour", "attention", "dynamics"], "steps": "all", "sequences": 8}
    one, two = (mm.probe(mm.example("walk"), jobs=jobs, **asked) for jobs in (1, 2))
    xr.testing.assert_identical(one["dynamics"].data, two["dynamics"].data)
    assert one.summary() == two.summary()


@copies
@pytest.mark.system
@pytest.mark.usefixtures("few_nulls")
def test_two_processes_write_the_same_files(tmp_path):
    result = mm.probe(mm.example("walk"), ["behaviour", "attention"], steps=[0, 50], sequences=8)
    for jobs in (1, 2):
        save_all({tmp_path / f"{jobs}-{run}": result for run in "ab"}, jobs=jobs)
    for run in "ab":
        first, second = (tmp_path / f"{jobs}-{run}" for jobs in (1, 2))
        assert (first / "report.html").read_bytes() == (second / "report.html").read_bytes()
        assert (first / "summary.json").read_bytes() == (second / "summary.json").read_bytes()
        arrays = [xr.open_datatree(one / "results.nc", engine="h5netcdf").load() for one in (first, second)]
        assert arrays[0].identical(arrays[1])


def lines_of(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


KILLS = """
import os, signal
import xarray as xr
from mechmarkov.probing import Probe
from mechmarkov.probing.probe import load_probe

def measure(subject):
    if os.getpid() != {parent}:
        os.kill(os.getpid(), signal.SIGKILL)
    return xr.Dataset(coords={{subject.axis: subject.coordinates}})

probe = Probe("kills", "Does it die?", "", measure=measure, has_null=lambda _: False)
"""


@copies
def test_a_killed_process_says_what_to_do(tmp_path, monkeypatch, capsys):
    install(
        tmp_path,
        "killing",
        GROUP,
        "kills = kills_itself:probe",
        kills_itself=KILLS.format(parent=os.getpid()),
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["probe", "--probes", "kills,attention", "--jobs", "2", "--out", str(tmp_path / "out")])
    assert capsys.readouterr().err == "error: a process was killed, possibly out of memory: use one job\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.system
def test_a_probe_of_few_sequences_loads_no_compiler():
    probe = "mm.probe(mm.example('induction'), ['behaviour'], sequences=64)"
    assert lines_of(f"import sys, mechmarkov as mm; {probe}; print('numba' in sys.modules)") == ["False"]


@pytest.mark.system
def test_only_a_process_of_our_own_collects_seldom():
    code = "import gc, sys; from mechmarkov.cli import main; sys.argv[1:] = ['probes']; main()"
    assert lines_of(f"{code}; print(gc.get_threshold())")[-1] == "(100000, 20, 50)"
    before = gc.get_threshold()
    main(["probes"])
    assert gc.get_threshold() == before


def test_the_package_runs_as_a_module(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mechmarkov", "list"])
    monkeypatch.delitem(sys.modules, "mechmarkov.__main__", raising=False)  # doctests import it; runpy warns
    runpy.run_module("mechmarkov", run_name="__main__")
    assert "walk-k6-half" in capsys.readouterr().out
