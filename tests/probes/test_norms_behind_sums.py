"""Probes of models with norms behind their sums: what a model without norms is known to be, they are."""

import numpy as np
import pytest
import torch
from conflicts import conflicts
from post_norm_twins import run_of, twin_of

import mechmarkov as mm
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import mlp_table, value_table

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]])
LOGS = torch.tensor(P).log().float()
# Those of the parameters' size, which a smaller stream changes, are not asked.
ALL = ["behaviour", "attention", "alignment", "storage", "ablation", "induction", "program"]
TABLE = value_table(LOGS, n_ctx=8)
LAST = {"norm_first": True, "final_norm": False}
CASES = {
    "a table in a head, few questions": (TABLE, mm.Chain(P), "L0H0", ["alignment", "storage"], {}),
    "a table in a head": (TABLE, mm.Chain(P), "L0H0", ALL, {}),
    "a table in a head, no last norm": (TABLE, mm.Chain(P), "L0H0", ALL, LAST),
    "a table in an MLP": (mlp_table(LOGS, n_ctx=8), mm.Chain(P), "L0.mlp", ALL, {}),
    "an induction pair": (induction_pair(3, 12), mm.DirichletChains(n_states=3), None, ALL, {}),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, marks=pytest.mark.system if CASES[case][3] is ALL else ()) for case in CASES],
)
def both(request):
    model, source, home, probes, places = CASES[request.param]
    runs = run_of(model, source=source), run_of(twin_of(model, **places), source=source)
    return *(mm.probe(run, probes, sequences=48) for run in runs), home


def test_every_score_is_that_of_the_model_without_norms(both):
    plain, twin, home = both
    assert twin.skipped.keys() == plain.skipped.keys()
    assert not twin.failed
    for name in plain:
        for score, expected in plain[name].scores.items():
            found = twin[name].scores[score]
            if isinstance(expected.value, float):
                assert found.value == pytest.approx(expected.value, rel=2e-3, abs=2e-3), (name, score)
            else:
                assert found.value == expected.value, (name, score)
    if home is not None:
        assert twin["storage"].scores["bigram_home"].value == home


def test_no_two_statements_disagree(both):
    assert conflicts(both[1]) == []
