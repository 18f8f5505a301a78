"""Datasets kept on disk: the same answer, one file a content, and a damaged one is measured again."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import xarray as xr
from probing_cases import random_run

import mechmarkov as mm
from mechmarkov.catalogue.probes import registered
from mechmarkov.probing import subject
from mechmarkov.probing.probe import load_probe
from mechmarkov.utils import kept_data

DATA = xr.Dataset(
    {"loss": (("seed", "head"), np.array([[0.5, np.nan]]), {"unit": "nats"}), "kind": ("seed", ["saddle"])},
    coords={"seed": [0], "component": ("head", np.array(["L0H0", "bias"], dtype=object))},
    attrs={"labels": ["a", "b"], "sampled": True, "sequences": 8, "share": 0.25},
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kept_data.VARIABLE, str(tmp_path / "nulls"))
    return tmp_path / "nulls"


def refuse():
    raise AssertionError("measured again")


def test_what_was_measured_is_read_back_as_it_was(folder):
    assert kept_data.kept("one.npz", lambda: DATA) is DATA
    assert kept_data.kept("one.npz", refuse).identical(DATA)
    assert [path.name for path in folder.iterdir()] == ["one.npz"]


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other", "folder"])
def test_a_damaged_file_is_measured_and_written_again(folder, damage):
    kept_data.kept("one.npz", lambda: DATA)
    path = folder / "one.npz"
    content = bytearray(path.read_bytes())
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        flipped = content[:200] + bytes(255 - byte for byte in content[200:260]) + content[260:]
        path.write_bytes({"empty": b"", "cut": content[:300], "flipped": flipped, "other": b"text"}[damage])
    assert kept_data.kept("one.npz", lambda: DATA).identical(DATA)
    if damage != "folder":
        assert kept_data.kept("one.npz", refuse).identical(DATA)


def test_a_pickle_is_never_loaded(folder):
    folder.mkdir()
    np.savez(folder / "one.npz", header=np.array([{"a": 1}], dtype=object))
    assert kept_data.kept("one.npz", lambda: DATA) is DATA


def test_what_does_not_read_back_is_not_kept(folder):
    odd = DATA.assign_attrs(by_state={1: "a"})  # JSON has no keys but texts
    assert kept_data.kept("one.npz", lambda: odd) is odd
    assert not list(folder.iterdir())


def test_two_at_once_leave_one_whole_file(folder):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: kept_data.kept("one.npz", lambda: DATA), range(32)))
    assert all(one.identical(DATA) for one in found)
    assert [path.name for path in folder.iterdir()] == ["one.npz"]


def test_off_writes_nothing_and_a_folder_that_cannot_be_made_is_no_error(folder, monkeypatch):
    monkeypatch.setenv(kept_data.VARIABLE, "off")
    assert kept_data.folder() is None
    assert kept_data.kept("one.npz", lambda: DATA) is DATA
    folder.write_text("a file", "utf-8")
    monkeypatch.setenv(kept_data.VARIABLE, str(folder / "inside"))
    assert kept_data.kept("one.npz", lambda: DATA) is DATA


# In one layer no head feeds another, so that `induction` has no null there.
@pytest.mark.parametrize(
    ("example", "probes"),
    [("walk", None), pytest.param("induction", ["induction", "program"], marks=pytest.mark.system)],
)
def test_every_probe_gives_the_same_scores_with_kept_data(folder, example, probes, monkeypatch):
    monkeypatch.setattr(subject, "NULL_MODELS", 2)
    run = mm.example(example)
    first = mm.probe(run, probes, sequences=32)
    files = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    second = mm.probe(run, probes, sequences=32)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == files
    assert len(files) == sum(outcome.null is not None for outcome in first.values())
    assert not first.failed
    for name, outcome in first.items():
        assert outcome.scores == second[name].scores, name


def test_a_user_without_a_home_keeps_nothing_in_the_current_folder(monkeypatch):
    monkeypatch.delenv(kept_data.VARIABLE)
    monkeypatch.setattr(kept_data.platformdirs, "user_cache_dir", lambda name: f"~/.cache/{name}")
    assert kept_data.folder() is None


def test_runs_of_one_kind_share_files_and_others_have_their_own(folder):
    def files(run, **options):
        mm.probe(run, ["attention"], sequences=32, **options)
        return len(list(folder.iterdir()))

    run, other = random_run("plain"), random_run("plain")
    object.__setattr__(other, "states", {name: 2 * value for name, value in run.states.items()})
    assert files(run) == 1
    assert files(other) == 1
    assert files(run, seed=1) == 2  # other sequences
    assert files(random_run("LN and MLP")) == 3
    for count, kind in ((4, "gd"), (5, "adamw")):  # of which `symmetry` asks what it leaves alone
        assert files(dataclasses.replace(run, recipe={"optimiser": {"kind": kind}})) == count


def test_a_probe_from_elsewhere_is_not_kept(folder):
    ours = load_probe(next(iter(registered())))
    own = dataclasses.replace(ours, name="own")
    mm.probe(random_run("plain"), [own], sequences=32)
    assert not folder.exists()


def test_another_content_has_another_name():
    one, two = torch.zeros(2, 3), torch.zeros(3, 2)
    assert kept_data.name_of(["a"], {"x": one}) == kept_data.name_of(["a"], {"x": one.clone()})
    names = {kept_data.name_of(*of) for of in ((["a"], {"x": one}), (["b"], {"x": one}), (["a"], {"x": two}))}
    assert len(names) == 3


@pytest.mark.parametrize("library", ["torch", "numpy", "scipy", "xarray", "numba", "llvmlite"])
def test_another_version_of_what_computes_is_another_name(library, monkeypatch):
    before = kept_data.name_of(["a"], {})
    installed = kept_data.version
    monkeypatch.setattr(kept_data, "version", lambda name: installed(name) + "+1" * (name == library))
    kept_data.code.cache_clear()
    try:
        assert kept_data.name_of(["a"], {}) != before
    finally:
        kept_data.code.cache_clear()


def test_starts_that_draw_the_same_models_have_names_of_their_own(folder):
    """Null models of a start at zero are those of no start at all, and `symmetry` asks which it was."""
    run = random_run("plain")
    for count, init in enumerate([None, {"scheme": "zero"}, {"scheme": "normal", "std": 0.02}], start=1):
        recipe = None if init is None else {"init": init}
        mm.probe(dataclasses.replace(run, recipe=recipe), ["attention"], sequences=32)
        assert len(list(folder.iterdir())) == count
