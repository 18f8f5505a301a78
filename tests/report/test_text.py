"""Numbers and words of the report."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechmarkov.probing.score import Score, format_null, format_value, standing
from mechmarkov.report.score_picture import rounded, score_picture
from mechmarkov.utils.text import clean, format_number, format_share, label, shorten

SUPERSCRIPTS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True))


def read_number(text: str) -> float:
    """The number that a reader reads."""
    mantissa, _, power = text.lstrip("<>").replace("−", "-").partition(" × 10")
    return float(mantissa) * 10.0 ** int("".join(SUPERSCRIPTS[c] for c in power) or "0")


@given(st.floats(-1e300, 1e300, allow_subnormal=False))
def test_a_number_reads_as_itself_to_four_digits(value):
    read = read_number(format_number(value))
    assert math.isclose(read, value, rel_tol=5.001e-4)
    assert len(re.sub(r"[^0-9]", "", format_number(value).partition(" ×")[0]).lstrip("0")) <= 6


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.000123456, "0.0001235"),
        (0.0000123456, "1.235 × 10⁻⁵"),
        (96.99999, "97"),
        (-3.0, "−3"),
        (0.0, "0"),
        (1e300, "1 × 10³⁰⁰"),
        (math.nan, "not a number"),
        (-math.inf, "−infinite"),
    ],
)
def test_numbers_as_shown(value, shown):
    assert format_number(value) == shown


@given(st.floats(0.9, 1.1), st.integers(2, 4))
def test_what_is_not_1_is_not_written_as_1(value, digits):
    said = format_number(value, digits)
    assert (said == "1") == (value == 1)
    assert (
        (said[0] == ">" and read_number(said) < value)
        or (said[0] == "<" and read_number(said) > value)
        or (said[0] in "01" and math.isclose(read_number(said), value, rel_tol=0.6 * 10.0 ** (1 - digits)))
    )
    assert (format_share(value) == "100%") == (value >= 1 and round(100 * value) == 100)
    assert (format_share(1 - value) == "0%") == (value == 1)


def test_a_score_near_1_keeps_its_distance():
    assert format_value(Score(0.9995, "probability"), 3) == "0.9995"
    assert format_value(Score(0.99999, "probability"), 3) == ">0.999"


SHOWN = [(True, "yes"), (False, "no"), ("L0H1", "L0H1"), (0.25, "0.25"), ("a\x00b", "a\\x00b")]


@pytest.mark.parametrize(("value", "shown"), SHOWN)
def test_values_as_shown(value, shown):
    assert format_value(Score(value, "")) == shown


def test_a_missing_value_is_a_dash():
    assert format_value(Score(None, "", reason="one state only")) == "–"


def test_nulls_as_shown():
    assert format_null(Score(0.5, "")) == "–"
    assert format_null(Score(0.5, "", 1 / 6)) == "0.1667"
    assert format_null(Score(0.5, "", (0.1, 0.2, 0.3))) == "0.2 (0.1 to 0.3)"


@pytest.mark.parametrize(
    ("value", "null", "interval", "expected"),
    [
        (0.5, (0.1, 0.2, 0.3), None, "above"),
        (0.3, (0.1, 0.2, 0.3), None, "within"),
        (0.0, (0.1, 0.2, 0.3), None, "below"),
        (0.35, (0.1, 0.2, 0.3), (0.28, 0.42), "within"),
        (0.35, (0.1, 0.2, 0.3), (0.31, 0.39), "above"),
        (0.5, 0.4, (0.45, 0.55), "above"),
        (0.5, 0.4, (0.35, 0.65), "within"),
        (0.3, 0.4, (0.25, 0.35), "below"),
        (0.5, 0.4, None, ""),
        (0.5, None, (0.4, 0.6), ""),
        (True, 0.0, None, ""),
        ("bigram", 0.0, None, ""),
    ],
)
def test_standing_against_the_null(value, null, interval, expected):
    assert standing(Score(value, "", null, interval)) == expected


@given(st.text(st.characters()))
def test_clean_text_can_be_written_and_misleads_nobody(text):
    shown = clean(text)
    shown.encode("utf-8")
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]", shown)
    if text.isascii() and text.isprintable():
        assert shown == text


def test_long_text_is_cut_and_says_so():
    assert shorten("x" * 10_000, 5) == "xxxxx… [10000 characters]"
    assert label("x" * 10_000, 5) == "xxxx…"
    assert label("naïve\u202e") == r"naïve\u202e"


def test_a_bar_places_its_marks_on_the_scale():
    # A cosine with negative nulls is drawn from -1 to 1: -0.5 is a quarter of the way.
    picture = score_picture(Score(0.5, "cosine", (-0.5, 0.0, 0.25), (0.4, 0.6)))
    assert picture is not None
    assert (picture.low, picture.high) == ("−1", "1")
    assert picture.null_range == (25.0, 62.5)
    assert (picture.zero, picture.null, picture.value) == (50.0, 50.0, 75.0)
    assert picture.interval == (70.0, 80.0)
    assert picture.description == (
        "value 0.5, interval 0.4 to 0.6, null 0 (−0.5 to 0.25), on a scale of −1 to 1"
    )


def test_a_probability_that_is_rounding_is_shown_as_none():
    tiny = rounded(Score(8.5e-14, "probability", (-2e-13, 0.0, 0.25), (-2.4e-13, 4.1e-13)))
    assert (tiny.value, tiny.null, tiny.interval) == (0.0, (0.0, 0.0, 0.25), (0.0, 0.0))
    assert rounded(Score(1e-7, "probability")).value == 1e-7
    assert rounded(Score(5.3e-10, "nats")).value == 5.3e-10  # has no scale of its own
    assert rounded(Score("L0H0", "share")).value == "L0H0"


def test_a_bar_without_ends_of_its_own_reaches_from_zero_to_the_largest():
    picture = score_picture(Score(1.0, "nats", 4.0))
    assert picture is not None
    assert (picture.low, picture.high, picture.value, picture.null) == ("0", "4", 25.0, 100.0)
    below = score_picture(Score(-1.0, "nats", 1.0))
    assert below is not None
    assert (below.value, below.zero, below.null) == (0.0, 50.0, 100.0)


@pytest.mark.parametrize(
    "score",
    [
        Score("bigram", "", 0.5),
        Score(True, "", 0.5),
        Score(None, "nats", 0.5, reason="none"),
        Score(3.0, "tokens"),
        Score(0.0, "nats", 0.0),
        Score(1.0, "nats", math.inf),
    ],
)
def test_no_bar_where_there_is_nothing_to_see(score):
    assert score_picture(score) is None
