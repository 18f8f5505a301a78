"""Forms of runs that are decided, and those that are not."""

import pytest

from mechmarkov.claims.claim import Claim
from mechmarkov.report.words.forms import formed

WORDS = "an induction head"


@pytest.mark.parametrize(
    ("status", "has"), [("shown", True), ("excluded", False), ("open", None), ("does not apply", None)]
)
def test_what_a_claim_leaves_open_is_not_decided(status, has):
    claim = Claim(("L1H0",), "is_induction_head", (), 0.5, status=status, probe="induction")
    assert formed([claim], ["induction"])[WORDS] is has


def test_what_was_not_asked_is_not_decided():
    assert formed([], ["attention"])[WORDS] is None
    assert formed([], ["induction"])[WORDS] is False


@pytest.mark.parametrize("part", ["direct", "L0.mlp", "L0H0"])
def test_a_table_is_told_of_the_weights_whatever_the_part(part):
    """The direct path and MLPs were told as "in a value circuit"."""
    has = formed([Claim((part,), "matches", ("log P",), 1.0, probe="alignment")], ["alignment"])
    assert [words for words, it_has in has.items() if it_has] == ["the target's table in the weights"]
