"""Models set by hand whose home or attention was told wrongly, and what is said of them instead."""

import numpy as np
import pytest
import torch
from models_by_hand import LOG_P, asked
from probing_cases import claims_of

import mechmarkov as mm
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import storage

BINARY = mm.Binary(p=0.2, q=0.2)


def log_of(source) -> torch.Tensor:
    return torch.tensor(np.log(source.P)).float()


@torch.no_grad()
def table_and_induction(share: float) -> HookedDecoder:
    """A share of the direct table of `BINARY` beside an induction head."""
    model = induction_pair(2, 64, gain=1.2)
    model.get_parameter("unembed.W_U")[:2] = share * log_of(BINARY)
    return model


def test_a_table_of_the_parent_that_is_wrong_is_said_to_follow_the_parent():
    source = mm.Chain([[0.266, 0.734], [0.925, 0.075]])
    found = asked(direct_table(torch.tensor([[4.6, 4.99], [8.07, -3.54]]), 16), "storage", source=source)
    stores = found.claims.first("stores")
    assert (stores.status, bool(stores.condition("the parent leads away"))) == ("excluded", True)
    assert found.scores["rank_90"].reason.startswith("setting the parent changes predictions, but not toward")
    assert float(found.data["parent_change_at"].min()) > 0.1


def test_most_of_a_little_is_too_little_to_share_and_not_held_nowhere():
    source = mm.Binary(p=0.425, q=0.425)
    found = asked(direct_table(0.5 * log_of(source), 16), "storage", 512, source=source)
    stores = found.claims.first("stores")
    assert (stores.status, bool(stores.condition("too little to share"))) == ("open", True)
    assert stores.condition("to").value == pytest.approx(0.00281, abs=1e-5)
    assert "too little to share" in found.scores["rank_90"].reason


def test_a_table_that_another_path_cancels_is_named_with_what_it_would_do_alone():
    model = value_table(-LOG_P, 16)
    with torch.no_grad():
        model.get_parameter("unembed.W_U")[:3] = LOG_P
    stores = asked(model, "storage").claims.first("stores")
    assert (stores.status, stores.subject) == ("excluded", ("direct",))
    assert stores.condition("others undo it")
    assert stores.condition("with it only").value == pytest.approx(0.0343, abs=1e-4)
    sharp = asked(direct_table(5 * LOG_P, 16), "storage").claims.first("stores")
    assert (sharp.is_shown, sharp.subject) == (True, ("direct",))  # it is five times as sure as it should be
    assert sharp.condition("held at temperature").value == pytest.approx(5, abs=0.01)


def test_where_half_of_it_may_be_stored_no_source_of_the_rest_is_claimed():
    found = asked(table_and_induction(0.3), "storage", source=BINARY)
    stores = found.claims.first("stores")
    assert (stores.status, bool(stores.condition("stored or from the context"))) == ("open", True)
    assert stores.value == pytest.approx(0.51, abs=0.01)
    assert stores.interval == pytest.approx((0.43, 0.59), abs=0.01)
    assert found.scores["rank_90"].reason.endswith("is open")
    without = asked(table_and_induction(0), "storage", source=BINARY)
    assert without.claims.first("stores").status == "excluded"
    assert without.claims.first("stores").condition("from the context")
    assert float(without.data["stored_share"][-1, 2]) > 0.1


@pytest.mark.parametrize(
    ("table", "of_head", "left"), [(0.15, 0.7, (0.39, 0.29, 0.49)), (0.6, 0.4, (0.65, 0.59, 0.71))]
)
def test_a_head_that_copies_is_no_home_beside_a_table(table, of_head, left):
    """The induction head has a large share, and it stores nothing."""
    found = asked(table_and_induction(table), "storage", source=BINARY)
    assert float(found.data["net_share"].isel(step=-1).sel(path="L1H0")) > of_head
    assert found.scores["bigram_home"].value == "none"
    assert "which path holds the rest is not told" in found.scores["rank_90"].reason
    stores = found.claims.first("stores")
    assert (stores.status, stores.subject) == ("open", ())
    assert stores.condition("some from the context")
    assert (stores.value, *stores.interval) == pytest.approx(left, abs=0.01)


def test_nothing_is_said_of_a_rank_that_keeps_a_weight_out():
    """Without the head's table the direct path keeps the bigram part."""
    found = asked(value_table(LOG_P, 8), "storage")
    kept = 0 * found.data["rank_parts"] + found.data["loss_parts"]
    data = found.data.assign(rank_parts=kept.where(found.data["rank_parts"].notnull()))
    assert found.claims.first("stores").condition("rank that keeps 90 %")
    assert claims_of(storage.probe, data).first("stores").condition("rank that keeps 90 %") is None
    assert "with L0H0.OV at rank 0" in storage.scores(data, None)["rank_90"].reason


@pytest.mark.parametrize("sequences", [1, 4, 6, 8])
def test_few_sequences_do_not_tell_that_accuracy_is_at_chance(sequences):
    table = torch.tensor([[0, 0.05, 0], [0.05, 0, 0], [0.05, 0, 0]])
    source = mm.Chain([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    last = Objective(read="last")
    found = asked(direct_table(table, 16), "behaviour", sequences, source=source, objective=last)
    assert found.scores["nearest_predictor"].value == "uniform"
    assert found.claims.first("is_right").condition("at chance") is None


@torch.no_grad()
def reading_behind_a_query(n_ctx: int, itself: float) -> HookedDecoder:
    """A head that looks at the query token with one logit, at the parent with 1, at others with 0."""
    n = 3
    config = DecoderConfig(
        n_layers=1,
        n_heads=1,
        d_model=2 * n + 1 + n_ctx,
        d_head=n_ctx + 1,
        n_ctx=n_ctx,
        d_vocab=n + 1,
        d_vocab_out=n,
        attn_only=True,
        normalization_type=None,
        use_attn_scale=False,
    )
    model = HookedDecoder(config)
    for parameter in model.parameters():
        parameter.zero_()
    position = torch.arange(n_ctx)
    model.embed.W_E[:, : n + 1] = torch.eye(n + 1)
    model.get_parameter("pos_embed.W_pos")[position, 2 * n + 1 + position] = 1.0
    attn = model.blocks[0].attn
    attn.W_K[0, 2 * n + 1 + position, position] = 1.0
    attn.W_Q[0, 2 * n + n_ctx, n_ctx - 2 : n_ctx] = torch.tensor([1.0, itself])
    attn.W_V[0, :n, :n] = torch.eye(n)
    attn.W_O[0, :n, n + 1 : 2 * n + 1] = LOG_P
    model.get_parameter("unembed.W_U")[n + 1 : 2 * n + 1] = torch.eye(n)
    return model


@pytest.mark.parametrize(
    ("n_ctx", "itself", "relation", "status"),
    [(16, 8.0, "attends_to", "shown"), (2, 1.0, "attends_evenly", "does not apply")],
)
def test_attention_on_a_query_token_is_said(n_ctx, itself, relation, status):
    query = Objective(read="last", query=True)
    first = asked(reading_behind_a_query(n_ctx, itself), "attention", objective=query).claims[0]
    assert (first.relation, first.status) == (relation, status)
    if status == "shown":
        assert (first.subject, first.object) == (("L0H0",), ("query token",))
        assert first.value == pytest.approx(0.994, abs=1e-3)


@torch.no_grad()
def flat_at_the_end(weight: float) -> HookedDecoder:
    """Each position but the last looks for state 1; the token before tells neither state from the other."""
    model = value_table(LOG_P[:2, :2], 64)
    query, key = (model.get_parameter(f"blocks.0.attn.W_{side}").zero_() for side in "QK")
    query[0, 4 : 4 + 63, 0], key[0, 1, 0] = weight, 1.0
    return model


def test_attention_that_is_flat_in_the_last_prediction_is_said_to_be_so_there():
    source = mm.Chain([[0.45, 0.55], [0.55, 0.45]])
    for weight, everywhere in ((0.0, True), (0.4, False)):
        found = asked(flat_at_the_end(weight), "attention", 512, source=source)
        evenly = found.claims.first("attends_evenly")
        assert (evenly.status, evenly.value) == ("shown", 0)
        assert evenly.condition("at every prediction").holds == everywhere


def test_what_little_a_flat_head_writes_from_one_lag_is_not_what_it_predicts():
    source = mm.Chain([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]])
    model = value_table(log_of(source) / 0.211, 16)
    with torch.no_grad():
        model.get_parameter("blocks.0.attn.W_Q").zero_()
    attends = asked(model, "alignment", source=source).claims.first("matches").condition("attends")
    assert not attends.holds  # what it writes from this lag is not most of what it writes
    assert attends.value == pytest.approx(0.211, abs=1e-3)


@torch.no_grad()
def two_readers(table: torch.Tensor) -> HookedDecoder:
    """The same head twice."""
    one = value_table(table, 16)
    model = HookedDecoder(DecoderConfig(**one.config.model_dump() | {"n_heads": 2}))
    state = one.state_dict()
    state |= {name: torch.cat([x, x]) for name, x in state.items() if ".attn." in name and len(x) == 1}
    model.load_state_dict(state)
    return model


def test_of_two_heads_alike_neither_is_the_nearest_alone():
    matches = asked(two_readers(0.5 * LOG_P), "alignment").claims.first("matches")
    assert (matches.subject, matches.status) == (("L0H0", "L0H1"), "shown")
