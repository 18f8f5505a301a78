"""A result goes from one process to another, and a slice of its claims is claims."""

import pickle

import pytest

import mechmarkov as mm
from mechmarkov.probing.probe import load_probe

pytestmark = pytest.mark.usefixtures("few_nulls")


@pytest.fixture(scope="module")
def result():
    return mm.probe(mm.example("walk"), ["behaviour", "attention"], progress=False, sequences=64)


def own(_):
    return []


def test_a_pickled_result_gives_the_same_page(result, tmp_path):
    back = pickle.loads(pickle.dumps(result))
    assert back["attention"].probe is load_probe("attention")
    pages = [one.report(tmp_path / name).read_bytes() for name, one in (("a", result), ("b", back))]
    assert pages[0] == pages[1]
    assert back.summary() == result.summary()


def test_a_probe_of_ones_own_goes_along():
    probe = mm.Probe(name="attention", question="Mine?", cites="", claims=own)
    back = pickle.loads(pickle.dumps(probe))  # its name is that of another, which it must not become
    assert (back.question, back.claims) == ("Mine?", own)


def test_a_slice_of_claims_can_be_filtered(result):
    first = result.claims[:2]
    assert [*first] == [result.claims[0], result.claims[1]]
    assert [*first.where(probe="attention")] == [claim for claim in first if claim.probe == "attention"]
    assert len(first.to_dataframe()) == 2


def test_a_probe_without_claims_has_none(result):
    probe = mm.Probe(name="silent", question="?", cites="", claims=own)
    both = mm.probe(mm.example("walk"), [probe], progress=False, sequences=4)
    assert len(both.claims.where(probe="silent")) == len(result.claims.where(probe="silent")) == 0


def test_what_is_no_run_is_told_the_call():
    recipe, run = mm.load_recipe("walk-k6-half"), mm.example("walk")
    with pytest.raises(TypeError, match=r"^run is a Recipe, .*mm\.train\(recipe\) makes one$"):
        mm.probe(recipe)
    with pytest.raises(TypeError, match=r"^run is a list, .*: mm\.probe\(run\) asks one at a time"):
        mm.probe([run])
