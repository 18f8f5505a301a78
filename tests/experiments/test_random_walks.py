"""The first experiment: its quick run."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.claims import wilson
from experiments.random_walks.run import MEASUREMENTS

FOLDER = Path(__file__).parents[2] / "experiments" / "random_walks"


@pytest.fixture(scope="module")
def quick():
    return [claim for measure in MEASUREMENTS.values() for claim in measure(True).claims]


def test_every_measurement_gives_claims_with_the_expected_verdicts(quick):
    verdicts = {claim.name: set() for claim in quick}
    for claim in quick:
        verdicts[claim.name].add(claim.verdict)
    assert verdicts == {
        "learned": {"holds"},
        "trapped": {"holds"},
        "rounding": {"holds with a correction"},
        "direction": {"holds with a correction"},
        "first_step": {"holds"},
    }


def test_a_wrong_run_does_not_hold(monkeypatch):
    # An untrained model has neither the accuracy nor the attention: the check must be able to fail.
    import mechmarkov as mm
    from experiments.random_walks import run as module

    train = mm.train

    def barely(recipe, seed):
        changes = ["optimiser.lr=1e-6", "checkpoints=[5, 50]"]
        return train(mm.load_recipe(recipe).with_set(changes), seed=seed)

    monkeypatch.setattr(mm, "train", barely)
    assert {claim.verdict for claim in module.learned(True).claims} == {"does not hold"}


def test_only_one_measurement_by_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.random_walks", "--quick", "--only", "trapped"],
        capture_output=True,
        text=True,
        cwd=FOLDER.parents[1],
        check=True,
    )
    rows = done.stdout.strip().splitlines()[:4]
    assert all("**holds**" in row for row in rows[2:])


def test_wilson_interval_against_its_formula():
    n, hits, z = 200, 90, 1.959963984540054
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * (hits * (n - hits) / n + z * z / 4) ** 0.5
    assert wilson(hits, n) == pytest.approx((centre - half, hits / n, centre + half), rel=1e-9)
