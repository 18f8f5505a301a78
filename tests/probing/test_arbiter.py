"""The arbiter: whatever probes say, what is told afterwards does not contradict itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechmarkov.claims.arbiter import arbitrate, contradictions
from mechmarkov.claims.claim import MODEL, Claim, Condition

RELATIONS = (
    "is_closest_to",
    "is_at",
    "moves",
    "reaches",
    "is_trapped_by",
    "leaves_by",
    "tempers",
    "stores",
    "matches",
    "attends_evenly",
    "attends_to",
)
names = st.sampled_from([(MODEL,), ("direct",), ("L0H0",), ("L0H0", "direct")])
claims = st.builds(
    Claim,
    subject=names,
    relation=st.sampled_from(RELATIONS),
    object=st.sampled_from([(), ("bigram",), ("unigram",), ("saddle",)]),
    value=st.sampled_from([None, 0.5]),
    interval=st.sampled_from([None, (0.4, 0.6)]),
    status=st.sampled_from(["shown", "excluded", "open"]),
    evidence=st.sampled_from(["weights", "recording", "intervention", "law"]),
    probe=st.sampled_from(["storage", "alignment"]),
)


@given(st.lists(claims, max_size=12))
def test_no_two_claims_that_are_told_contradict_each_other(said):
    told = arbitrate(said)
    assert list(contradictions(told)) == []
    assert len(told) == len(said)
    for before, after in zip(said, told, strict=True):
        changed = after != before
        assert changed == (after.against is not None)
        assert after.status == ("open" if changed else before.status)
        assert not changed or after.against in said


HOME = Claim(("L0H0",), "stores", ("bigram",), evidence="intervention")
TABLE = Claim(("direct",), "matches", ("log P",), evidence="weights")


@pytest.mark.parametrize(
    ("one", "other", "status"),
    [
        (HOME, TABLE, ("shown", "open")),  # an intervention outweighs weights
        (TABLE, HOME, ("open", "shown")),
        (  # of one kind of evidence, that with an interval
            Claim((MODEL,), "is_at", ("saddle",), 0.5, (0.4, 0.6)),
            Claim((MODEL,), "is_at", ("minimum",), 0.5),
            ("shown", "open"),
        ),
        (  # and where nothing tells them apart neither is told
            Claim((MODEL,), "is_at", ("saddle",)),
            Claim((MODEL,), "is_at", ("minimum",)),
            ("open", "open"),
        ),
    ],
)
def test_the_stronger_of_two_is_told(one, other, status):
    assert tuple(claim.status for claim in arbitrate([one, other])) == status


FIT = Claim(("a fit",), "explains", (MODEL,), 0.9, because=(Condition("term", words=("MatchHead",)),))


@pytest.mark.parametrize("status", ["excluded", "does not apply"])
def test_a_fit_has_no_circuit_that_edits_deny(status):
    edits = Claim(("L0H0",), "is_induction_head", status=status, evidence="intervention")
    assert [claim.status for claim in arbitrate([edits, FIT])] == [status, "open"]


def test_a_fit_keeps_a_circuit_that_edits_show():
    edits = Claim(("L0H0",), "is_induction_head", evidence="intervention")
    assert [claim.status for claim in arbitrate([edits, FIT])] == ["shown", "shown"]


def test_a_table_of_two_steps_is_no_other_home_of_the_bigram():
    two = Claim(("direct",), "matches", ("log P",), evidence="weights", because=(Condition("law", value=2),))
    assert [claim.status for claim in arbitrate([HOME, two])] == ["shown", "shown"]
