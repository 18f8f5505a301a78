"""Texts as sequences: their lines, their numbers, and what has to be asked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.sources.estimation import files
from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.sources.estimation.encode import encode
from mechmarkov.sources.observed import Observed

RNG = np.random.default_rng(0)
ROWS = RNG.integers(0, 3, (60, 40))
LETTERS = ["".join("abc"[state] for state in row) for row in ROWS]
STATES = RNG.integers(0, 3, 300)


def written(tmp_path, text, name="a.txt"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def rows_of(source):
    return np.split(source.tokens, np.cumsum(source.lengths)[:-1])


def asked(path, **options):
    with pytest.raises(OptionError) as error:
        Observed.read(path, **options)
    assert "\n" not in str(error.value)
    return error.value


def check_every_choice(path, error, **options):
    """What a question offers is taken."""
    for more, _ in error.choices:
        Observed.read(path, order=1, **(options | more))


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_line_end_that_ends_a_text_is_no_state(tmp_path, end):
    path = tmp_path / "a.txt"
    path.write_bytes(b"abcab" * 40 + end.encode())
    assert Observed.read(path, order=1) == Observed("abcab" * 40, order=1)
    assert Observed("abcab" * 40, order=1) == Observed("abcab" * 40 + "\n", order=1)


def test_line_ends_within_a_text_are_states(tmp_path):
    source = Observed.read(written(tmp_path, "the cat sat\non the mat and slept\n" * 20), order=1)
    assert source.names[0] == "\n"
    assert (source.tokens == 0).sum() == 39


def test_lines_are_sequences_where_that_is_said(tmp_path):
    source = Observed.read(written(tmp_path, "\n".join(LETTERS) + "\n\n"), lines=True, order=1)
    assert source.names == ("a", "b", "c")
    np.testing.assert_array_equal(rows_of(source), ROWS)


LINES, WORDS, WHOLE = {"lines": True}, {"unit": "word"}, {"lines": False}
ASKED = {
    "lines of one length": ("\n".join(LETTERS), "60 lines of 40 characters", [LINES, WHOLE]),
    "with a shorter one": ("\n".join([*LETTERS, "abc"]), "61 lines of 40 characters", None),
    "names": ("\n".join(line[: 3 + len(line) % 7] for line in LETTERS), "60 lines of 8 characters", None),
    "of any length": ("\n".join(x[: 3 + i % 7] for i, x in enumerate(LETTERS)), "60 lines without", None),
    "states": ("ann\nbobby\nann\n" * 40, "120 lines without", [LINES, WORDS | WHOLE, WHOLE]),
    "letters apart": ("\n".join(map(" ".join, LETTERS)), "60 lines of 79", [LINES, WORDS | LINES, WHOLE]),
    "bits": ("\n".join("".join(map(str, row % 2)) for row in ROWS), "60 lines of 40 characters", None),
    "a number a line": ("\n".join(map(str, STATES)), "holds 300 numbers", [WORDS]),
    "numbers": ("0 1 2 10 " * 40, "holds 160 numbers", [WORDS, {"unit": "character", "lines": False}]),
    "rows": ("\n".join(" ".join(map(str, row)) for row in ROWS), "holds 2400 numbers", None),
    "rows with commas": ("\n".join(", ".join(map(str, row)) for row in ROWS), "holds 2400 numbers", None),
}


@pytest.mark.parametrize(("text", "said", "ways"), ASKED.values(), ids=ASKED)
def test_a_text_that_may_be_meant_in_several_ways_is_asked_about(tmp_path, text, said, ways):
    path = written(tmp_path, text)
    error = asked(path)
    assert said in str(error)
    if ways is not None:
        assert [options for options, _ in error.choices] == ways
    check_every_choice(path, error)


@pytest.mark.parametrize(
    "text",
    [
        "the cat sat\non the mat\nall day long and slept.\n" * 20,
        "ab" * 100,
        "the cat sat on the mat.\n" * 40,
        "ab\nba\n" + "c d" * 60,
    ],
)
def test_a_text_is_not_asked_about_without_a_sign(tmp_path, text):
    Observed.read(written(tmp_path, text))


def test_numbers_in_a_text_are_numbers(tmp_path):
    path = written(tmp_path, "0 1 2 10\n" * 40)
    as_they_are = Observed.read(path, unit="word", lines=False, order=1)
    assert as_they_are == Observed([0, 1, 2, 10] * 40, order=1)
    assert as_they_are.n_states == 11
    in_order = Observed.read(path, unit="word", lines=False, order=1, relabel=True)
    assert in_order.names == ("0", "1", "2", "10")
    with_commas = Observed.read(
        written(tmp_path, "0, -1; 10,10\n" * 40), unit="word", lines=False, relabel=True
    )
    assert (with_commas.names, with_commas.tokens[:4].tolist()) == (("-1", "0", "10"), [1, 0, 2, 2])
    with_a_word = Observed.read(written(tmp_path, "in 10 of 9 " * 40), unit="word", order=1)
    assert with_a_word.names == ("10", "9", "in", "of")  # as Python sorts words


def test_rows_of_numbers_are_sequences(tmp_path):
    np.savetxt(tmp_path / "a.txt", ROWS, fmt="%d")
    source = Observed.read(tmp_path / "a.txt", unit="word", lines=True, order=1)
    np.testing.assert_array_equal(rows_of(source), ROWS)


def test_numbers_that_are_not_integers_are_refused(tmp_path):
    np.savetxt(tmp_path / "a.txt", ROWS)
    with pytest.raises(
        ValueError, match=r"^a.txt holds numbers such as '2.0+e\+00', expected integers: np.sav"
    ):
        Observed.read(tmp_path / "a.txt")


@settings(deadline=None)
@given(
    st.text("ab \n0", min_size=2, max_size=9),
    st.sampled_from([None, "character", "word"]),
    st.sampled_from([None, True, False]),
)
def test_any_text_is_read_whole_or_refused_in_one_line(tmp_path_factory, text, unit, lines):
    text = text * 60
    path = written(tmp_path_factory.mktemp("texts"), text)
    nothing = {"dtype": None, "column": None, "sequence": None, "limit": None}
    try:
        tokens, each = files.read(path, unit=unit, lines=lines, **nothing)
        found = encode(tokens, None, None, each=each)
    except ValueError as error:
        said = str(error)
    else:
        said = "read"
        rows = [row for row in text.split("\n") if row.strip()] if lines else [text.removesuffix("\n")]
        if unit != "word":
            assert found.lengths == tuple(map(len, rows))
            assert "".join(found.names[state] for state in found.states) == "".join(rows)
    assert said.isprintable()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"ab\0c" * 50, r'a NUL byte, at 2, as no text has: dtype="uint16" reads'),
        (b"\xe9" * 200, r'not a text in UTF-8: byte 0; expected a text, .* with dtype, .bin: dtype="uint16"'),
        ("ab".encode("utf-16") * 100, "is a text in UTF-16, expected one in UTF-8"),
    ],
)
def test_bytes_that_are_no_text(tmp_path, content, said):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=said):
        Observed.read(tmp_path / "a.txt")


def test_a_nul_in_a_text_of_python_is_refused():
    with pytest.raises(ValueError, match=r"^tokens\[1\] is '\\x00', expected no NUL byte"):
        Observed("a\0b" * 100)


def test_a_text_is_read_only_as_far_as_its_limit(tmp_path):
    path = written(tmp_path, "é" * 3 + "ab" * 400_000)  # two bytes each, so that a cut may fall within one
    source = Observed.read(path, limit=1001, order=1)
    assert len(source.tokens) == 1001
    words = written(tmp_path, "ann bob " * 400)
    assert len(Observed.read(words, unit="word", limit=150, order=1).tokens) == 150


def test_options_of_a_text_for_another_file_and_the_other_way_round(tmp_path):
    np.save(tmp_path / "a.npy", STATES)
    for options in ({"unit": "word"}, {"lines": True}, {"column": "a"}, {"dtype": "uint16"}):
        (name,) = options
        with pytest.raises(ValueError, match=rf"^{name} is .*, expected none for a.npy, "):
            Observed.read(tmp_path / "a.npy", **options)
    path = written(tmp_path, "ab" * 100)
    with pytest.raises(ValueError, match=r"^each is 'character', expected none: of a text, unit says"):
        Observed.read(path, each="character")
    for options in ({"unit": "letter"}, {"lines": 1}, {"lines": "yes"}, {"limit": "9"}, {"limit": -1}):
        (name,) = options
        with pytest.raises(ValueError, match=rf"^{name} is "):
            Observed.read(path, **options)
