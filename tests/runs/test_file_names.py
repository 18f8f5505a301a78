"""Files whose names are bytes that are no UTF-8, as under an ASCII locale every name with an accent is."""

import json
import os
import sys

import pytest
import torch

import mechmarkov as mm
from mechmarkov.cli import main

NAME = os.fsdecode(b"a\xf6\xff")
RUN = mm.example("walk")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")


def same(one, other):
    return all(torch.equal(value, other.states[name]) for name, value in one.states.items())


def test_a_run_and_a_folder_of_any_name_are_written_and_read(tmp_path):
    RUN.save(tmp_path / NAME)
    assert same(mm.load(tmp_path / NAME), RUN)
    folder = tmp_path / f"{NAME}.d"
    RUN.save_folder(folder)
    assert same(mm.load(folder), RUN)
    assert mm.load(folder).recipe == RUN.recipe


def test_a_training_of_any_name_is_read_by_the_next_call(tmp_path):
    recipe = mm.load_recipe("binary-p05-q08-tied").with_set(["steps=2", "checkpoints=[]"])
    first = mm.train(recipe, out=tmp_path / NAME, device="cpu")
    assert same(mm.train(recipe, out=tmp_path / NAME, device="cpu"), first)


def test_a_sweep_of_any_name_goes_on(tmp_path):
    data = {"name": "tiny", "recipe": "binary-p05-q08-tied", "set": {"steps": 2, "checkpoints": []}}
    first = mm.sweep(data, tmp_path / NAME, device="cpu")
    again = mm.sweep(data, tmp_path / NAME, device="cpu")
    assert (first.trained, again.trained) == (1, 0)
    assert again.table.equals(first.table)


def test_a_probe_of_any_name_is_told_in_letters_that_there_are(tmp_path, capsys):
    RUN.save(tmp_path / NAME)
    out = tmp_path / f"{NAME}.report"
    main(["probe", str(tmp_path / NAME), "--probes", "attention", "--out", str(out)])
    capsys.readouterr()
    assert r"a\udcf6\udcff" in json.loads((out / "summary.json").read_text("utf-8"))["run"]["file"]
    assert (out / "report.html").read_text("utf-8").rstrip().endswith("</html>")
    assert (out / "results.nc").stat().st_size > 1000


def test_a_name_that_the_locale_has_no_bytes_for_is_said_so(monkeypatch):
    def encode(text):
        return text.encode("ascii")

    monkeypatch.setattr(os, "fsencode", encode)
    with pytest.raises(ValueError, match=r"^path is 'w\\xe4lk.pt', expected a path in ascii: run Python"):
        mm.load("w\xe4lk.pt")
