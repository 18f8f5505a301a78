"""Words about learning coefficients: at saddles, where chains have not mixed, and of a constant loss."""

import pytest
import torch
from models_by_hand import LOG_P
from probing_cases import CHAIN, probe_quickly, run_of, says

import mechmarkov as mm
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.probes import degeneracy


@pytest.fixture(autouse=True, scope="module")
def _fewer_chains():
    """Fewer and shorter chains than by default."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"CHAINS": 4, "BURN_IN": 200, "DRAWS": 400}.items():
            patch.setattr(degeneracy, name, value)
        yield


@pytest.fixture(scope="module")
def scaled():
    """The exact table of a chain with all weights trained, embedded at scales of no effect."""

    def told(scale):
        model = direct_table(LOG_P, n_ctx=4)
        with torch.no_grad():
            model.embed.W_E.mul_(scale)
            model.unembed.W_U.div_(scale)
        outcome = probe_quickly(run_of(model, source=CHAIN), ["degeneracy"], sequences=512)["degeneracy"]
        return outcome.claims.first("has_learning_coefficient"), outcome

    return {scale: told(scale) for scale in (1.0, 40.0, 2000.0)}


def test_a_scale_of_weights_changes_no_coefficient_that_is_shown(scaled):
    """A change of coordinates changes none: told were 8.26 (6.6 to 9.91) and 3.97 (3.18 to 4.76) of one."""
    assert scaled[1.0][0].status == "shown"
    shown = [claim.interval for claim, _ in scaled.values() if claim.is_shown]
    assert max(low for low, _ in shown) <= min(high for _, high in shown)
    assert {claim.status for claim, _ in scaled.values()} == {"shown", "open"}


def test_chains_that_have_not_mixed_leave_it_open(scaled):
    claim, outcome = scaled[2000.0]
    assert outcome.scores["mixed"].value is False
    assert not claim.holds("chains agree")
    assert says(outcome.verdict, "open", "not mixed")


@pytest.mark.parametrize("P", [[[0.8, 0.2], [0.4, 0.6]], [[0.1, 0.9], [0.7, 0.3]]])
def test_at_a_saddle_there_is_no_coefficient(P):
    """It was told as "is −5.9", which no learning coefficient can be."""
    source = mm.Chain(P)
    model = direct_table(torch.zeros(2, 2), n_ctx=4)
    with torch.no_grad():
        model.embed.W_E.zero_()
        model.get_parameter("unembed.b_U").copy_(torch.tensor(source.pi).log())
    outcome = probe_quickly(run_of(model, source=source), ["degeneracy"], sequences=64)["degeneracy"]
    claim = outcome.claims.first("has_learning_coefficient")
    assert claim.status == "open"
    assert claim.holds("below the loss here")
    assert says(outcome.verdict, "no minimum", "no learning coefficient")


def test_a_loss_that_no_weight_changes_has_coefficient_zero():
    model = direct_table(0 * LOG_P, n_ctx=4)
    with torch.no_grad():
        model.embed.W_E.zero_()
    run = run_of(model, source=CHAIN, trainable={"unembed.W_U": None})
    outcome = probe_quickly(run, ["degeneracy"], sequences=64)["degeneracy"]
    claim = outcome.claims.first("has_learning_coefficient")
    assert claim.value == pytest.approx(0, abs=1e-9)
    assert not claim.holds("below the loss here")
