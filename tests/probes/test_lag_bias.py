"""Heads that find a lag by a bias of their scores: what each probe says of them, and of wrong ones."""

import pytest
import torch
from induction_asked import REDRAWN, STICKY, asked, feeders_of, heads_of
from models_by_hand import LOG_P
from probing_cases import P3, names_in, probe_quickly, run_of, subject_of

from mechmarkov.certify import certify, checker, proof_of, verify
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.alibi import alibi
from mechmarkov.models.constructions.lag_biases import induction_pair_by_lag, lag_table
from mechmarkov.probing.recording import ATTENTION
from mechmarkov.sources import Chain

N_CTX = 12


@pytest.mark.parametrize("lag", [1, 3])
def test_a_head_by_lag_is_told_by_position(lag):
    result = probe_quickly(run_of(lag_table(LOG_P, N_CTX, lag)), ["attention", "program", "ablation"])
    attention, program = result["attention"], result["program"]
    assert attention.scores["best_lag"].value == lag
    assert attention.scores["position_share"].value == pytest.approx(1)
    ((subject, read),) = names_in(attention, "attends_to")
    assert (subject, "parent" in read) == (("L0H0",), lag == 1)
    assert names_in(attention, "attends_by") == []  # no token says where it looks
    assert program.scores["kl_by_weights"].value < 1e-8
    assert program.scores["explained"].value > 1 - 1e-4
    needed = result["ablation"].scores["largest_effect_component"].value
    assert needed == ("L0H0" if lag == 1 else None)  # the other applies the table to a wrong token


def test_a_pair_whose_first_head_has_a_bias_is_named():
    scores, said, _ = asked(induction_pair_by_lag(3, 32), REDRAWN)
    assert (feeders_of(said), heads_of(said)) == (("L0H0",), ("L1H0",))
    assert scores["previous_token_head"].value == "L0H0"
    assert scores["previous_token_score"].value == pytest.approx(1, abs=1e-6)
    # The first token carries itself: where it is the current one, it takes a match's share.
    assert 0.9 < scores["predecessor_effect"].value < 1


@pytest.mark.parametrize("source", [STICKY, REDRAWN], ids=["sticky", "redrawn"])
def test_a_bias_two_tokens_back_is_no_induction(source):
    scores, said, _ = asked(induction_pair_by_lag(3, 16, lag=2), source)
    assert said.first("is_induction_head").status == "excluded"
    assert (scores["induction_head"].value, scores["previous_token_head"].value) == (None, None)
    assert scores["predecessor_effect"].value == pytest.approx(0, abs=1e-6)


def test_alibi_alone_looks_at_what_is_near():
    """Without queries and keys a head's attention is a softmax of minus its slope times the lag."""
    shape = {"n_layers": 1, "d_model": 8, "n_ctx": 16, "d_head": 4, "d_vocab": 3, "attn_only": True}
    model = HookedDecoder(DecoderConfig(**shape, positional_embedding_type="alibi"))
    subject = subject_of(run_of(model), sequences=8)
    last = torch.from_numpy(subject.recorded(ATTENTION).last_mass[0, 0])
    expected = alibi(2, 16, torch.zeros(()).double()).softmax(-1).flip(-1)
    torch.testing.assert_close(last, expected, rtol=1e-5, atol=1e-7)


def test_a_certificate_of_a_bias_is_exact_and_checked():
    run = run_of(lag_table(LOG_P, N_CTX), source=Chain(P3))
    certificate = certify(run)
    assert certificate.program.name == "parent"
    assert certificate.worst_kl < 1e-9
    follows = verify(proof_of(certificate, 0), run)
    assert follows["worst_kl"] < 1e-9
    wrong = run_of(lag_table(LOG_P, N_CTX, lag=2), source=Chain(P3))
    assert certify(wrong).worst_kl > 0.1


def test_the_checker_has_the_models_biases():
    for kind in ("alibi", "relative_bias", "relative"):
        shape = {"n_layers": 1, "d_model": 6, "n_ctx": 9, "d_head": 2, "d_vocab": 3, "attn_only": True}
        model = HookedDecoder(DecoderConfig(**shape, positional_embedding_type=kind)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        weights = {name: value.numpy() for name, value in model.state_dict().items()}
        found = checker.Model(model.config, weights, 0.0).lag_bias()
        ours = model.blocks[0].attn.lag_bias(9)
        if found is None or ours is None:
            assert (found, ours, kind) == (None, None, "relative")
            continue
        assert (abs(found.mid.T - ours.detach().numpy()) <= found.rad.T).all()
