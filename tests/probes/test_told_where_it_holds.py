"""Models of known truth that have one law here and another there: each is told with its place."""

import numpy as np
import pytest
import torch
from mixed_models import N_CTX, P, by_position, lag, log_of, reading, stationary
from more_models import L4, P4
from probing_cases import probe_quickly, run_of

from mechmarkov.claims.claim import Claim
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.differences import differences
from mechmarkov.report.words.forms import formed
from mechmarkov.report.words.sentences import sentence
from mechmarkov.sources import Chain, ChainMixture, DirichletChains, LaggedChain, SelectiveLag
from mechmarkov.utils.text import format_number

CHAIN, L, PI = Chain(P), log_of(P), stationary(P)
UNIGRAM, NONE = log_of(PI).repeat(3, 1), torch.zeros(3, 3)


def told(*models, probes, source=CHAIN, sequences=64, **run):
    steps = "all" if len(models) > 1 else "last"
    result = probe_quickly(run_of(*models, source=source, **run), probes, sequences=sequences, steps=steps)
    screen = headline(result)
    return result, screen, {tile.question: tile for tile in screen.tiles}


# Attention


@pytest.mark.parametrize(
    ("model", "positions"),
    [
        (value_table(L, N_CTX, every=2), tuple(range(0, N_CTX, 2))),
        (value_table(L, N_CTX, every=3), tuple(range(0, N_CTX, 3))),
        (reading([L], [[at if at < 6 else 0 for at in range(N_CTX)]]), tuple(range(6))),
    ],
)
def test_a_head_that_reads_the_parent_at_some_positions(model, positions):
    """It was said to settle on no token, as its mean attention is spread."""
    result, screen, _ = told(model, probes=["attention"])
    reads = result.claims.first("attends_to", object="parent")
    assert (reads.status, reads.where.positions) == ("shown", positions)
    assert reads.value == pytest.approx(1, abs=1e-5)
    assert sentence(reads).endswith("only.")
    assert "reads" not in screen.title
    assert not result.claims.everywhere().where("attends_to", status="shown")


def test_a_head_of_two_tokens_by_turns_has_both():
    seen = [at if at < 8 else at - 1 for at in range(16)]
    result, *_ = told(
        reading([L], [seen], 16), probes=["attention", "alignment"], source=LaggedChain(P.tolist(), 2)
    )
    reads = {one.object[-1]: one.where.positions for one in result.claims.where("attends_to", status="shown")}
    assert reads == {"current token": tuple(range(8)), "previous token": tuple(range(8, 16))}
    matches = result.claims.first("matches")
    assert (matches.status, matches.subject) == ("shown", ("L0H0",))  # it has the parent's table


@pytest.mark.parametrize("other", [2, 3])
def test_a_head_that_is_spread_reads_nothing_anywhere(other):
    halves = reading([L], [lag(1)])
    with torch.no_grad():
        halves.blocks[0].attn.W_Q[0, 6 + torch.arange(N_CTX), torch.tensor(lag(other))] = 60.0
    claims = told(halves, probes=["attention"])[0].claims
    assert not claims.where("attends_to", status="shown")


def test_a_form_at_some_positions_does_not_count():
    claims = told(value_table(L, N_CTX, every=2), probes=["attention"])[0].claims
    assert formed(claims, ["attention"])["a head that reads the parent"] is False


def test_each_head_is_asked_what_it_reads():
    """A head that reads the first token was said to spread its attention next to one that reads a lag."""
    late = [at if at >= 6 else 0 for at in range(N_CTX)]
    claims = told(reading([L, L, L], [lag(1), [0] * N_CTX, late]), probes=["attention"])[0].claims
    reads = {one.subject[0]: one.object[-1] for one in claims.where("attends_to", status="shown")}
    assert reads == {"L0H0": "current token", "L0H1": "first token", "L0H2": "current token"}
    assert not claims.where("attends_to", status="excluded")


# Laws


@pytest.mark.parametrize(
    ("tables", "told_there"),
    [
        ([UNIGRAM] * 4 + [L] * 8, "At positions 0 to 3 it predicts like the unigram"),
        ([L, UNIGRAM], "At positions 1, 3, …, 11 it predicts like the unigram"),
        ([L, L, L.flip(1)], "At positions 2, 5, …, 11 it is up to"),
    ],
)
def test_the_law_where_another_fails_is_named(tables, told_there):
    result, _, tiles = told(by_position(*tables), probes=["behaviour"])
    assert sentence(result.claims.first("fails_at")).startswith(told_there)
    assert tiles["What has it learned?"].sentence.startswith(told_there)


def test_what_holds_at_some_positions_is_said_of_them():
    """It was said that the model predicts like the bigram, and that its KL from it is 0.07 nats."""
    like = told(by_position(L, UNIGRAM), probes=["behaviour"])[0].claims.first("imitates", object="bigram")
    assert sentence(like).startswith("At positions 0, 2, …, 10 it predicts like the bigram: KL")
    assert "at positions 0, 2, 4, …" in repr(like)


@pytest.mark.parametrize("of", [[1.0, 0.0], [0.5, 0.5]])
def test_a_row_of_all_chains_shows_no_retrieval(of):
    """Both chains have one row after state 0: a table that is right there does not retrieve."""
    chains = np.array([P, [P[0], P[2][::-1], P[1][::-1]]])
    table = log_of(np.einsum("c,cij->ij", of, chains))
    result, screen, _ = told(
        direct_table(table, 16), probes=["behaviour"], source=ChainMixture(chains=chains.tolist())
    )
    assert result.claims.first("fails_at") is None
    assert "only" not in screen.title


def test_a_temperature_that_grows_is_told():
    """Next to the positions at which it is right there are some at which it is nearly so."""
    heats = np.linspace(0.3, 1.0, N_CTX)
    _, screen, _ = told(by_position(*(heat * L for heat in heats)), probes=["behaviour"])
    assert screen.title == "Has the bigram, but is less sure at positions 0 to 7"


def test_a_law_of_a_lag_is_found_at_any_scale():
    """Three heads have a third of one lag's law each, which is nearer in nats to laws of steps."""
    heads = reading([L4 / 3] * 3, [lag(k, 16) for k in (1, 2, 4)], 16)
    claims = told(heads, probes=["alignment"], source=SelectiveLag(P4.tolist(), [1, 2, 4]))[0].claims
    found = {one.subject[0]: (one.value, one.condition("law").words) for one in claims.where("matches")}
    assert found == {f"L0H{head}": (pytest.approx(1.0, abs=1e-4), ("lag",)) for head in range(3)}


# Induction


@pytest.mark.parametrize(
    ("lags", "words"), [((1,), None), ((1, 2), "that matches two tokens"), ((1, 2, 3), "three tokens")]
)
def test_an_induction_head_says_how_many_tokens_it_matches(lags, words):
    redrawn = DirichletChains(n_states=2)
    claims = told(induction_pair(2, 24, lags=lags), probes=["induction"], source=redrawn)[0].claims
    head = claims.first("is_induction_head")
    assert head.number("tokens matched") == (len(lags) if words else 0)
    assert (words or "is an induction head: ") in sentence(head)
    assert ("match" in sentence(head)) is bool(words)


# Programs


@pytest.mark.parametrize(
    ("tables", "n_ctx", "kind"),
    [
        ([UNIGRAM] * 4 + [L] * 8, 12, "PlacedTable"),
        ([(0.3 + 0.06 * at) * L for at in range(12)], 12, "PlacedTable"),
        ([L, UNIGRAM], 12, "TurnTable"),
        ([L, L.roll(1, 1)], 24, "TurnTable"),
    ],
)
def test_a_table_that_changes_over_positions_is_named(tables, n_ctx, kind):
    """It was told as counts, pairs of tokens and three terms more, which left a third of it."""
    result, *_ = told(by_position(*tables, n_ctx=n_ctx), probes=["program"])
    best = result.claims.first("explains")
    assert best.value > 0.999
    terms = [one for one in best.because if one.name == "term"]
    assert [one.words for one in terms] == [(kind, "current token")]
    assert sentence(best).startswith("A table of the current token ")


def test_what_no_position_changes_has_one_table():
    best = told(by_position(L, L), probes=["program"])[0].claims.where("explains")
    assert [one.words[0] for claim in best for one in claim.because if one.name == "term"] == ["Table"]


# Side by side


@pytest.mark.parametrize(
    ("models", "did"),
    [
        ([direct_table(3 * L, N_CTX)], "ended with the bigram, but more sure"),
        ([by_position(L, L.flip(1))], "ended with the bigram, but not at positions 1, 3, …, 11"),
        ([direct_table(-L, N_CTX)], "ended with the opposite of the bigram"),
        ([direct_table(NONE, N_CTX)], "ended at the uniform law"),
        ([reading([4 * torch.eye(3)], [[0] * N_CTX])], "did not learn the bigram"),
        ([direct_table(L, N_CTX), direct_table(UNIGRAM, N_CTX)], "ended at the unigram"),
    ],
)
def test_runs_side_by_side_are_told_as_on_their_pages(models, did):
    """Told were "−187% of the way", "learned another law" of no law, and "stayed" of a law that was lost."""
    page = told(*models, probes=["behaviour"])
    other = told(direct_table(L, N_CTX), probes=["behaviour"])
    both = {"one": page, "two": other}
    sentence_of_both = differences(
        {name: screen.badge for name, (_, screen, _) in both.items()},
        {name: result.claims for name, (result, *_) in both.items()},
        dict.fromkeys(both, ()),
    )
    assert sentence_of_both == f"one {did}; two learned the bigram."


# Numbers next to 1


@pytest.mark.parametrize(("value", "told"), [(1.0004, "1.00"), (1.0007, "1.001"), (-1.0002, "−1.00")])
def test_what_is_just_over_one_is_rounded(value, told):
    """It was printed as "<1.001", as if a share could be beyond all of it."""
    assert format_number(value, 3) == told
    slope = Claim(("direct",), "matches", ("log P",), 1.0004, unit="1 is exact", because=())
    assert "<" not in sentence(slope)


# When


def test_a_law_is_closest_only_while_it_clearly_is():
    """At the last step behaviour did not tell laws apart, of which dynamics had one as the closest."""
    tables = [NONE, UNIGRAM, log_of((P + PI) / 2)]
    result, _, tiles = told(
        *(direct_table(table, N_CTX) for table in tables), probes=["behaviour", "dynamics"]
    )
    passed = [(one.status, one.where.steps) for one in result.claims.where("passed")]
    assert passed == [("shown", (0, 0)), ("shown", (10, 10)), ("open", (20, 20))]
    assert result.claims.first("is_closest_to").status == "open"
    assert tiles["How did it get there?"].answer == "Unigram by step 10, undecided from step 20"


def test_what_is_closest_is_not_said_to_be_unseen():
    """The same page said "unigram by step 10" and "the unigram cannot be seen to come here"."""
    result, *_ = told(*(direct_table(table, N_CTX) for table in (NONE, UNIGRAM, L)), probes=["dynamics"])
    unseen = result.claims.first("came_by", object="unigram")
    assert unseen.status == "does not apply"
    assert "come" not in sentence(unseen)
