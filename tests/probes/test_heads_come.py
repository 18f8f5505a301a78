"""Heads of a circuit are events of training, where every sequence has a chain of its own."""

import pytest

import mechmarkov as mm

pytestmark = pytest.mark.usefixtures("few_nulls", "one_term")


def came(name):
    run = mm.example(name)
    kept = [int(step) for step in run.steps]
    result = mm.probe(run, probes=["dynamics"], steps=[kept[0], kept[-9], kept[-1]], sequences=16)
    return result["dynamics"].data, result.claims.where("came_by", status="shown")


def test_both_halves_of_an_induction_circuit_come():
    data, claims = came("induction")
    names = {claim.object[0] for claim in claims}
    assert {"previous_token_head", "induction_head"} <= names
    first = data.sel(event=["previous_token_head", "induction_head"])["progress"][0].values
    assert (abs(first) < 0.1).all()  # the first model's attention is nearly uniform


def test_a_head_along_the_graph_comes():
    data, claims = came("graph")
    assert "graph_head" in {claim.object[0] for claim in claims}
    assert "graph_head" not in came("walk")[0]["event"].values
    assert float(data["progress"].sel(event="graph_head")[-1]) > 0.9
