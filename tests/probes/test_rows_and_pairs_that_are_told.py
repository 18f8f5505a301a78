"""Models of known truth: rows that one cosine hardly sees, laws after pairs of states, heads fed apart."""

import numpy as np
import pytest
import torch
from further_models import of_cells
from induction_asked import asked
from mixed_models import N_CTX, P, lag, log_of, reading
from models_of_new_kinds import (
    NONE,
    ORDER_2,
    RING,
    SURER,
    SWAPPED,
    TWO,
    TWO_LIKELY,
    TWO_STEPS,
    WHICH_ONLY,
    by_pair,
    composed,
    equal,
    two_pairs,
    with_row,
)
from more_models import L4, P4, only_after, stationary, with_bias
from probing_cases import probe_quickly, random_run, run_of

from mechmarkov.claims.claim import Where
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table, mlp_table
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.forms import formed
from mechmarkov.report.words.sentences import sentence
from mechmarkov.sources import Chain, DirichletChains, LaggedChain, OrderK

L, CHAIN, REDRAWN = log_of(P), Chain(P), DirichletChains(n_states=3)
FIRST, REST = (0, 1), only_after(L4, [2, 3])
CHAIN4, OWN, TWO_TABLE = Chain(P4), lag(1), log_of(TWO)
WRONG_AFTER_01 = np.array([[ORDER_2[0, 0], ORDER_2[0, 1, ::-1]], ORDER_2[1]])


def matches_of(model, source):
    return probe_quickly(run_of(model, source=source), ["alignment"]).claims.first("matches")


# Rows of a table


@pytest.mark.parametrize(
    ("model", "source", "wrong"),
    [
        (direct_table(log_of(SWAPPED), N_CTX), Chain(TWO_LIKELY), ("0",)),
        (mlp_table(log_of(SURER), N_CTX), Chain(RING), ("0",)),
        (direct_table(with_row(TWO_TABLE, 1, log_of(stationary(TWO))), N_CTX), Chain(TWO), ("1",)),
        (reading([0 * L4], [OWN], direct=only_after(L4, FIRST), mlp=REST), CHAIN4, ("2", "3")),
    ],
)  # fmt: skip
def test_rows_of_another_law_are_named(model, source, wrong):
    """The first two have a cosine above 0.99 with log P, and were said to have the matrix."""
    claim = matches_of(model, source)
    assert claim.condition("other rows").words == wrong
    assert not {*claim.where.states} & {*wrong}
    assert f"but not after state{'s' * (len(wrong) > 1)} {' and '.join(wrong)}," in sentence(claim)
    assert formed([claim], ["alignment"])["the target's table in the weights"] is False


def test_a_cosine_of_impossible_ones_is_not_the_matrix():
    claim = matches_of(direct_table(log_of(WHICH_ONLY), N_CTX), Chain(TWO_LIKELY))
    assert claim.value > 0.99
    assert claim.where == Where()
    assert "most of the transition matrix" in sentence(claim)


@pytest.mark.parametrize(
    "model",
    [
        direct_table(L4, N_CTX),
        direct_table(0.6 * L4, N_CTX),
        with_bias(direct_table(L4, N_CTX), 1.0, 0.0, 0.0, -1.0),
        reading([0 * L4], [OWN], direct=0.6 * L4, mlp=0.4 * L4),
    ],
)
def test_a_slope_and_a_bias_make_no_other_rows(model):
    claim = matches_of(model, CHAIN4)
    assert claim.where == Where()
    assert "has the transition matrix in the weights" in sentence(claim)


def test_a_small_slope_is_some_of_the_matrix():
    """A table at a ninth of its scale was said to have the transition matrix."""
    text = sentence(matches_of(direct_table(0.11 * L4, N_CTX), Chain(P4)))
    assert "some of the transition matrix" in text
    assert "slope 0.11)" in text


def test_equal_rows_of_a_table_that_is_not_are_said():
    source = Chain(np.tile([0.4, 0.3, 0.2, 0.1], (4, 1)))
    assert sentence(matches_of(direct_table(L4, N_CTX), source)).startswith("All rows of the transition")


def test_heads_that_read_the_parent_together_have_no_matrix():
    """It was said that all rows of the transition matrix are equal: those of one step are."""
    text = sentence(matches_of(composed(L), LaggedChain(P.tolist(), 3)))
    assert text.startswith("No path's own weights hold the law of lag 3")


# Pairs of states


@pytest.mark.parametrize(
    ("model", "source", "title"),
    [
        (by_pair(equal(TWO_STEPS), L), CHAIN, "Has the bigram only after two different states"),
        (by_pair(equal(L), NONE), CHAIN, "Has the bigram, but not after two different states"),
        (by_pair({(0, s): L.flip(1) for s in range(3)}, L), CHAIN,
         "Has the bigram, but not where 0 came before the last state"),
        (by_pair({(0, 1): L.flip(1), (2, 0): L.flip(1)}, L), CHAIN,
         "Has the bigram, but not after 0→1 and 2→0"),
        (n_gram_model(WRONG_AFTER_01, 16), OrderK(ORDER_2.tolist()), "Has the 3-gram, but not after 0→1"),
    ],
)  # fmt: skip
def test_pairs_at_which_a_law_fails_are_told(model, source, title):
    """They were told as a share of a way, or as another law."""
    assert headline(probe_quickly(run_of(model, source=source), ["behaviour"], sequences=256)).title == title


def test_the_law_after_a_pair_is_named():
    model = by_pair(equal(TWO_STEPS), L)
    fails = probe_quickly(run_of(model, source=CHAIN), ["behaviour"]).claims.first("fails_at")
    assert fails.condition("law there").words == ("step_2",)
    assert fails.to_data()["where"] == {"pairs": [["0", "0"], ["1", "1"], ["2", "2"]]}


@pytest.mark.parametrize(
    "model",
    [
        direct_table(log_of((P + P @ P) / 2), N_CTX),
        of_cells(4, {(s, 4 + at): -L4[s] for s in range(4) for at in (s, 5 + s)}, on=L4),
    ],
)
def test_what_fails_by_no_pair_names_none(model):
    source = CHAIN if model.config.d_vocab == 3 else Chain(P4)
    claims = probe_quickly(run_of(model, source=source), ["behaviour"], sequences=256).claims
    assert not [one for one in claims if one.where.pairs]


# Induction


def feeds_of(model):
    said = asked(model, REDRAWN)[1]
    return {claim.subject: claim.object for claim in said.where("feeds", status="shown")}


def test_each_induction_head_has_its_own_feeder():
    """The feeder of the first was said to feed both."""
    assert feeds_of(two_pairs((1.0, 1.0))) == {("L0H0",): ("L1H0",), ("L0H1",): ("L1H1",)}


def test_two_readers_of_one_head_share_it():
    assert feeds_of(induction_pair(3, 16, readers=2)) == {("L0H0",): ("L1H0", "L1H1")}


def test_the_score_is_of_the_head_that_is_told():
    """Without an induction head the one was of the head that looks most, the other of the one moved most."""
    for seed in range(3):
        torch.manual_seed(seed)
        result = probe_quickly(random_run("plain", n_steps=seed + 1), ["induction"], sequences=32)
        claim = result.claims.first("is_induction_head")
        assert not claim.is_shown
        assert result["induction"].scores["predecessor_effect"].value == claim.value
