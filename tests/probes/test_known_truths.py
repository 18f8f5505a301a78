"""Models set by hand whose truth is known in each state, position and part: what must be claimed of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models_by_hand import LOG_P
from probing_cases import P3, probe_quickly, run_of

import mechmarkov as mm
from mechmarkov.models.constructions.induction_heads import duplicate_token_head, induction_pair
from mechmarkov.models.constructions.lookup_tables import (
    cancelling_tables,
    direct_table,
    embedding_frame,
    value_table,
)
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.phrases import PHRASES
from mechmarkov.sources import Chain, ChainMixture, DirichletChains, SelectiveLag, TriggerBigram

N = 12
SWITCHING = Chain([[0.3, 0.7], [0.85, 0.15]])


def told(model, probes, source=None, sequences=64):
    run = run_of(model) if source is None else run_of(model, source=source)
    return probe_quickly(run, probes, sequences=sequences)


def shown(result):
    screen = headline(result)
    return screen.badge, screen.title, {tile.question: tile for tile in screen.tiles}


def with_position(model, at, logits, first):
    """A model that adds logits at one position, through the dimension in which it is embedded."""
    with torch.no_grad():
        model.get_parameter("unembed.W_U")[first + at] = torch.tensor(logits)
    return model


def biased_at(at, logits, n_ctx=N):
    """The bigram by the direct path, and more logits at one position."""
    shape = {"positions": 3, "output": 3 + n_ctx, "d_model": 6 + n_ctx, "d_head": 3}
    model = embedding_frame(3, n_ctx, **shape)
    with torch.no_grad():
        model.get_parameter("unembed.W_U")[:3] = LOG_P
    return with_position(model, at, logits, first=3)


def relay(n_ctx=N, lag=1):
    """A first head that carries a token over, and one of the second layer that applies the table to it."""
    model = induction_pair(3, n_ctx, lags=(lag,))
    position, written = 3 + torch.arange(n_ctx), 6 + n_ctx
    first, second = (block.attn for block in model.blocks)
    with torch.no_grad():
        for weight in (first.W_Q, second.W_Q, second.W_K, second.W_V, second.W_O):
            weight.zero_()
        seen = torch.arange(n_ctx)
        for attn in (first, second):  # both read the position that they stand at
            attn.W_Q[0, position, seen] = 60.0
            attn.W_K[0, position, seen] = 1.0
        second.W_V[0, 3 + n_ctx : written, :3] = torch.eye(3)
        second.W_O[0, :3, written:] = LOG_P
    return model


def worst_head():
    """An induction pair that says what did not follow: both heads of the circuit do harm."""
    return induction_pair(2, 16, gain=-3.0)


@pytest.mark.parametrize("at", [0, 5])
def test_one_position_does_not_make_another_law(at):
    badge, title, tiles = shown(told(biased_at(at, [0.0, 7.0, 0.0]), ["behaviour"]))
    assert (badge, title) == ("partly", f"Has the bigram, but not at position {at}")
    assert tiles["What has it learned?"].answer == f"The bigram, but not at position {at}"


def test_a_wrong_row_of_two_is_named():
    table = np.log(np.array([[0.9, 0.1], [0.35, 0.65]]))
    table[1] = table[1, ::-1]
    model = direct_table(torch.tensor(table).float(), N)
    badge, title, _ = shown(told(model, ["behaviour"], Chain([[0.9, 0.1], [0.35, 0.65]])))
    assert (badge, title) == ("partly", "Has the bigram, but not after state 1")


def test_places_where_laws_coincide_do_not_show_the_better():
    """Without the rule that outputs repeat, a bigram is right after all states but the trigger."""
    rows = [[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.3, 0.5, 0.2]]
    model = direct_table(torch.tensor(rows).log(), 24)
    claims = told(model, ["behaviour"], TriggerBigram(rows, [0])).claims
    fails = claims.first("fails_at")
    assert claims.first("reaches").object == ("repeat_output",)
    assert fails.object == ("bigram",)


def test_a_copy_of_the_likeliest_state_is_not_the_bigram_made_sharp():
    sticky = Chain([[0.66, 0.24, 0.1], [0.12, 0.58, 0.3], [0.26, 0.14, 0.6]])
    assert told(direct_table(4 * torch.eye(3), N), ["behaviour"], sticky).claims.first("tempers") is None
    sharp = torch.tensor(3 * np.log(np.array(sticky.P))).float()
    assert told(direct_table(sharp, N), ["behaviour"], sticky).claims.first("tempers").is_shown


def test_a_law_as_it_is_comes_before_another_made_sharp():
    rows = [[0.8, 0.1, 0.1], [0.15, 0.7, 0.15], [0.1, 0.2, 0.7]]
    model = value_table(torch.tensor(rows).log(), N)
    claims = told(model, ["behaviour"], SelectiveLag(rows, [1, 3])).claims
    assert claims.first("imitates", object="lag_1").is_shown
    assert claims.first("tempers") is None


def test_between_two_chains_few_draws_decide_nothing():
    turned = [list(reversed(row)) for row in P3.tolist()]
    source = ChainMixture(chains=(P3.tolist(), turned))
    result = told(direct_table(LOG_P, 16), ["behaviour"], source)
    low, high = result.claims.first("is_on_the_way_to").interval
    assert low < -0.1 < 0.1 < high
    assert shown(result)[:2] == (None, "Undecided: too few sequences tell it from the unigram")


def test_chains_that_hardly_differ_have_no_other_law():
    result = told(
        direct_table(torch.zeros(4, 4), 16), ["behaviour"], DirichletChains(n_states=4, concentration=400.0)
    )
    badge, title, _ = shown(result)
    assert badge is None
    assert title.endswith("coincide within 0.01 nats")
    assert "Not the" not in title


def test_of_laws_that_are_not_told_apart_none_is_the_answer():
    half = direct_table(torch.tensor(np.log([[0.54, 0.46], [0.46, 0.54]])).float(), 32)
    result = told(half, ["behaviour"], Chain([[0.58, 0.42], [0.42, 0.58]]), sequences=128)
    closest = result.claims.first("is_closest_to")
    assert (closest.status, len(closest.object) > 2) == ("open", True)
    assert shown(result)[2]["What has it learned?"].answer.startswith("Closest to")


def test_the_unigram_is_not_above_itself():
    pi = np.linalg.matrix_power(P3, 300)[0]
    model = direct_table(torch.tensor(np.log(np.tile(pi, (3, 1)))).float(), N)
    way = told(model, ["behaviour"]).claims.first("is_on_the_way_to")
    assert "above" not in PHRASES["is_on_the_way_to"](way)


def test_the_law_of_the_source_is_named_before_one_of_steps():
    source = mm.LaggedChain(P3.tolist(), 2)
    claims = told(value_table(LOG_P, N, lag=2), ["behaviour"], source).claims
    assert claims.first("is_closest_to").object[:2] == ("lag_2", "step_2")


@pytest.mark.parametrize("model", [direct_table(2.5 * LOG_P, N), cancelling_tables(1.3 * LOG_P, N, gain=1.0)])
def test_no_stationary_point_is_below_the_best_possible(model):
    claims = told(model, ["behaviour", "landscape"]).claims
    moves, away = claims.first("moves"), claims.first("reaches").value
    assert moves is not None
    beyond = moves.condition("beyond the best possible")
    assert (moves.value is None) == (beyond is not None)
    assert moves.value is None or moves.value <= 1.1 * away


def test_what_does_harm_is_neither_repaired_nor_stood_in_for():
    claims = told(worst_head(), ["ablation"], DirichletChains(n_states=2)).claims
    assert claims.first("is_needed", subject="L1H0").condition("does harm")
    assert claims.first("repairs") is None
    assert claims.first("stands_in_for") is None
    order = claims.first("uses_order")
    assert (order.status, bool(order.condition("does harm"))) == ("excluded", True)


@pytest.fixture(scope="module")
def measured():
    """The ablations of a trained induction circuit, and their scores."""
    outcome = probe_quickly(mm.example("induction"), ["ablation"], sequences=16)["ablation"]
    return outcome.probe, outcome.data, outcome.scores


@pytest.mark.parametrize(
    ("relation", "effect", "by_others"),
    [("repairs", "direct_effect", "self_repair"), ("stands_in_for", "joint_effect", "redundancy")],
)
@pytest.mark.parametrize(("worth", "claimed"), [(0.5, True), (-0.5, False)])
def test_nobody_makes_up_for_what_is_worthless(relation, effect, by_others, worth, claimed, measured):
    probe, data, scores = measured
    alone = {"effect": 0 * data["effect"] - 1.0}  # no part is worth anything by itself
    given = {effect: worth, by_others: 0.3} | {f"{by_others}_low": 0.2, f"{effect}_low": worth - 0.1}
    edited = data.assign(alone | {name: 0 * data[name] + value for name, value in given.items()})
    assert (relation in {claim.relation for claim in probe.claims(edited, scores)}) is claimed


def test_constant_predictions_do_not_follow_a_parent():
    follows = told(direct_table(torch.tensor([[1.0, 0.0, 0.5]]).tile(3, 1), N), ["ablation"]).claims.first(
        "follows"
    )
    assert follows.status == "excluded"
    assert follows.condition("all stay as they are")


def test_a_table_at_another_scale_is_not_said_to_be_nowhere():
    claim = told(direct_table(8 * LOG_P, N), ["alignment"]).claims.first("matches")
    assert claim.status == "excluded"
    assert claim.value > 0.99
    assert claim.condition("only its direction")


@pytest.mark.parametrize("seed", [3, 5])
def test_a_random_table_would_hold_no_bigram(seed):
    """By itself it is nearer to the bigram than both tables are, and not much nearer than the unigram."""
    noise = torch.tensor(np.random.default_rng(seed).normal(size=(2, 3, 3))).float()
    model = value_table(2.0 * noise[0], N, lag=3)
    with torch.no_grad():
        model.get_parameter("unembed.W_U")[:3] = noise[1]
    stores = told(model, ["storage"]).claims.first("stores")
    assert stores.status == "excluded"
    assert stores.condition("others undo it") is None


def test_what_is_half_there_is_not_all_of_it():
    table = LOG_P.clone()
    table[0] = 0.0
    stores = told(direct_table(table, N), ["storage"]).claims.first("stores")
    assert stores.is_shown
    assert stores.holds("what there is of it")


def test_a_relay_is_a_table_through_the_first_head():
    result = told(relay(), ["program", "alignment"])
    tables = result.claims.first("explains", subject="tables read from the weights")
    assert tables.value == pytest.approx(1.0, abs=1e-3)
    assert tables.condition("looks up matches") is None
    assert tables.condition("looks up").words[:2] == ("L1H0", "L0H0")


def test_a_head_that_looks_by_content_reads_no_lag():
    tables = told(duplicate_token_head(3, 40), ["program"], DirichletChains(n_states=3)).claims.where(
        "explains"
    )
    premises = [one.name for claim in tables for one in claim.because]
    assert "looks up no lag" in premises
    assert "looks up" not in premises


def test_a_bias_by_position_is_told_as_one():
    model = embedding_frame(3, 9, positions=3, output=12, d_model=15, d_head=3)
    draw = torch.tensor(np.random.default_rng(2).normal(size=(9, 3))).float()
    with torch.no_grad():
        model.get_parameter("unembed.W_U")[3:12] = draw
    best = told(model, ["program"]).claims.first("explains")
    assert best.value > 0.999
    assert [one.words for one in best.because if one.name == "term"] == [("Position",)]


def test_what_came_back_is_not_lost():
    nothing, whole = direct_table(0 * LOG_P, N), direct_table(LOG_P, N)
    run = run_of(nothing, whole, nothing, whole)
    came = probe_quickly(run, ["dynamics"], steps="all").claims.first("came_by", object="bigram")
    assert came.condition("lost again").holds is False
    ends = replace(run_of(nothing, whole, nothing), provenance={})
    lost = probe_quickly(ends, ["dynamics"], steps="all").claims.first("came_by", object="bigram")
    assert lost.condition("lost again").holds is True
