"""Circuits that are known, right ones and wrong ones: each is named with its numbers, and no other is."""

import numpy as np
import pytest
import torch
import xarray as xr
from induction_asked import N_CTX, REDRAWN, STICKY, asked, degree_of, feeders_of, heads_of
from mechmarkov.probes.induction import circuit
from mechmarkov.probes.induction.circuit_told import circuit_of
from probing_cases import claims_of, grouped, run_of, subject_of

from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.induction_heads import duplicate_token_head, induction_pair
from mechmarkov.models.constructions.lookup_tables import SHARP, value_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import induction
from mechmarkov.sources import Binary, Chain


def without_second_layer(decoder: HookedDecoder) -> HookedDecoder:
    with torch.no_grad():
        for name in ("W_Q", "W_K", "W_V"):
            decoder.get_parameter(f"blocks.1.attn.{name}").zero_()
    return decoder


@pytest.mark.parametrize(
    ("source", "objective"),
    [
        (STICKY, Objective()),
        (REDRAWN, Objective()),
        (Binary(p=0.2, q=0.3), Objective()),
        (REDRAWN, Objective(read="last")),
    ],
    ids=["sticky", "redrawn", "binary", "redrawn, last"],
)
def test_a_perfect_pair_is_named_with_the_right_numbers(source, objective):
    decoder = induction_pair(source.n_states, N_CTX, gain=2.0)
    scores, said, data = asked(decoder, source, objective=objective, null=True)
    value = {name: score.value for name, score in scores.items()}
    ideal = float(data["ideal"].sel(matched=1))
    assert (value["induction_head"], value["previous_token_head"]) == ("L1H0", "L0H0")
    assert value["induction_score"] == pytest.approx(ideal, abs=1e-6)
    assert value["predecessor_effect"] == pytest.approx(1, abs=1e-6)
    assert value["fidelity"] == pytest.approx(0, abs=1e-5)
    assert value["previous_token_score"] == pytest.approx(1, abs=1e-6)
    assert float(data["match_mass"][-1].sel(matched=1, layer=1, head=0)) == pytest.approx(1, abs=1e-6)
    assert value["induction_score"] > scores["induction_score"].null[2] + 0.1
    assert value["predecessor_effect"] > scores["predecessor_effect"].null[2] + 0.9
    assert value["k_composition"] > scores["k_composition"].null[2]
    if source.n_states == 2:
        assert value["copying_score"] is None
        assert "two states leave one eigenvalue" in scores["copying_score"].reason
    else:
        assert value["copying_score"] == pytest.approx(1)
    assert (feeders_of(said), heads_of(said)) == (("L0H0",), ("L1H0",))
    feeds, head = said.first("feeds"), said.first("is_induction_head")
    assert feeds.value < 0.5
    assert feeds.condition("previous token").value == pytest.approx(1, abs=1e-6)
    assert feeds.condition("score before and after").value == pytest.approx(ideal, abs=1e-6)
    assert head.value == pytest.approx(1, abs=1e-6)
    assert head.condition("beyond lag and tokens").value == pytest.approx(ideal, abs=1e-6)
    assert head.condition("an ideal head has").value == pytest.approx(ideal)
    assert value["path_effect"] == pytest.approx(
        float(data["kl_cut"].sel(input="K")[-1] - data["kl_intact"][-1]), abs=1e-9
    )
    if objective.read == "all" and source.n_states > 2:  # of two states the path of this pair does not help
        assert scores["path_effect"].interval[0] > 0


@pytest.mark.parametrize("readers", [1, 2])
def test_a_circuit_of_grouped_queries_is_named_like_one_of_single_heads(readers):
    """Two heads that look one and two back share keys and values; so do the heads behind them."""
    alone = induction_pair(3, N_CTX, lags=(1, 2), readers=readers)
    shared = grouped(alone, 1)
    tokens = REDRAWN.sample(4, N_CTX, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(shared(tokens), alone(tokens))
    (theirs, _, _), (ours, said, data) = asked(alone, REDRAWN), asked(shared, REDRAWN)
    for name, score in theirs.items():
        other = ours[name].value
        assert other == (score.value if isinstance(score.value, str) else pytest.approx(score.value)), name
    assert heads_of(said)[:1] == ("L1H0",)  # of two equal readers, both
    # Cutting the one head of the group that looks one back takes the match away; the other's does not.
    one, two = data["key_cut"].isel(step=-1, from_layer=0).values / float(data["intact"][-1])
    assert one < 0.5 < 0.9 < two


def test_a_group_whose_keys_carry_nothing_is_not_named():
    """The first head of the group looks two back, as does what its group carries: no predecessor is there."""
    decoder = grouped(induction_pair(3, N_CTX, lags=(2, 2)), 1)
    scores, said, _ = asked(decoder, REDRAWN)
    assert said.first("is_induction_head").status == "excluded"
    assert scores["induction_head"].value is None
    assert scores["predecessor_effect"].value == pytest.approx(0, abs=1e-6)


def test_composition_of_the_pair_is_what_its_blocks_give():
    """The first head writes K dimensions; keys read these by 60, and key 0 by 120 from any of K tokens."""
    scores, _, _ = asked(induction_pair(3, N_CTX))
    write = np.eye(3)  # the part of the residual stream that is carried over
    read = np.diag([60.0] * 3)
    position = 60.0 * 2.0 * np.ones((1, 3))
    norm = np.linalg.norm
    expected = norm(write @ read) / norm(write) / np.sqrt(norm(read) ** 2 + norm(position) ** 2)
    assert scores["k_composition"].value == pytest.approx(expected, rel=1e-5)


WRONG = {
    "a first head that looks two back": (lambda: induction_pair(3, N_CTX, lags=(2,)), "matches"),
    "a duplicate-token head": (
        lambda: duplicate_token_head(3, N_CTX, n_layers=2),
        "copies of the current token",
    ),
    "a duplicate-token head in one layer": (
        lambda: duplicate_token_head(3, N_CTX),
        "copies of the current token",
    ),
    "a previous-token head only": (lambda: without_second_layer(induction_pair(3, N_CTX)), "previous token"),
    "a previous-token head in one layer": (lambda: value_table(torch.eye(3), N_CTX, lag=2), "previous token"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("source", [STICKY, REDRAWN], ids=["sticky", "redrawn"])
def test_what_only_looks_like_an_induction_circuit_is_not_named(name, source):
    build, lookalike = WRONG[name]
    scores, said, data = asked(build(), source)
    assert said.first("is_induction_head").status == "excluded"
    if source is STICKY:
        (claim,) = said.where("attends_to", object=lookalike)
        assert claim.is_shown
        if lookalike == "matches":
            assert claim.condition("not for their predecessors").holds
    assert scores["induction_head"].value is None
    assert "at most 0.00 of the ideal" in scores["induction_head"].reason
    assert scores["predecessor_effect"].value == pytest.approx(0, abs=1e-6)
    assert scores["path_effect"].value is None
    assert (data["feeder_layer"] == -1).all()
    assert (scores["previous_token_head"].value == "L0H0") == ("previous" in name)


def test_on_a_sticky_chain_the_raw_mass_is_fooled_and_the_score_is_not():
    _, _, data = asked(duplicate_token_head(3, 32, n_layers=2))
    head = data.isel(step=-1).sel(layer=1, head=0, matched=1)
    uniform = data.isel(step=-1).sel(layer=0, head=0, matched=1)
    assert float(head["match_mass"]) > float(uniform["match_mass"]) + 0.1
    assert float(head["induction"]) < 0.01


def test_two_tokens_are_matched_where_two_are():
    scores, said, data = asked(induction_pair(3, N_CTX, lags=(1, 2)), REDRAWN)
    assert scores["induction_score_2"].value == pytest.approx(float(data["ideal"].sel(matched=2)), abs=1e-5)
    assert float(data["fidelity"].sel(matched=2, layer=1, head=0)[-1]) == pytest.approx(0, abs=1e-5)
    assert scores["induction_score_3"].value < 0.01
    assert (feeders_of(said), heads_of(said)) == (("L0H0",), ("L1H0",))
    one, _, _ = asked(induction_pair(3, N_CTX), REDRAWN)
    assert one["induction_score_2"].value < 0.01


def test_the_headline_is_the_best_head_that_a_predecessor_moves_or_the_best_of_all():
    none = np.nan
    data = xr.Dataset(
        {
            "induction": (
                ("step", "layer", "head", "matched"),
                np.array([[0.3, 0.1], [0.2, none]])[None, ..., None],
            ),
            "effect_low": (("step", "layer", "head"), np.array([[[0.04, 0.1], [0.06, none]]])),
        },
        coords={"matched": [1]},
    )

    def chosen(data: xr.Dataset) -> tuple[int, ...]:
        return tuple(int(index[0]) for index in circuit.induction_heads(data).values())

    assert chosen(data) == (1, 0)
    assert chosen(data.assign(effect_low=data["effect_low"] - 0.1)) == (0, 0)
    assert chosen(data.assign(effect_low=data["effect_low"] * none)) == (0, 0)
    assert chosen(data.assign(induction=data["induction"] * none)) == (0, 1)


def test_two_heads_that_stand_in_for_each_other_are_both_the_feeders():
    scores, said, data = asked(induction_pair(3, N_CTX, lags=(1, 1)))
    assert scores["induction_head"].value == scores["induction_heads"].value == "L1H0"
    assert float(data["key_cut"].min()) > 0.9 * float(data["intact"][-1])
    assert data["feeds"].isel(step=-1).values.tolist() == [[1, 1], [0, 0]]
    assert float(data["cut"].sel(input="K")[-1]) < 0.2 * float(data["intact"][-1])
    assert (feeders_of(said), heads_of(said)) == (("L0H0", "L0H1"), ("L1H0",))
    _, one, data = asked(induction_pair(3, N_CTX, lags=(1, 2)), REDRAWN)
    assert feeders_of(one) == ("L0H0",)
    assert data["feeds"].isel(step=-1).values[1].tolist() == [0, 0]


def test_two_equal_induction_heads_are_both_named_and_cut_together():
    scores, said, data = asked(induction_pair(3, 32, readers=2, gain=2.0), REDRAWN)
    assert scores["induction_head"].value == "L1H0"
    assert scores["induction_heads"].value == "L1H0 + L1H1"
    assert (feeders_of(said), heads_of(said)) == (("L0H0",), ("L1H0", "L1H1"))
    assert said.first("is_induction_head").condition("equal within intervals")
    carries = said.first("carries", status="shown")
    assert carries.object == ("in_context_bigram",)
    assert carries.condition("most of what there is")
    _, _, alone = asked(induction_pair(3, 32, gain=2.0), REDRAWN)
    assert np.allclose(data["kl_cut"], alone["kl_cut"], atol=1e-5)


def test_a_head_that_finds_matches_after_some_states_says_which():
    _, said, data = asked(induction_pair(3, 32, only_after=(0, 2)), REDRAWN)
    share = (data["intact_after"].isel(step=-1) / data["ideal_after"]).values
    assert share[[0, 2]] == pytest.approx(1, abs=1e-5)
    assert abs(share[1]) < 0.1
    (partial,) = said.where("is_induction_head", object="after these states")
    assert (partial.status, partial.where.states) == ("excluded", ("1",))
    assert partial.condition("finds after").words == ("0", "2")
    _, whole, _ = asked(induction_pair(3, 32), REDRAWN)
    assert not whole.where("is_induction_head", object="after these states")


@pytest.mark.parametrize("seed", range(3))
def test_a_head_that_favours_every_match_alike_is_not_said_to_miss_rare_states(seed):
    """By a factor of 5.5: less attention falls on the matches of a rare state, as there are fewer."""
    pi, rng = np.array([0.4, 0.3, 0.2, 0.06, 0.025, 0.015]), np.random.default_rng(0)
    P = np.stack([0.5 * pi + 0.5 * rng.dirichlet(pi * 6) for _ in pi])
    model = induction_pair(6, 48)
    with torch.no_grad():
        model.blocks[1].attn.W_Q *= 1.7 / SHARP
    run = run_of(model, source=Chain(P / P.sum(1, keepdims=True)))
    data = induction.probe.measure(subject_of(run, sequences=128, seed=seed))
    odds = data["odds_after"].isel(step=-1).sel(estimate="value").values
    assert odds == pytest.approx(np.full(6, 1.7), abs=0.02)
    assert not claims_of(induction.probe, data).where("is_induction_head", object="after these states")


def test_a_circuit_that_nobody_reads_carries_nothing():
    scores, said, _ = asked(induction_pair(3, N_CTX, gain=0.0))
    assert scores["induction_head"].value == "L1H0"
    assert scores["path_effect"].value == pytest.approx(0, abs=1e-9)
    assert (feeders_of(said), heads_of(said)) == (("L0H0",), ("L1H0",))
    assert said.first("carries").status == "excluded"
    assert circuit_of(said) is None
    assert scores["copying_score"].value is None


def test_a_circuit_whose_predictions_are_off_is_told_from_one_that_has_the_bigram():
    _, good, data = asked(induction_pair(3, 128, gain=2.3), REDRAWN)
    assert float(data["kl_intact"][-1]) < float(data["kl_simpler"]) < float(data["kl_cut"].sel(input="K")[-1])
    assert degree_of(good) == ("shown", set())
    _, poor, data = asked(induction_pair(3, 32, gain=2.0), REDRAWN)
    assert float(data["kl_intact"][-1]) > 0.5 * float(data["kl_simpler"])
    assert degree_of(poor) == ("shown", {"most of what there is"})
    _, some, data = asked(induction_pair(3, N_CTX, gain=2.0), STICKY)
    assert float(data["kl_cut"].sel(input="K")[-1]) < float(data["kl_simpler"])
    assert degree_of(some) == ("shown", {"some of it"})
    _, sharp, data = asked(induction_pair(3, N_CTX, gain=9.0), REDRAWN)
    assert float(data["kl_intact"][-1]) > float(data["kl_simpler"])
    assert degree_of(sharp) == ("excluded", {"does harm"})
