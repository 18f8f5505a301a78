"""Models of known truth that have one law here and another there: each is told with its place."""

import pytest
import torch
from mixed_models import N_CTX, P, lag, log_of, reading, stationary
from probing_cases import probe_quickly, run_of

from mechmarkov.claims.claim import Claim
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.forms import formed
from mechmarkov.report.words.sentences import sentence
from mechmarkov.sources import Chain, LaggedChain
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
