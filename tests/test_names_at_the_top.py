"""What `mm.` offers: few names, lists of what there is, and where renamed things are."""

import subprocess
import sys

import pytest

import mechmarkov as mm


def test_there_are_few_names():
    assert len(dir(mm)) <= 52
    assert all(hasattr(mm, name) for name in dir(mm))


@pytest.mark.parametrize("kind", ["recipes", "sweeps", "examples", "probes", "methods"])
def test_what_there_is_can_be_listed(kind):
    assert list(getattr(mm, kind)())


def test_probes_are_listed_before_and_after_one_is_loaded():
    code = """
import mechmarkov as mm
first = mm.probes()
import mechmarkov.probes.behaviour
assert mm.probes() == first and "behaviour" in first
assert mm.probes.behaviour.probe.name == "behaviour"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "now"),
    [("compare", "write_comparison"), ("Switch", "sources.Switch"), ("Member", "training.Member")],
)
def test_a_renamed_thing_is_told_where_it_is(name, now):
    with pytest.raises(AttributeError, match=rf"it is mm\.{now}$"):
        getattr(mm, name)
    with pytest.raises(AttributeError, match=r"'nothing'$"):
        _ = mm.nothing


def test_a_model_is_had_by_either_name():
    run = mm.example("trap")
    assert run.decoder is not None
    assert mm.Run.decoder is mm.Run.model
    assert run.model().config == run.config
