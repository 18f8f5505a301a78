"""Models of known truth: laws that fail in cells, heads without a lag, shares of what is there in part."""

import numpy as np
import pytest
import torch
from further_models import by_query_and_key, heads_in_turn, late_match, of_cells
from mixed_models import N_CTX, P, by_position, lag, log_of, reading
from more_models import L4, P4, only_after
from probing_cases import probe_quickly, run_of

from mechmarkov.claims.claim import Where
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.sentences import sentence, sentences
from mechmarkov.sources import Chain, DirichletChains, OrderK

CHAIN, CHAIN4, L, OWN = Chain(P), Chain(P4), log_of(P), lag(1)
LOADED = np.tile([0.5, 0.25, 0.15, 0.1], (4, 1))


def told(model, probes, source=CHAIN, sequences=64):
    return probe_quickly(run_of(model, source=source), probes, sequences=sequences)


# Cells of state and position


def cells(*places):
    """A table in the direct path, reversed after some states at some positions."""
    wrong = {(state, 4 + at): L4[state].flip(0) - L4[state] for state, at in places}
    return of_cells(4, wrong, on=L4)


@pytest.mark.parametrize(
    ("states", "positions"), [("1", (8, 9)), ("12", (3,)), ("2", tuple(range(0, 12, 3)))]
)
def test_states_and_positions_are_told_together(states, positions):
    model = cells(*((int(state), at) for state in states for at in positions))
    result = told(model, ["behaviour"], CHAIN4, 256)
    fails = result.claims.first("fails_at")
    assert fails.where == Where(tuple(states), positions)
    rows = L4[[int(state) for state in states]]
    assert fails.value == pytest.approx(float((rows.exp() * (rows - rows.flip(1))).sum(1).max()), rel=1e-3)
    screen, names = headline(result), " and ".join(states)
    assert screen.badge == "solved" or f"not after state{'s' * (len(states) > 1)} {names} at" in screen.title
    assert sentence(fails).startswith("After state")


@pytest.mark.parametrize(
    "model",
    [
        cells((0, 3), (1, 7)),  # not all of these states at all of these positions
        by_position(L4, L4.flip(1)),
        direct_table(only_after(L4, [0, 1, 3]), N_CTX),
        direct_table(0.6 * L4, N_CTX),
    ],
)
def test_what_fails_otherwise_has_no_cells(model):
    result = told(model, ["behaviour"], CHAIN4, 256)
    assert not [one for one in result.claims.where("fails_at") if one.where.states and one.where.positions]


# Laws


def test_a_clear_law_is_not_tied_with_coinciding_ones():
    """It was said that uniform predictions are not told from a unigram 0.2 nats away."""
    closest = told(direct_table(torch.zeros(4, 4), N_CTX), ["behaviour"], Chain(LOADED)).claims.first(
        "is_closest_to"
    )
    assert (closest.status, closest.object) == ("shown", ("uniform",))


def test_between_coinciding_laws_none_is_the_nearest():
    near = np.array([[0.53, 0.47], [0.47, 0.53]])
    model = direct_table(log_of(0.5 * near + 0.25), N_CTX)
    closest = told(model, ["behaviour"], Chain(near)).claims.first("is_closest_to")
    assert closest.status == "open"
    assert {"unigram", "bigram"} <= {*closest.object}


# Tables in the weights


@pytest.mark.parametrize("gain", [2.0, 5.0])
def test_a_copying_head_without_a_lag_has_no_table(gain):
    """On a sticky chain a copy looks like the table, which is between query and key."""
    sticky = np.full((3, 3), 0.1) + 0.7 * np.eye(3)
    result = told(by_query_and_key(log_of(sticky), gain), ["alignment"], Chain(sticky))
    matches = result.claims.first("matches")
    assert matches.status == "excluded"
    assert matches.condition("attends").holds is False
    assert "several distances" in sentence(matches)


def test_a_head_with_a_lag_has_its_table():
    assert told(value_table(L4, N_CTX), ["alignment"], CHAIN4).claims.first("matches").subject == ("L0H0",)


def test_a_path_that_reads_comes_before_a_spread_head():
    spread = reading([6 * L], [None], direct=0.3 * L)
    matches = told(spread, ["alignment"]).claims.first("matches")
    assert (matches.status, matches.subject) == ("shown", ("direct",))


def test_equal_rows_are_said_to_be_equal():
    claims = told(direct_table(log_of(LOADED), N_CTX), ["alignment"], Chain(LOADED)).claims
    assert sentence(claims.first("matches")).startswith("All rows of the transition matrix are equal")


def test_a_far_too_sure_table_is_said_to_be_farther():
    """It was said to be "at best hardly better than the unigram", and is the law at some scale."""
    matches = told(direct_table(300 * L, N_CTX), ["alignment"]).claims.first("matches")
    assert matches.condition("only its direction").value < 0
    assert "at its scale is farther than the unigram" in sentence(matches)


# Homes


def test_parts_share_what_there_is_of_it():
    """Two parts that leave a tenth of it were said to hold 100% of the bigram."""
    model = reading([-only_after(L4, [0, 1])], [OWN], direct=L4)
    cancels = told(model, ["storage"], CHAIN4).claims.first("cancels")
    assert "of what there is of the bigram" in sentence(cancels)


def test_parts_of_all_of_it_share_it():
    model = reading([2 * L4], [OWN], mlp=-L4)
    against = told(model, ["storage"], CHAIN4).claims.first("works_against")
    assert not against.holds("what there is of it")


@pytest.mark.parametrize("times", [2.5, 3.0])
def test_what_others_undo_is_told_with_its_states(times):
    """It was said that nothing is left of it, where it is whole after the other states."""
    model = reading([-times * only_after(L4, [1, 2])], [OWN], direct=L4)
    home = told(model, ["storage"], CHAIN4).claims.first("stores", object="bigram")
    assert home.condition("undone after").words == ("1", "2")
    assert sentence(home).endswith("after states 1 and 2.")


def test_what_is_undone_everywhere_has_no_states():
    home = told(reading([-2 * L4], [OWN], direct=L4), ["storage"], CHAIN4).claims.first("stores")
    assert home.condition("others undo it")
    assert home.condition("undone after") is None


def test_another_law_at_some_positions_is_partly_there():
    kernel = np.array([[[0.9, 0.1], [0.3, 0.7]], [[0.2, 0.8], [0.7, 0.3]]])
    source = OrderK(kernel.tolist())
    block, both = 2 + N_CTX, log_of(source.P)
    turns = {
        (s, 2 + at, block + t): torch.tensor(np.log(kernel[t, s])).float() if at % 2 or at > 8 else both[s]
        for s in range(2) for t in range(2) for at in range(N_CTX)
    }  # fmt: skip
    part = told(of_cells(2, turns, seen=[lag(2)]), ["storage"], source)
    whole = told(n_gram_model(kernel, N_CTX), ["storage"], source)
    homes = [one.claims.first("stores", object="order_2") for one in (part, whole)]
    assert [home.holds("what there is of it") for home in homes] == [True, False]


def test_what_takes_more_than_there_is_has_no_share():
    """An MLP undoes the direct path after state 0 at eight of twelve positions: 450% of what is left."""
    wrong = told(cells(*((0, position) for position in range(8))), ["storage"], CHAIN4).claims
    (against,) = wrong.where("works_against")
    assert against.value > 1
    assert sentence(against).endswith("against the bigram: more than all of what there is of it.")


def test_a_rank_is_at_most_the_weights_own():
    """A head's table of three states has rank 3, though its weight has room for 12."""
    claims = told(heads_in_turn([L] * 3), ["storage"]).claims
    assert claims.first("stores").number("rank that keeps 90 %") <= 3


# Programs


def test_a_program_that_is_not_told_fails_nowhere():
    """Next to "explains 98.9%" stood where another program, which was not told, leaves most."""
    result = told(late_match(2), ["program"], DirichletChains(n_states=2))
    told_of = {one.subject for one in result.claims.where("explains")}
    assert told_of == {("tables read from the weights",)}
    assert result.claims.first("fails_at") is None


def test_what_a_program_leaves_names_the_program():
    result = told(cells((0, 3), (1, 7)), ["program"], CHAIN4)
    text = " ".join(sentences(result["program"].claims))
    assert "the fitted program leaves at most" in text
