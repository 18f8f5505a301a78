"""Models of known truth: a law at some places, at another temperature, or against what others write."""

import numpy as np
import pytest
import torch
from mixed_models import (
    NEVER,
    by_position,
    heads_that_cancel,
    induction_within,
    lag,
    log_of,
    reading,
    with_direct_table,
)
from models_by_hand import LOG_P
from probing_cases import P3, claims_of, probe_quickly, run_of

from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table, mlp_table, value_table
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.sources import Chain, DirichletChains, SelectiveLag

N = 12
SLOW = np.array([[0.75, 0.15, 0.1], [0.1, 0.65, 0.25], [0.2, 0.15, 0.65]])


def told(model, probes, source=None, sequences=64):
    run = run_of(model) if source is None else run_of(model, source=source)
    result = probe_quickly(run, probes, sequences=sequences)
    screen = headline(result)
    return result, screen, {tile.question: tile.answer for tile in screen.tiles}


# 1: where a law holds, whatever the share of places


@pytest.mark.parametrize(
    ("tables", "title"),
    [
        ((LOG_P, LOG_P.flip(1)), "Has the bigram, but not at positions 1, 3, …, 11"),
        ((LOG_P.flip(1), LOG_P), "Has the bigram, but not at positions 0, 2, …, 10"),
        ((LOG_P, LOG_P.flip(1), LOG_P.flip(0)), "Has the bigram only at positions 0, 3, …, 9"),
        ((LOG_P.flip(1), LOG_P, LOG_P, LOG_P), "Has the bigram, but not at positions 0, 4 and 8"),
    ],
)
def test_a_law_at_some_positions_is_told_there(tables, title):
    result, screen, answers = told(by_position(*tables), ["behaviour"])
    assert (screen.badge, screen.title) == ("partly", title)
    assert answers["What has it learned?"] == title.replace("Has the bigram", "The bigram")
    assert result.claims.first("imitates", object="bigram").where.positions


def test_a_law_after_one_state_of_four_is_told_there():
    P = np.full((4, 4), 0.05) + 0.8 * np.roll(np.eye(4), 1, axis=1)
    table = np.log(P[[1, 2, 3, 0]])
    table[2] = np.log(P[2])
    _, screen, answers = told(mlp_table(torch.tensor(table).float(), N), ["behaviour", "storage"], Chain(P))
    assert screen.title == "Has the bigram only after state 2"
    assert answers["Where does it live?"] == "The MLP of layer 0, after state 2"


@pytest.mark.parametrize("left", [0.3, 0.6])
def test_a_model_halfway_has_it_nowhere(left):
    """Rows on their way to the bigram, one of them there by chance, are on their way."""
    pi = np.linalg.matrix_power(P3, 300)[0]
    rows = left * pi + (1 - left) * P3
    rows[0] = P3[0]
    _, screen, _ = told(direct_table(log_of(rows), N), ["behaviour"])
    assert "of the way from" in screen.title


# 2: which part holds it there


@pytest.mark.parametrize("wrong", [LOG_P.flip(1), -2 * LOG_P])
def test_a_part_holds_it_where_the_model_has_it(wrong):
    result, _, answers = told(by_position(LOG_P, wrong), ["behaviour", "storage", "ablation"])
    stores = result.claims.first("stores")
    assert (stores.status, stores.subject) == ("shown", ("L0.mlp",))
    assert stores.where.positions == tuple(range(0, N, 2))
    assert result["storage"].scores["bigram_home"].value == "L0.mlp"
    assert answers["Where does it live?"] == "The MLP of layer 0, at positions 0, 2, …, 10"


def test_what_the_context_tells_somewhere_is_held_nowhere():
    outcome = told(by_position(LOG_P, LOG_P.flip(1)), ["storage"])[0]["storage"]
    read = outcome.data.assign(stored_share=0 * outcome.data["stored_share"] + 0.3)
    assert claims_of(outcome.probe, outcome.data).where("stores", status="shown")
    assert not claims_of(outcome.probe, read).where("stores", status="shown")


def test_what_is_wrong_everywhere_is_held_nowhere():
    result, _, _ = told(by_position(LOG_P.flip(1), -LOG_P), ["storage"])
    assert not result.claims.where("stores", status="shown")


# 3: nearly uniform, in the right direction


@pytest.mark.parametrize("sureness", [0.02, 0.1])
def test_a_faint_bigram_is_right_and_less_sure(sureness):
    result, screen, answers = told(
        value_table(sureness * log_of(SLOW), N), ["behaviour", "storage", "ablation"], Chain(SLOW)
    )
    assert screen.title == "Has the bigram, but is much less sure than it should be"
    assert answers["What has it learned?"] == "The bigram, much less sure"
    assert result.claims.first("tempers").value == pytest.approx(sureness, rel=0.01)
    assert result["behaviour"].verdict.startswith("At temperature")
    assert result.claims.first("stores").subject == ("L0H0",)
    assert result.claims.first("follows").value == 1


def test_a_faint_table_of_another_kind_is_not_the_bigram():
    faint = 0.05 * log_of(SLOW).flip(1)
    result, screen, _ = told(direct_table(faint, N), ["behaviour", "ablation"], Chain(SLOW))
    assert result.claims.first("tempers") is None
    assert "uniform" in screen.title
    assert result.claims.first("follows").status == "excluded"


def test_a_random_start_is_at_no_temperature():
    model = direct_table(0.05 * log_of(SLOW), N)
    screen = headline(probe_quickly(run_of(model, model, source=Chain(SLOW)), ["behaviour"], steps=[0]))
    assert (screen.badge, screen.tiles[0].answer) == ("untrained", "The uniform law")


# 4: a head that subtracts what induction would give


@pytest.mark.parametrize(("gain", "table"), [(-0.5, 1.5), (-2.0, 2.0)])
def test_a_head_against_the_law_holds_nothing(gain, table):
    model = with_direct_table(induction_pair(3, 24, gain=gain), table * log_of(SLOW))
    result, screen, answers = told(model, ["behaviour", "storage", "ablation", "induction"], Chain(SLOW))
    assert result.claims.first("stores").subject == ("direct",)
    assert result.claims.first("works_against").subject == ("L1H0",)
    assert result.claims.first("is_induction_head").condition("write against the law")
    assert answers["Where does it live?"] == "The direct path"
    assert "L1H0" not in screen.title


def test_what_a_context_adds_to_a_table_is_told():
    """The table writes as much whatever the context is: log-odds add up, and nats do not."""
    model = with_direct_table(induction_pair(3, 24, gain=2.0), 1.0 * log_of(SLOW))
    result, _, _ = told(model, ["behaviour", "storage"], Chain(SLOW))
    stores = result.claims.first("stores")
    assert (stores.status, bool(stores.condition("some from the context"))) == ("open", True)
    slopes = result["storage"].data.isel(step=-1)
    assert float(slopes["stored_slope"]) == pytest.approx(1.0, abs=0.15)
    assert float(slopes["parent_slope"]) > 1.3


# 5: each token tells all others


@pytest.mark.parametrize("back", [2, 3, 4])
def test_tokens_of_a_cycle_tell_each_other(back):
    cycle = np.roll(np.eye(5), 2, axis=1)
    table = torch.tensor(12 * np.linalg.matrix_power(cycle, back)).float()
    model = value_table(table, N, lag=back)
    result, screen, answers = told(model, ["behaviour", "attention", "storage", "ablation"], Chain(cycle))
    reads = result.claims.first("attends_to", probe="attention")
    assert reads.condition("any token tells the next")
    assert reads.condition("not the parent") is None
    assert result.claims.first("follows").status == "does not apply"
    assert screen.title.startswith("Has the bigram, but not at position")
    assert answers["Where does it live?"].startswith("L0H0")


def test_only_cycles_are_determined():
    almost = np.full((3, 3), 0.01) + 0.97 * np.roll(np.eye(3), 1, axis=1)
    result, _, _ = told(value_table(log_of(almost @ almost), N, lag=2), ["attention"], Chain(almost))
    assert result.claims.first("attends_to").condition("not the parent")


# 6: two heads that only undo each other


def test_a_head_that_undoes_another_is_no_part():
    table = 2 * torch.tensor(np.random.default_rng(4).normal(size=(3, 3))).float()
    model = heads_that_cancel(table, 2.0)
    result, screen, answers = told(
        model, ["behaviour", "ablation", "induction"], DirichletChains(n_states=3), sequences=128
    )
    assert result.claims.first("cancels").subject == ("L1H1", "L1H2")
    assert answers["Where does it live?"] == "L0H0 → L1H0"
    assert screen.named == ("L0H0", "L1H0")
    assert result.claims.first("is_needed", subject="L1H1").condition("only undoes").words == ("L1H2",)


def test_heads_of_one_circuit_do_not_cancel():
    result, _, _ = told(induction_pair(3, 24, gain=2.0), ["ablation"], DirichletChains(n_states=3))
    assert result.claims.first("cancels") is None


def test_of_two_that_one_undoes_none_is_chosen():
    table = log_of(SLOW)
    result, _, _ = told(reading([table, table, -table], [lag(1)] * 3), ["ablation"], Chain(SLOW))
    assert result.claims.first("cancels") is None
    assert result.claims.first("is_needed_most").subject == ("L0H0", "L0H1", "L0H2")


# 7: where a law lives that is not the bigram


@pytest.mark.parametrize(
    ("make", "home"), [(value_table, "L0H0"), (direct_table, "direct"), (mlp_table, "L0.mlp")]
)
def test_the_law_of_one_lag_has_a_home(make, home):
    result, screen, _ = told(
        make(log_of(SLOW), 16), ["behaviour", "storage"], SelectiveLag(SLOW.tolist(), [1, 2])
    )
    stores = result.claims.first("stores", object="lag_1")
    assert (stores.status, stores.subject) == ("shown", (home,))
    assert stores.value == pytest.approx(1.0, abs=1e-3)
    assert screen.named == (home,)
    assert "Undecided" not in screen.title


# Of other kinds


@pytest.mark.parametrize("seen", [None, [0] * N])
def test_one_token_seen_shows_no_bigram(seen):
    """At position 0 a bag of tokens, or the first token, is the current one."""
    result, screen, _ = told(reading([log_of(SLOW)], [seen]), ["behaviour", "storage"], Chain(SLOW))
    assert "position 0" not in screen.title
    assert not result.claims.first("stores").where.positions


def test_a_table_of_a_state_that_never_comes_is_not_asked():
    table = log_of(NEVER)
    table[2] = torch.tensor([0.0, 0.0, 9.0])
    result, screen, _ = told(direct_table(table, N), ["behaviour", "alignment"], Chain(NEVER))
    assert screen.title.startswith("Learned the bigram")
    assert result.claims.first("matches").is_shown
    assert result["alignment"].scores["kernel_cosine"].value == pytest.approx(1.0, abs=1e-4)


def test_a_law_that_grew_too_sure_is_not_lost():
    steps = [direct_table(sureness * log_of(SLOW), N) for sureness in (0.0, 1.0, 2.0)]
    claims = probe_quickly(run_of(*steps, source=Chain(SLOW)), ["behaviour", "dynamics"], steps="all").claims
    assert claims.first("tempers").is_shown
    assert claims.first("was_lost") is None
    assert claims.first("came_by", object="bigram").condition("lost again") is None


@pytest.mark.parametrize(("least", "most"), [(0, 6), (6, 24)])
def test_a_circuit_that_is_too_sure_carries_some_of_the_law(least, most):
    model = induction_within(3, 24, least, most, gain=2.5)
    result, _, answers = told(model, ["behaviour", "induction", "ablation"], DirichletChains(n_states=3))
    carries = result.claims.first("carries")
    assert carries.condition("not the law's") is None
    assert answers["Where does it live?"] == "L0H0 → L1H0"


def test_a_table_that_is_far_too_sure_is_found_by_its_direction():
    model = with_direct_table(induction_pair(3, 24, gain=-0.5), 3 * log_of(SLOW))
    matches = told(model, ["alignment"], Chain(SLOW))[0].claims.first("matches")
    assert (matches.status, matches.subject) == ("excluded", ("direct",))
    assert matches.condition("only its direction")


def test_a_clear_law_is_named_though_its_loss_is_not():
    _, screen, _ = told(
        direct_table(log_of(SLOW), 16), ["behaviour"], SelectiveLag(SLOW.tolist(), [1, 3]), 32
    )
    assert screen.badge in (None, "partly", "another law")
    assert screen.title.startswith("Closest to the law of lag 1")
