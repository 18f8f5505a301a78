"""Public objects say in short what they are, and what to do next."""

import pytest

import mechmarkov as mm
from mechmarkov.certify import certify
from mechmarkov.curvature.loss_surface import loss_surface
from mechmarkov.curvature.population import population_of
from mechmarkov.probing.probe import load_probe


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    run = mm.example("walk")
    result = mm.probe(run, ["attention"], sequences=64)
    return {
        "run": run,
        "result": result,
        "outcome": result["attention"],
        "claims": result.claims,
        "claim": result.claims[0],
        "score": result["attention"].scores["parent_score"],
        "figure": result["attention"].figures()[0],
        "probe": load_probe("attention"),
        "subject": (subject := mm.Subject.of(run, sequences=8)),
        "surface": loss_surface(subject),
        "population": population_of(subject),
        "recipe": mm.load_recipe("walk-k6-half"),
        "sweep": mm.load_sweep("binary-phase"),
        "certificate": certify(run),
        "tokens": mm.tokens(mm.example("induction"), [0, 1, 2]),
        "source": run.source,
        "cluster": mm.Cluster("local"),
        "config": run.config,
        "recorder": mm.Recorder(tmp_path_factory.mktemp("recorded") / "run.pt", source=run.source),
    }


def test_each_is_short_and_begins_with_its_class(objects):
    for name, one in objects.items():
        text = repr(one)
        assert text.startswith(f"{type(one).__name__}("), name
        assert " at 0x" not in text, name
        assert len(text) < 900, name
        assert max(map(len, text.splitlines())) < 600, name


CALLS = ("run", "result", "claims", "probe", "subject", "recipe", "sweep", "certificate", "tokens")


@pytest.mark.parametrize("name", CALLS)
def test_the_last_line_says_what_to_do_next(objects, name):
    last = repr(objects[name]).splitlines()[-1]
    assert last.startswith("  ")
    assert "(" in last or " ." in last


def test_a_claim_has_its_number(objects):
    assert repr(objects["claim"]) == (
        "Claim(shown: L0H0 attends_to parent previous token (1 probability), said by attention)"
    )


def test_pictures_are_all_that_show_lists():
    assert dir(mm.show) == ["attention", "circuit", "kernel", "trajectory"]


def test_a_printed_source_is_its_title():
    assert str(mm.Circle(n_states=6, p=0.5)) == "Circle walk on 6 states, p = 0.5"
