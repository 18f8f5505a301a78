"""Circuits of tables and counts of several tokens, set by hand: each is named, with its lags."""

import numpy as np
import pytest
import torch
from probing_cases import probe_quickly, run_of

from mechmarkov.models.constructions.n_grams import k_gram_counter, n_gram_model
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.sources import DirichletChains, OrderK


@pytest.mark.parametrize(
    ("form", "heads"), [("heads", ["L0H0", "L0H1"]), ("layers", ["L0H0", "L1H0"]), ("digits", ["L0H0"])]
)
def test_the_heads_of_a_trigram_table_are_named_with_their_lags_and_are_needed(form, heads):
    kernel = np.random.default_rng(3).dirichlet(np.full(3, 0.5), size=(3, 3))
    run = run_of(n_gram_model(kernel, 10, form=form), source=OrderK(kernel.tolist()))
    result = probe_quickly(run, ["behaviour", "attention", "program", "ablation"])
    assert result["behaviour"].scores["nearest_predictor"].value == "order_2"
    best = result["program"].claims.first("explains", subject="best program found")
    assert best.value > 0.9999
    terms = [set(premise.words) for premise in best.because if premise.name == "term"]
    assert {"Table", "current token", "previous token"} in terms
    looks = result["attention"].claims.where("attends_to", status="shown")
    if form == "digits":  # the older of two tokens is the larger digit
        assert [(claim.subject, claim.object[-1]) for claim in looks] == [(("L0H0",), "previous token")]
        assert looks[0].value == pytest.approx(0.75, abs=1e-3)
    else:
        said = {claim.subject[0]: (claim.object[-1], round(claim.value, 4)) for claim in looks}
        assert said == {heads[0]: ("current token", 1), heads[1]: ("previous token", 1)}
    assert result["ablation"].scores["largest_effect_component"].value == heads[-1]
    assert heads[-1] in result["ablation"].claims.first("is_needed_most", status="shown").subject


@pytest.mark.parametrize("order", [1, 2])
def test_the_counting_head_is_an_induction_head_of_its_order_that_an_mlp_feeds(order):
    source = DirichletChains(n_states=2, order=order, start="uniform")
    run = run_of(k_gram_counter(2, 16, order=order), source=source, objective=Objective(kind="raw_log"))
    result = probe_quickly(run, ["induction"])["induction"]
    scores = {key: score.value for key, score in result.scores.items()}
    assert scores["induction_head"] == "L1H0"
    assert scores["predecessor_effect"] > 0.8
    assert (scores["induction_score_2"] > 0.1) == (order == 2)
    assert scores["path_effect"] == 0  # from head to head; what feeds it is the MLP between them
    assert result.claims.first("is_induction_head", status="shown").subject == ("L1H0",)
    feeds = result.claims.first("feeds")
    assert (feeds.status, feeds.object) == ("excluded", ("L1H0",))
    assert feeds.interval[0] > 0.99


def test_two_heads_that_share_an_mlps_work_are_both_named_and_one_was_cut():
    one = k_gram_counter(2, 16, order=1)
    two = HookedDecoder(one.config.model_copy(update={"n_heads": 2}))
    state = one.state_dict()
    for name, value in state.items():
        if ".attn.W_" in name or name.endswith(("attn.b_Q", "attn.b_K", "attn.b_V")):
            state[name] = torch.cat([value, value]) / (2 if name.endswith("W_O") else 1)
    two.load_state_dict(state)
    source = DirichletChains(n_states=2, start="uniform")
    run = run_of(two, source=source, objective=Objective(kind="raw_log"))
    said = probe_quickly(run, ["induction"])["induction"].claims
    assert said.first("is_induction_head", status="shown").subject == ("L1H0", "L1H1")
    assert said.first("feeds").status == "excluded"
