"""Ctrl-C while probes are asked: what had finished is written, and the rest is said."""

import json
import os
import signal

import pytest
from distributions import install

import mechmarkov as mm
from mechmarkov.catalogue.probes import GROUP
from mechmarkov.cli import main
from mechmarkov.cli._probe import page_name
from mechmarkov.probe_run import ProbingInterruptedError
from mechmarkov.probing import Probe

STOPS = """
import os, signal, time
import xarray as xr
from mechmarkov.probing import Probe

PARENT = {parent}

def measure(subject):
    if os.getpid() != PARENT:  # the probe next to it ends first
        time.sleep(3)
    os.kill(PARENT, signal.SIGINT)
    time.sleep(1)
    return xr.Dataset(coords={{subject.axis: subject.coordinates}})

probe = Probe("stops", "Does it stop?", "", measure=measure, has_null=lambda _: False)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A probe of another package that interrupts this process, as Ctrl-C does."""
    site = tmp_path_factory.mktemp("site")
    install(site, "stopping", GROUP, "stops = stops:probe", stops=STOPS.format(parent=os.getpid()))
    return site


@pytest.fixture
def _stops(site, monkeypatch):
    monkeypatch.syspath_prepend(site)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins without one
    yield
    signal.signal(signal.SIGINT, before)


def probe(*words):
    with pytest.raises(SystemExit) as left:
        main(["probe", *map(str, words)])
    return left.value.code


@pytest.mark.usefixtures("_stops", "few_nulls")
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.system)])
def test_what_had_finished_is_written(jobs, tmp_path, capsys):
    out = tmp_path / "out"
    names = "attention,stops,dynamics"
    assert probe("--example", "walk", "--probes", names, "--jobs", jobs, "--out", out) == 130
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert "attention" in summary["probes"]
    assert summary["skipped"]["stops"] == "interrupted before it was answered"
    assert (out / "report.html").stat().st_size > 100_000
    told = capsys.readouterr().err.splitlines()
    assert told[-2].startswith("interrupted: what had finished is in ")
    assert told[-1].startswith("  mechmarkov probe --example walk --probes stops")
    assert told[-1].endswith(f"--out {out}-rest")


@pytest.mark.usefixtures("_stops", "few_nulls")
def test_other_runs_are_named_too(tmp_path, capsys):
    runs = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for run in runs:
        mm.example("walk").save(run)
    words = [*runs, "--probes", "attention,stops", "--jobs", 1, "--out", tmp_path / "out"]
    assert probe(*words) == 130
    assert (tmp_path / "out" / "a" / "summary.json").is_file()
    assert not (tmp_path / "out" / "b").exists()
    told = capsys.readouterr().err.splitlines()
    assert told[-2].startswith(f"  mechmarkov probe {runs[0]} --probes stops --out")
    assert told[-1].startswith(f"  mechmarkov probe {runs[1]} --probes attention,stops --out")


@pytest.mark.usefixtures("_stops", "few_nulls")
def test_nothing_is_written_where_nothing_had_finished(tmp_path, capsys):
    assert probe("--example", "walk", "--probes", "stops", "--jobs", 1, "--out", tmp_path / "out") == 130
    assert capsys.readouterr().err.split() == ["interrupted"]
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("few_nulls")
def test_in_python_the_error_has_the_result():
    def measure(subject):
        raise KeyboardInterrupt

    stops = Probe("stops", "Does it stop?", "", measure=measure)
    with pytest.raises(ProbingInterruptedError) as stopped:
        mm.probe(mm.example("walk"), ["attention", stops], sequences=8)
    assert list(stopped.value.result) == ["attention"]
    assert stopped.value.left == ["stops"]
    assert isinstance(stopped.value, KeyboardInterrupt)


def test_a_run_keeps_its_name_on_its_page(tmp_path):
    run = tmp_path / "mine" / "run.pt"
    run.parent.mkdir()
    mm.example("walk").save(run)
    main(["probe", str(run), "--probes", "attention", "--sequences", "8", "--out", str(tmp_path / "out")])
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "<title>mine: " in page
    assert '<p class="summary">mine · ' in page


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("x/walk/run.pt", "walk"),
        ("x/walk/seed-3.pt", "walk/seed-3"),
        ("hf://owner/walk", "owner/walk"),
        ("x/shared", "shared"),
    ],
)
def test_names_are_those_of_folders(path, name):
    assert page_name(path) == name
