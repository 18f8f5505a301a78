"""Methods and areas next to what their authors' own code gives (`benchmarks/circuit_peers.py`)."""

import json
from pathlib import Path

import numpy as np
import pytest
from authors_cases import CASES, random_claims

from mechmarkov.bench import METRICS
from mechmarkov.bench.faithfulness import score_circuits
from mechmarkov.bench.method import load_method

KEPT = json.loads(Path(__file__).with_name("authors_code.json").read_text())
CLOSE = 1e-7  # exact patching of theirs has a part in float32; gradients are equal to 1e-12


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return CASES[request.param]()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "name", ["eap", "eap-ig", "eap-clean-corrupt", "eap-ig-activations", "path-patching"]
)
def test_claims_are_those_of_the_authors_code(case, name, metric):
    theirs = KEPT[case.name][metric]["claims"][name]
    ours = load_method(name).claims(case.under(metric))
    assert set(ours) == set(theirs)
    largest = max(map(abs, KEPT[case.name][metric]["claims"]["path-patching"].values()))
    for edge, claim in theirs.items():
        assert ours[edge] == pytest.approx(claim, abs=CLOSE * largest), edge


@pytest.mark.parametrize("metric", METRICS)
def test_areas_are_those_of_the_code_of_mib(case, metric):
    ours = score_circuits(case.under(metric), random_claims(case))
    for area in ("cpr", "cmd"):
        assert ours[area] == pytest.approx(KEPT[case.name][metric][area], rel=CLOSE)


def test_the_other_mean_of_activations_is_another_claim(case):
    """Moving the sender only is not what the authors' code does."""
    theirs = KEPT[case.name]["kl"]["claims"]["eap-ig-activations"]
    ours = load_method("eap-ig-senders").claims(case.under("kl"))
    off = [abs(ours[edge] - theirs[edge]) for edge in theirs]
    assert max(off) > 0.05 * max(map(abs, theirs.values()))
    assert np.corrcoef([*theirs.values()], [ours[edge] for edge in theirs])[0, 1] > 0.8
