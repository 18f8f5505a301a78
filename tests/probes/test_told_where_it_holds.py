"""Models of known truth that have one law here and another there: each is told with its place."""

import pytest
from probing_cases import probe_quickly, run_of

from mechmarkov.claims.claim import Claim
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.sentences import sentence
from mechmarkov.sources import ContextTree
from mechmarkov.utils.text import format_number


# Numbers next to 1


@pytest.mark.parametrize(("value", "told"), [(1.0004, "1.00"), (1.0007, "1.001"), (-1.0002, "−1.00")])
def test_what_is_just_over_one_is_rounded(value, told):
    """It was printed as "<1.001", as if a share could be beyond all of it."""
    assert format_number(value, 3) == told
    slope = Claim(("direct",), "matches", ("log P",), 1.0004, unit="1 is exact", because=())
    assert "<" not in sentence(slope)
