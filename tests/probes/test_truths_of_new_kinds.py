"""Models of known truth: what cancels in threes, is erased, hardly possible, or right at a temperature."""

import numpy as np
import pytest
import torch
from mixed_models import LONG, N_CTX, by_position, induction_within, lag, log_of, reading
from more_models import (
    ABSORBING,
    L4,
    NEAR_EQUAL,
    OWN,
    P4,
    TINY,
    at_two_lags,
    drawn,
    erased,
    even_or_token,
    mlps,
)
from probing_cases import probe_quickly, run_of

from mechmarkov.models.constructions.lookup_tables import direct_table, mlp_table
from mechmarkov.probing.effects import at_temperature
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.first_screen.readings import notes
from mechmarkov.report.words.sentences import sentence
from mechmarkov.sources import Chain, DirichletChains, SelectiveLag
from mechmarkov.theory.temperature import best_temperature

CHAIN = Chain(P4)


def told(model, probes, source=CHAIN, sequences=64):
    result = probe_quickly(run_of(model, source=source), probes, sequences=sequences)
    screen = headline(result)
    return result, screen, {tile.question: tile for tile in screen.tiles}


# What is below the floor of a KL


@pytest.mark.parametrize("times", [4, 7])
def test_what_is_hardly_possible_is_tempered_too(times):
    """At 7 times log 0.001 a probability is 10^-21."""
    result, screen, _ = told(
        direct_table(times * log_of(TINY), N_CTX), ["behaviour", "storage"], source=Chain(TINY)
    )
    assert result.claims.first("tempers").value == pytest.approx(times, rel=1e-3)
    held = result.claims.first("stores").condition("held at temperature")
    assert held.value == pytest.approx(times, rel=1e-3)
    assert screen.title == "Has the bigram, but is much more sure than it should be"


def test_a_zero_is_as_unlikely_as_the_least():
    p, q = np.array([[[0.8, 0.1, 0.1]]]), np.array([[[1.0, 1e-20, 0.0]]])
    even = np.array([[[1.0, 1e-20, 1e-20]]])
    assert best_temperature(p, q)[0] == pytest.approx(best_temperature(p, even)[0])
    heated = at_temperature(torch.tensor(q), 0.1)
    assert heated[..., 2] == heated[..., 1] < heated[..., 0]


# Sets that cancel


@pytest.mark.parametrize("halves", [False, True])
def test_three_that_cancel_hold_nothing(halves):
    A, B = drawn(5), drawn(6)
    tables = [2 * A, -A, -A] if halves else [A, B, -A - B]
    result, screen, _ = told(reading(tables, [OWN] * 3, direct=L4), ["behaviour", "storage", "ablation"])
    for probe in ("storage", "ablation"):
        claim = result.claims.first("cancels", probe=probe)
        assert claim.subject == ("L0H0", "L0H1", "L0H2")
        assert claim.value == pytest.approx(0, abs=1e-5)
    assert result.claims.first("stores").subject == ("direct",)
    assert result.claims.first("stores").value == pytest.approx(1, abs=1e-5)
    assert result.claims.first("is_needed_most").subject == ("direct",)
    assert screen.title == "Learned the bigram: in the direct path"
    undone = result.claims.first("is_needed", subject="L0H1").condition("only undoes")
    assert undone.words == ("L0H0", "L0H2")


def test_of_several_sets_that_cancel_none_is_told():
    """The second half undoes the MLP, or with the first one L0H0."""
    model = reading([3 * L4, -2 * L4, -L4], [OWN] * 3, mlp=L4)
    result, *_ = told(model, ["storage", "ablation"])
    assert result.claims.first("cancels") is None


def test_the_parts_of_a_sum_do_not_cancel():
    model = reading([L4, -0.5 * L4, 0.5 * L4], [OWN] * 3)
    claims = told(model, ["ablation"])[0].claims
    assert {claim.subject for claim in claims.where("cancels")} == {("L0H1", "L0H2")}


def test_an_eraser_is_worth_what_it_erases():
    result, screen, tiles = told(erased(L4, -1.0, direct=L4), ["behaviour", "storage", "ablation"])
    cancels = result.claims.first("cancels", probe="ablation")
    assert sentence(cancels).startswith("L1H0 only undoes L0H0")
    assert result.claims.first("is_needed_most").subject == ("direct",)
    assert result.claims.first("is_needed", subject="L1H0").condition("only undoes").words == ("L0H0",)
    assert result.claims.first("is_needed", subject="L0H0").condition("only undoes") is None
    assert tiles["Where does it live?"].answer == "The direct path"
    assert screen.named == ("direct",)


def test_what_takes_half_undoes_nothing():
    claims = told(erased(L4, -0.5), ["ablation"])[0].claims
    assert claims.first("cancels") is None


# Temperatures that differ from state to state


def test_a_row_may_be_surer_and_another_less():
    heats = torch.tensor([3.0, 0.3, 1.0, 1.0])[:, None]
    result, screen, tiles = told(direct_table(heats * L4, N_CTX), ["behaviour"])
    tempers = result.claims.first("tempers")
    assert (tempers.value, tempers.object) == (None, ("bigram",))
    assert tempers.condition("surer after").words == ("0",)
    assert tempers.condition("less sure after").words == ("1",)
    assert screen.title == "Has the bigram, but is more or less sure after some states"
    assert "surer than it should be after state 0, and less sure after state 1" in sentence(tempers)
    assert "up to" in tiles["What has it learned?"].sentence


def test_one_row_that_is_too_sure_is_told():
    heats = torch.tensor([1.0, 2.5, 1.0, 1.0])[:, None]
    _, screen, _ = told(direct_table(heats * L4, N_CTX), ["behaviour"])
    assert screen.title == "Has the bigram, but is more sure after state 1"


@pytest.mark.parametrize(
    ("heats", "title"),
    [
        ((0.4, 1.0), "Has the bigram, but less sure at positions 0, 2, …, 10"),
        ((1.0, 3.0), "Has the bigram, but more sure at positions 1, 3, …, 11"),
        ((0.4, 3.0), "Has the bigram, but is more or less sure at some positions"),
    ],
)
def test_a_temperature_of_some_positions_is_told(heats, title):
    tables = [heat * L4 for heat in heats]
    assert told(by_position(*tables), ["behaviour"])[1].title == title


@pytest.mark.parametrize(
    ("P", "row"), [(P4, [0.25] * 4), (P4, [0.1, 0.7, 0.1, 0.1]), (NEAR_EQUAL, [0.9, 0.1])]
)
def test_a_wrong_row_is_at_no_temperature(P, row):
    """Nor is one of two states, of which any is the law's at some temperature."""
    table = log_of(P)
    table[0] = log_of(np.array(row))
    assert told(direct_table(table, N_CTX), ["behaviour"], Chain(P))[0].claims.first("tempers") is None


# Places


def test_a_law_of_some_positions_is_not_of_one_state():
    """At odd positions the head reads a 0, so that after state 0 it is right everywhere."""
    _, screen, _ = told(even_or_token(L4, 0), ["behaviour"])
    assert screen.title == "Has the bigram, but not at positions 1, 3, …, 11"


def test_where_many_places_are_open_the_others_are_told():
    _, screen, _ = told(even_or_token(L4, 0), ["behaviour"], sequences=16)
    assert screen.title == "Has the bigram at positions 0, 2, …, 10"


def test_a_uniform_row_is_held_nowhere():
    model = direct_table(log_of(np.array([[0.1, 0.9], [0.5, 0.5]])), N_CTX)
    result, *_ = told(model, ["behaviour", "storage"], Chain(NEAR_EQUAL))
    assert not result.claims.where("stores", status="shown")


# Heads and weights


def test_a_head_of_two_tokens_reads_both():
    result, *_ = told(at_two_lags(2 * L4, 2), ["attention"])
    reads = result.claims.first("attends_to", object="parent")
    assert (reads.status, reads.value) == ("excluded", pytest.approx(0.54, abs=0.01))
    assert sentence(reads).startswith("No head settles on the current token")


def test_tables_of_both_lags_are_told():
    source = SelectiveLag(P4.tolist(), [1, 3])
    model = reading([0.5 * L4, 0.5 * L4], [lag(1, 16), lag(3, 16)], 16)
    matches = told(model, ["alignment"], source)[0].claims.where("matches", status="shown")
    assert {claim.subject: claim.number("law") for claim in matches} == {("L0H0",): 1, ("L0H1",): 3}


def test_one_state_that_stays_holds_no_table():
    result, *_ = told(direct_table(log_of(ABSORBING), N_CTX), ["alignment"], Chain(ABSORBING))
    assert "ends in one state" in result.skipped["alignment"]


@pytest.mark.parametrize(("P", "model"), [(NEAR_EQUAL, direct_table), (ABSORBING, mlp_table)])
def test_what_is_exact_is_not_asked_whether_it_is_stuck(P, model):
    tile = told(model(log_of(P), N_CTX), ["behaviour", "landscape"], Chain(P))[2]["Is it stuck?"]
    assert tile.answer.startswith("No: ")
    assert tile.answer.endswith("from the best possible")


def test_a_head_of_near_keys_is_no_more_than_ideal():
    result, *_ = told(induction_within(3, LONG, 0, 6), ["induction"], DirichletChains(n_states=3))
    head = result.claims.first("is_induction_head")
    assert head.value > 1.1
    assert sentence(head).endswith("on average, as much as an ideal head's.")


@pytest.mark.parametrize("times", [2.0, -1.0])
def test_a_kink_has_no_eigenvalues(times):
    outcome = told(mlp_table(times * L4, N_CTX), ["landscape"])[0]["landscape"]
    assert all(claim.condition("largest eigenvalue") is None for claim in outcome.claims)
    assert not [figure for figure in outcome.figures() if "eigenvalue" in figure.title]


# MLPs


def test_two_mlps_are_named_in_the_title():
    result, screen, tiles = told(mlps(0.5 * L4, 0.5 * L4), ["behaviour", "storage", "ablation"])
    assert screen.title == "Learned the bigram: in the MLPs of layers 0 and 1"
    assert tiles["Where does it live?"].answer == "The MLPs of layers 0 and 1"
    assert notes(result.claims, "L0.mlp") == ["50% of the bigram"]


def test_an_mlp_has_a_role_where_no_share_is_known():
    result, *_ = told(mlp_table(L4, N_CTX), ["behaviour", "ablation"])
    (role,) = notes(result.claims, "L0.mlp")
    assert role.startswith("worth 0.2")
    assert role.endswith("nats")
