"""A run that is stopped goes on where it was; several processes give what one gives."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from distributions import install

import mechmarkov as mm
from mechmarkov.bench import Method, kept_cells, run
from mechmarkov.bench.draws import Cell, Draw
from mechmarkov.bench.kept_cells import KeptCells, name_of
from mechmarkov.bench.method import GROUP
from mechmarkov.runs import RunFileError

DRAW = Draw("direct", 0, "minimal")
KNOWN = ["eap", "difference-norm"]
TABLES = ("scores", "effects", "reasons")


def ones(case, by=1.0):
    return dict.fromkeys(case.nodes, by)


def equal(first, second, *, but=()):
    for name in TABLES:
        a, b = (getattr(found, name).drop(columns=but, errors="ignore") for found in (first, second))
        pd.testing.assert_frame_equal(a, b)


def test_what_is_kept_is_not_measured_again(tmp_path):
    first = run(KNOWN, ["direct", "belief"], 2, out=tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()}
    assert len(before) == 4
    equal(run(KNOWN, ["direct", "belief"], 2, out=tmp_path), first)
    assert {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()} == before
    more = run([*KNOWN, "zero-ablation"], ["direct"], 3, out=tmp_path)
    direct = first.scores.query("case == 'direct'").reset_index(drop=True)
    some = more.scores.query("method != 'zero-ablation' and seed < 2").reset_index(drop=True)
    key = ["method", "metric", "seed"]
    pd.testing.assert_frame_equal(*(x.sort_values(key).reset_index(drop=True) for x in (direct, some)))


def test_a_line_that_was_cut_off_is_measured_again(tmp_path):
    whole = run(KNOWN, ["direct"], 1, out=tmp_path)
    (path,) = (tmp_path / "cells").iterdir()
    for cut in (40, 400):
        path.write_bytes(path.read_bytes()[:-cut])
        equal(run(KNOWN, ["direct"], 1, out=tmp_path), whole, but=["seconds"])
        assert set(KeptCells(tmp_path / "cells").read(DRAW)) >= {
            name_of(DRAW, mm.bench.load_method(name)) for name in KNOWN
        }


def test_several_processes_give_what_one_gives(tmp_path):
    local = Method("local", "nodes", lambda case: ones(case), passes=lambda case: 3)  # no pickle has it
    asked = ["noise-nodes", "eap-qk", local], ["direct", "cancel", "belief"], 2
    equal(run(*asked, jobs=2, out=tmp_path), run(*asked), but=["seconds"])
    assert len(list((tmp_path / "cells").iterdir())) == 6


def test_a_cell_comes_back_as_it_was(tmp_path):
    effects, reasons = ["a", np.pi, -1e-300, *[None] * 7], ["a", "„why“", 0, True, math.inf, ""]
    cell = Cell([{"rank": 1 / 3, "declared": None, "own": True}], [effects], [reasons])
    kept = KeptCells(tmp_path / "new")
    assert kept.read(DRAW) == {}
    kept.add(DRAW, "x", cell)
    assert kept.read(DRAW) == {"x": cell}


@pytest.mark.parametrize(
    "wrong", ["[" * 100_000, {"scores": 1}, {"effects": [1]}, {"reasons": [["a", {}]]}, {"name": None}]
)
def test_a_line_of_another_form_is_left_out(tmp_path, wrong):
    kept = KeptCells(tmp_path)
    kept.add(DRAW, "x", Cell())
    line = (
        wrong
        if isinstance(wrong, str)
        else json.dumps({"name": "y", "scores": [], "effects": [], "reasons": []} | wrong)
    )
    with kept.file(DRAW).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    assert kept.read(DRAW) == {"x": Cell()}


def test_a_cell_with_other_columns_is_measured_again(tmp_path):
    whole = run(["noise-nodes"], ["direct"], 1, out=tmp_path)
    (file,) = (tmp_path / "cells").iterdir()
    line = json.loads(file.read_text("utf-8").strip())
    file.write_text(json.dumps(line | {"effects": [row[1:] for row in line["effects"]]}), "utf-8")
    equal(run(["noise-nodes"], ["direct"], 1, out=tmp_path), whole, but=["seconds"])


@pytest.mark.timeout(60)
def test_a_pipe_of_cells_is_refused_at_once(tmp_path):
    kept = KeptCells(tmp_path)
    os.mkfifo(kept.file(DRAW))
    with pytest.raises(RunFileError, match=f"^{kept.file(DRAW)}: is not a regular file$"):
        kept.read(DRAW)


def test_whatever_decides_a_cell_names_it():
    given = dict(zip(("name", "of", "claims"), ("a", "nodes", partial(ones, by=2.0)), strict=True))
    first = Method(**given)
    others = [
        Method(**given | {"claims": partial(ones, by=3.0)}),
        Method(**given | {"name": "b"}),
        Method(**given, metrics=("kl",)),
    ]
    assert name_of(DRAW, first) == name_of(DRAW, Method(**given))
    assert len({name_of(DRAW, method) for method in (first, *others)}) == 4
    assert len({name_of(Draw(case, 0, pairs), first) for case in "ab" for pairs in "cd"}) == 4


def test_what_no_file_decides_is_not_kept(tmp_path):
    by = 2.0
    method = Method("closed", "nodes", lambda case: ones(case, by))
    assert name_of(DRAW, method) is None
    assert name_of(DRAW, Method("odd", "nodes", partial(ones, by=object()))) is None
    run([method], ["direct"], 1, out=tmp_path)
    assert not (tmp_path / "cells").exists()


def test_a_strangers_changed_code_is_measured_again(tmp_path, monkeypatch):
    text = (
        "from mechmarkov.bench import Method\n"
        "def claims(case):\n"
        "    return dict.fromkeys(case.nodes, {})\n"
        "method = Method('stranger', 'nodes', claims)\n"
    )
    names = []
    for number in (1, 2, 2):
        place = tmp_path / str(len(names))
        install(place, "theirs", GROUP, "stranger = stranger:method", stranger=text.format(number))
        monkeypatch.syspath_prepend(place)
        sys.modules.pop("stranger", None)
        kept_cells._package.cache_clear()
        names.append(name_of(DRAW, import_module("stranger").method))
    assert names[0] != names[1]
    assert names[1] == names[2] is not None


def test_engines_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="jobs is 2, expected 1 with a cluster"):
        run(["eap"], ["direct"], 1, jobs=2, cluster=mm.Cluster("local"))
    with pytest.raises(TypeError, match=r"cluster is 'auto', expected mm.Cluster\(address\)"):
        run(["eap"], ["direct"], 1, cluster="auto")
    with pytest.raises(ValueError, match="jobs is 0, expected at least 1"):
        run(["eap"], ["direct"], 1, jobs=0)


@pytest.mark.system
def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    names = ["eap", "eap-ig", "edge-mask"]
    words = (
        f"import mechmarkov as mm; mm.bench.run({names}, ['direct', 'induction'], 3, out={str(tmp_path)!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", words])
    cells = tmp_path / "cells"
    try:
        while not (cells.exists() and len(list(cells.iterdir())) > 4):  # in the middle of the second case
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    before = {path: path.read_text("utf-8").splitlines() for path in cells.iterdir()}
    found = run(names, ["direct", "induction"], 3, out=tmp_path)
    for path, lines in before.items():
        assert path.read_text("utf-8").splitlines()[: len(lines) - 1] == lines[:-1]  # nothing is lost
        assert len(path.read_text("utf-8").splitlines()) - len(lines) <= 6  # nothing is done twice
    equal(found, run(names, ["direct", "induction"], 3), but=["seconds"])


@pytest.mark.system
def test_the_library_has_one_name_whatever_was_imported():
    import_probes = "import mechmarkov.probes.attention\n"
    ask = "from mechmarkov.utils.kept_data import code\nprint(code())"
    names = {
        subprocess.run([sys.executable, "-c", begin + ask], check=True, capture_output=True).stdout
        for begin in ("", import_probes)
    }
    assert len(names) == 1


@pytest.mark.system
def test_a_cluster_gives_what_one_process_gives(tmp_path):
    words = ["--methods", ",".join(KNOWN), "--cases", "direct,belief", "--seeds", "2", "--ray", "local"]
    command = [sys.executable, "-m", "mechmarkov", "bench", *words, "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=400)
    before = {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()}
    found = run(KNOWN, ["direct", "belief"], 2, out=tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()} == before
    equal(found, run(KNOWN, ["direct", "belief"], 2), but=["seconds"])


def test_each_draw_is_told_once_kept_or_not(tmp_path):
    told: list[list[str]] = []
    for methods in (["difference-norm"], ["difference-norm"], ["difference-norm", "zero-ablation"]):
        told.append([])
        run(methods, ["direct", "head"], 2, out=tmp_path, progress=told[-1].append)
    assert [sorted(cases) for cases in told] == [["direct", "direct", "head", "head"]] * 3
