"""Models of known truth whose page named a wrong law, place or part, or told too much of one."""

import numpy as np
import pytest
import torch
from further_models import CYCLE, IID, after_which
from mixed_models import N_CTX, lag, log_of, reading
from models_of_new_kinds import APART, SELDOM, TURNS, fed_by_two, with_row
from more_models import L4, P4, only_after
from probing_cases import parent_logits, probe_quickly, run_of, walk_run

from mechmarkov.claims.claim import Claim, Condition, Where
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.sentences import sentence, sentences
from mechmarkov.sources import Chain, Circle, DirichletChains

CHAIN, OWN, NONE = Chain(P4), lag(1), torch.zeros(4, 4)
STICKY = np.array([[0.85, 0.15], [0.1, 0.9]])
WALK = Circle(n_states=5, p=0.6)
SCORES = np.sqrt(np.array(WALK.transition_matrix()).T)


def told(*models, probes, source=CHAIN):
    steps = "all" if len(models) > 1 else "last"
    result = probe_quickly(run_of(*models, source=source), probes, sequences=64, steps=steps)
    screen = headline(result)
    return result, screen, {tile.question: tile for tile in screen.tiles}


# Tables


def test_a_table_is_weighed_with_its_attention():
    """The table is exact, and was said to be nats away."""
    result, *_ = told(value_table(L4, N_CTX, every=2), probes=["alignment"])
    assert any("weighed with its attention" in text for text in sentences(result["alignment"].claims))
    result, *_ = told(value_table(L4, N_CTX), probes=["alignment"])
    assert not any("weighed" in text for text in sentences(result["alignment"].claims))


def test_a_law_without_rows_is_no_distance_away():
    result, *_ = told(value_table(log_of(CYCLE), N_CTX), probes=["alignment"], source=Chain(IID))
    (only,) = sentences(result["alignment"].claims)
    assert only.startswith("All rows of the transition matrix are equal")


@pytest.mark.parametrize(
    ("P", "table", "wrong"),
    [
        (SELDOM, with_row(log_of(SELDOM), 3, log_of(np.array([0.05, 0.05, 0.05, 0.85]))), ("3",)),
        (APART, only_after(log_of(APART), [2]), ("0", "1")),
    ],
)
def test_next_to_right_rows_a_slope_mends_none(P, table, wrong):
    """At another slope and bias all rows were near to the law's."""
    result, *_ = told(direct_table(table, N_CTX), probes=["alignment"], source=Chain(P))
    assert result.claims.first("matches").condition("other rows").words == wrong


@pytest.mark.parametrize(
    ("P", "slope"),
    [
        ([[1 / 3, 1 / 3, 1 / 3], [0.8, 0.15, 0.05], [0.1, 0.2, 0.7]], 0.5),
        ([[0.98, 0.01, 0.01], [0.48, 0.3, 0.22], [0.2, 0.3, 0.5]], 0.6),
    ],
)
def test_a_flat_row_says_nothing_against_a_temperature(P, slope):
    """Only the row that is right at any slope was said to be the law's."""
    model = direct_table(slope * log_of(np.array(P)), N_CTX)
    result, *_ = told(model, probes=["alignment"], source=Chain(P=P))
    has = result.claims.first("matches", status="shown")
    assert has.where == Where()
    assert has.condition("other rows") is None


def test_lags_that_tell_the_same_are_counted():
    """Half of the attention is on the parent, and half six tokens before it."""
    walk, n_ctx = Circle(n_states=6, p=1.0), 14
    at = np.arange(n_ctx)
    logits = np.where((at == n_ctx - 2) | (at == n_ctx - 8), 60.0, 0.0)
    result = probe_quickly(walk_run(walk, np.array(walk.transition_matrix()).T, logits), ["alignment"])
    assert "Tokens at other lags that tell the same are counted with it." in sentences(result.claims)


# Laws


@pytest.mark.parametrize("P", [STICKY, TURNS])
def test_a_law_of_a_token_that_is_not_read_is_nowhere(P):
    """After two equal states the row of the previous token is that of the last one."""
    _, screen, _ = told(value_table(log_of(P), N_CTX, lag=2), probes=["behaviour"], source=Chain(P))
    assert "Has the bigram" not in screen.title


def test_scores_far_from_uniform_are_not_uniform():
    """Untrained scores are as far from it: they give some states no probability at all."""
    walk = Circle(n_states=6, p=0.4)
    scores = np.roll(np.sqrt(np.array(walk.transition_matrix()).T), 1, 0)
    result = probe_quickly(walk_run(walk, scores, parent_logits(12)), ["behaviour"])
    assert "ntrained" not in headline(result).title


def test_a_law_that_was_closest_only_is_told_as_that():
    steps = [direct_table(table, N_CTX) for table in (NONE, L4, L4.T.contiguous())]
    _, _, tiles = told(*steps, probes=["dynamics"])
    assert tiles["How did it get there?"].answer == "Bigram by step 10, closest to uniform law 20"


# Parts


def test_two_parts_that_undo_each_other_are_all_there_is():
    """The probe failed, as there was no other part."""
    result, *_ = told(reading([-L4], [OWN], direct=L4), probes=["ablation"])
    assert not result.failed
    assert result.claims.first("cancels").subject == ("L0H0", "direct")
    assert result.claims.first("is_needed_most") is None


def test_two_parts_that_make_the_law_do_not_only_undo():
    result, screen, _ = told(
        reading([-2 * L4], [OWN], direct=3 * L4), probes=["behaviour", "ablation", "storage"]
    )
    assert not result.claims.where("cancels", probe="ablation")
    assert screen.title == "Learned the bigram"
    home = result.claims.first("stores", status="shown")
    assert home.subject == ("direct",)
    assert home.condition("corrected by").words == ("L0H0",)


def test_a_law_from_far_back_lives_where_it_is_needed():
    """All tokens tell the next one, and the part that reads none of the last was said to hold nothing."""
    walk, logits = Circle(n_states=5, p=1.0), np.where(np.arange(12) == 7, 60.0, 0.0)
    scores = np.linalg.matrix_power(np.array(walk.transition_matrix()).T, 4)
    result = probe_quickly(walk_run(walk, scores, logits), ["behaviour", "storage", "ablation"])
    screen = headline(result)
    assert screen.badge == "solved"
    lives = next(tile for tile in screen.tiles if tile.question == "Where does it live?")
    assert lives.answer == "L0H0"


def test_more_than_there_is_is_not_the_whole_law():
    some = (Condition("what there is of it"),)
    held = Claim(("L0H0",), "stores", ("bigram",), 1.3, unit="share", because=some)
    assert sentence(held) == "L0H0 holds more of the bigram than the model has: others take away."


def test_what_contradicts_a_program_is_named_first():
    terms = tuple(Condition("term", words=(kind,)) for kind in ("TokenHead", "LagHead", "Position"))
    found = Claim(
        ("best program found",), "explains", ("model",), 0.9, unit="share", status="open",
        because=(*terms, Condition("term", value=2.0, words=("MatchHead",))),
    )  # fmt: skip
    assert sentence(found).startswith("An induction head")


def test_a_law_after_some_pairs_is_in_none_on_average():
    """The title said where the model has the bigram, and the tile that no part holds it."""
    model = after_which([L4, *[L4.flip(1)] * 3])
    _, screen, tiles = told(model, probes=["behaviour", "storage"])
    assert screen.title == "Has the bigram only where 0 came before the last state"
    assert tiles["Where does it live?"].answer == "On average no part holds the bigram"


def test_a_feeder_against_another_is_told_in_words():
    result, *_ = told(fed_by_two(0.4), probes=["induction"], source=DirichletChains(n_states=3))
    assert "turns away from matches" in sentence(result.claims.first("feeds"))


# Whether it stays


def test_a_saddle_may_move_inside_the_symmetric_subspace():
    """It reads two tokens evenly, and its scores grow."""
    logits = np.where(np.arange(12) >= 9, 60.0, 0.0) * (np.arange(12) < 11)
    result = probe_quickly(walk_run(WALK, SCORES, logits), ["behaviour", "landscape"])
    point = result.claims.first("is_at", object="saddle", status="shown")
    assert point.condition("drift").value > 0.01
    assert sentence(point).startswith("Outside the symmetric subspace it is at a saddle")


def test_a_cut_that_turns_a_head_away_leaves_no_share():
    feeds = Claim(("L0H0",), "feeds", ("L1H0",), -0.7, because=(Condition("through", words=("keys",)),))
    assert sentence(feeds).endswith("without that path it turns away from matches, by 70% of its induction.")
