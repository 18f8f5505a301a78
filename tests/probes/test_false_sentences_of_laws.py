"""Models of known truth whose page named no opposite, a wrong law or parent, or no part that does it."""

import numpy as np
import pytest
import torch
from mixed_models import LONG, N_CTX, lag, log_of, reading, with_direct_table
from more_models import L4, P4
from probing_cases import P3, parent_logits, probe_quickly, run_of, walk_run

from mechmarkov.claims.claim import Claim, Condition
from mechmarkov.models.constructions.counting_mamba import counting_mamba
from mechmarkov.models.constructions.disentangled import graph_heads
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.objectives import Objective
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.sentences import sentence, sentences
from mechmarkov.sources import (
    CausalGraph,
    Chain,
    Circle,
    DirichletChains,
    HiddenMarkov,
    HiddenMixture,
    LaggedChain,
    SelectiveLag,
    Tokenised,
)

CHAIN, REDRAWN, L3 = Chain(P4), DirichletChains(n_states=3), log_of(P3)
STICKY = np.array([[0.8, 0.2], [0.2, 0.8]])
EITHER = SelectiveLag(P4.tolist(), [1, 3])
IN_PAIRS = Tokenised(
    source={"kind": "switch", "p": 0.8, "q": 0.8, "lag": 2},
    tokeniser={"kind": "greedy", "words": ["a", "b", "ab", "ba"]},
)
NOISY = HiddenMarkov(transitions=[[0.9, 0.1], [0.1, 0.9]], emissions=[[0.8, 0.2], [0.2, 0.8]])
ALIKE = HiddenMarkov(transitions=[[0.5, 0.5], [0.5, 0.5]], emissions=[[0.8, 0.2], [0.2, 0.8]])


def told(*models, probes, source=CHAIN, **run):
    steps = "all" if len(models) > 1 else "last"
    result = probe_quickly(run_of(*models, source=source, **run), probes, sequences=64, steps=steps)
    screen = headline(result)
    return result, screen, {tile.question: tile for tile in screen.tiles}


def lives(tiles):
    return tiles["Where does it live?"]


# The opposite of a law


@pytest.mark.parametrize(("P", "times"), [(P4, -0.5), (P4, -2.0), (STICKY, -1.0)])
def test_an_opposite_is_the_title(P, times):
    result, screen, tiles = told(
        direct_table(times * log_of(P), N_CTX), probes=["behaviour"], source=Chain(P)
    )
    opposes = result.claims.first("opposes")
    assert (opposes.object, opposes.value) == (("bigram",), pytest.approx(times, rel=0.01))
    assert screen.badge == "another law"
    assert screen.title.startswith("Has the opposite of the bigram")
    assert tiles["What has it learned?"].answer == "The opposite of the bigram"
    assert result["behaviour"].verdict.startswith("It has the opposite of the bigram: ")


@pytest.mark.parametrize("table", [-0.02 * L4, 2 * L4, L4.roll(1, 1)])
def test_what_is_hardly_there_has_no_opposite(table):
    result, *_ = told(direct_table(table, N_CTX), probes=["behaviour"])
    assert result.claims.first("opposes") is None


# Which token tells the next


@pytest.mark.parametrize(("source", "order"), [(IN_PAIRS, 1), (NOISY, None), (ALIKE, 0)])
def test_hidden_states_may_tell_no_more_than_tokens(source, order):
    assert source.order == order


def test_a_token_that_tells_all_is_a_parent():
    """The page said that the bigram is the exact filter, and that no single token is the parent."""
    result, *_ = told(
        direct_table(log_of(IN_PAIRS.P), N_CTX), probes=["behaviour", "ablation"], source=IN_PAIRS
    )
    follows = result.claims.first("follows")
    assert (follows.status, follows.value) == ("shown", 1.0)


def test_where_no_token_is_the_parent_none_is_set():
    result, *_ = told(direct_table(torch.zeros(2, 2), N_CTX), probes=["ablation", "storage"], source=NOISY)
    assert result.claims.first("follows").condition("no single parent")
    assert not [text for text in sentences(result["storage"].claims) if "the parent" in text]


@pytest.mark.parametrize("k", [1, 3])
def test_the_law_of_a_lag_is_in_the_weights(k):
    """It was compared with the mean over sequences of other lags too."""
    result, *_ = told(value_table(L4, 16, lag=k), probes=["alignment"], source=EITHER)
    matches = result.claims.first("matches")
    assert matches.value == pytest.approx(1.0, abs=1e-4)
    assert sentence(matches).startswith(f"L0H0 has the law of lag {k} in the weights (cosine")


def test_the_mean_over_lags_is_another_law():
    result, *_ = told(direct_table(log_of(EITHER.P), 16), probes=["alignment"], source=EITHER)
    assert sentence(result.claims.first("matches")).startswith("The direct path has the transition matrix")


def test_the_title_and_its_part_have_one_law():
    """In a walk that is certain, a law of two steps is the bigram."""
    walk = Circle(n_states=6, p=1.0)
    table = torch.tensor(8 * np.roll(np.eye(6), 2, axis=1)).float()
    _, screen, tiles = told(value_table(table, N_CTX, lag=2), probes=["behaviour", "storage"], source=walk)
    assert screen.title == "Has the bigram, but not at position 0"
    assert lives(tiles).sentence.startswith("L0H0 holds the bigram at positions 1 to 11")


# Which part does it


def test_a_part_of_the_bigram_is_not_the_home():
    """The model is closest to the bigram, on its way to another law, by a head against the bigram."""
    model = reading([0.4 * L4, 0.4 * L4], [lag(1, 16), lag(3, 16)], 16, mlp=0.2 * L4)
    result, _, tiles = told(model, probes=["behaviour", "storage", "ablation"], source=EITHER)
    assert result.claims.first("works_against").subject == ("L0H1",)
    assert lives(tiles).answer == "L0H1"
    assert "is needed most" in lives(tiles).sentence


def test_the_only_head_is_where_it_is():
    """It counts pairs, and is too sure of them for its loss."""
    model = counting_mamba(3, LONG)
    _, _, tiles = told(model, probes=["behaviour", "induction", "ablation"], source=REDRAWN)
    assert lives(tiles).answer == "L0H0"
    assert "L0H0 does harm" in lives(tiles).sentence


def test_what_does_harm_is_told_where_need_is_open():
    model = with_direct_table(induction_pair(3, LONG, gain=-2.0), torch.eye(3))
    result, _, tiles = told(model, probes=["behaviour", "ablation"], source=REDRAWN)
    assert result.claims.first("is_needed_most").status == "open"
    assert "L1H0 does harm: without it the loss falls by" in lives(tiles).sentence


def test_a_law_at_some_places_is_in_none_on_average():
    parent = [max(0, at - 1) if at % 2 == 0 else at for at in range(N_CTX)]
    _, screen, tiles = told(
        reading([L3], [parent]), probes=["behaviour", "ablation"], source=LaggedChain(P3.tolist(), 2)
    )
    assert screen.title.startswith("Has the law of lag 2 only at")
    assert lives(tiles).answer == "On average in none: L0H0 does harm"


def test_a_circuit_that_scores_made_is_not_without_need():
    parents = [[], [0], [1], [2], [0], [4], [5], [1], [7], [8], [3], [6], [9], [10], [13]]
    source, scores = (
        CausalGraph(n_states=3, parents=parents),
        Objective(kind="raw_log", read="last", eps=0.05),
    )
    result, *_ = told(graph_heads(3, parents[:-1]), probes=["ablation"], source=source, objective=scores)
    told_most = sentence(result.claims.first("is_needed_most"))
    assert told_most.startswith("In cross-entropy, which it was not trained on, no part is needed: ")


# How it got there, and whether it stays


def test_a_better_law_at_the_start_tells_the_lesser():
    tables = [t * L4 for t in (1.0, 0.0, -1.0)]
    result, *_ = told(*(direct_table(t, N_CTX) for t in tables), probes=["behaviour", "dynamics"])
    assert "The bigram was there at step 0, the first probed, and was lost" in result["dynamics"].verdict
    assert "unigram" not in result["dynamics"].verdict


def test_noise_may_hide_that_a_point_is_not_stationary():
    """Its table is 0.7 of the law's, and an induction head adds to it."""
    model = with_direct_table(induction_pair(4, 12, gain=1.0), 0.7 * L4)
    result, _, tiles = told(model, probes=["behaviour", "landscape"])
    point = result.claims.first("is_at")
    assert (point.status, point.object) == ("open", ("minimum", "saddle", "neither"))
    assert tiles["Is it stuck?"].answer == "At a minimum, a saddle or neither: open"


def test_a_program_that_is_open_is_one_short_sentence():
    terms = (Condition("term", words=("LagHead",)), Condition("term", value=3.0, words=("MatchHead",)))
    rest = tuple(Condition("term", value=float(order), words=("Counts",)) for order in (1, 2, 3))
    against = Claim(("L0H0",), "is_induction_head", status="excluded", probe="induction")
    found = Claim(
        ("best program found",), "explains", ("model",), 0.711, unit="share", status="open",
        because=(Condition("numbers", value=73), *terms, *rest), against=against,
    )  # fmt: skip
    assert len(sentence(found).split()) <= 25


def test_a_row_that_is_right_by_chance_has_no_home():
    """Two states are renamed, and after a third one the same follows: behaviour tells no place."""
    renamed = log_of(P4[[1, 0, 2, 3]][:, [1, 0, 2, 3]])
    result, screen, tiles = told(direct_table(renamed, N_CTX), probes=["behaviour", "storage", "ablation"])
    assert result.claims.first("stores").where.states == ("2",)
    assert "bigram" not in screen.title
    assert lives(tiles).answer == "In none: the direct path does harm"


def test_a_belief_that_is_open_is_not_told_as_read():
    around = Claim(("embed",), "reads_part", ("task",), -0.03, (-0.13, 0.08), unit="R²", status="open")
    assert sentence(around).startswith("Whether some of the belief over the task is read from the embedding")


def test_a_table_of_a_law_next_to_the_unigram_is_it():
    """The law of two tokens is hardly the unigram's distance, and others are far."""
    emissions = [[0.95, 0.05], [0.05, 0.95]]
    tasks = [
        {"transitions": P, "emissions": emissions}
        for P in ([[0.9, 0.1], [0.1, 0.9]], [[0.2, 0.8], [0.8, 0.2]])
    ]
    source = HiddenMixture(tasks=tasks)
    result, *_ = told(direct_table(log_of(source.P), 16), probes=["alignment"], source=source)
    matches = result.claims.first("matches")
    assert (matches.status, matches.value) == ("shown", pytest.approx(1.0, abs=1e-3))


@pytest.mark.parametrize("p", [0.25, 0.0])
def test_a_walk_the_other_way_is_at_no_minimum_inside(p):
    """Scores grow or fall by what all states have in common, where the gradient is not zero."""
    right = Circle(n_states=6, p=1 - p)
    reversed_ = np.array(Circle(n_states=6, p=p).transition_matrix()).T
    result = probe_quickly(walk_run(right, np.sqrt(reversed_), parent_logits(15)), ["behaviour", "landscape"])
    point = result.claims.first("is_at")
    assert point.condition("drift").value > 0.1
    assert sentence(point).startswith("Outside the symmetric subspace it is at a local minimum")
    stuck = next(tile for tile in headline(result).tiles if tile.question == "Is it stuck?")
    assert stuck.answer == "Outside the symmetric subspace at a minimum"
