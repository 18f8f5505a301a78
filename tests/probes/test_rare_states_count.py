"""States that sequences hardly show count in what every probe says of the best law."""

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.models.constructions.lookup_tables import content_table, direct_table

RARE = np.array([[0.5, 0.45, 0.05], [0.45, 0.5, 0.05], [0.0005, 0.0005, 0.999]])
TABLE = torch.tensor(np.log(RARE), dtype=torch.float32)


def asked(model):
    run = mm.Run.from_model(model, source=mm.Chain(RARE.tolist()))
    return mm.probe(run, probes=["behaviour", "symmetry", "landscape"], sequences=16).claims


@pytest.mark.usefixtures("few_nulls")
def test_a_table_that_is_wrong_after_rare_states_is_near_nothing():
    claims = asked(content_table(TABLE, 12))
    missed = claims.first("reaches").value
    point = claims.first("is_at")
    assert missed > 0.01
    assert point.status == "open"
    assert point.condition("near the best").value == pytest.approx(missed, rel=0.1)
    assert claims.first("is_trapped_by").condition("near the best") is None


@pytest.mark.usefixtures("few_nulls")
def test_the_exact_table_is_at_its_minimum():
    claims = asked(direct_table(TABLE, 12))
    assert claims.first("is_at", status="shown").object == ("minimum",)
    assert claims.first("is_trapped_by").condition("near the best")
