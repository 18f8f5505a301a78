"""Integers as states: as they are, or in their order; and states that never occur."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mechmarkov as mm
from mechmarkov.importing.vocabulary import source_and_ids
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.sources.estimation.encode import encode
from mechmarkov.sources.observed import Observed

ROWS = np.random.default_rng(0).integers(0, 3, (60, 20))
SHIFTED = {"from 1": ROWS + 1, "gapped": 10 * ROWS + 10, "spins": 2 * ROWS - 2}
SHIFTED |= {"of a tokenizer": 5000 * ROWS + 17}


def model(n_tokens, n_ctx=10):
    shape = {"n_layers": 1, "d_model": 8, "n_ctx": n_ctx, "d_head": 4, "n_heads": 2, "attn_only": True}
    return HookedDecoder(DecoderConfig(d_vocab=n_tokens, **shape))


@settings(deadline=None)
@given(st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=9, unique=True))
def test_relabelled_integers_are_states_in_their_order(numbers):
    data = np.array(numbers * 60)
    found = encode(data, None, None, relabel=True)
    assert found.names == tuple(map(str, sorted(numbers)))
    assert [found.names[state] for state in found.states] == [str(number) for number in data.tolist()]


@pytest.mark.parametrize("kind", SHIFTED)
def test_an_alphabet_of_numbers_says_which_number_is_which_state(kind):
    known = np.unique(SHIFTED[kind])
    expected = encode(SHIFTED[kind], None, None, relabel=True)
    texts = [str(number) for number in known]
    for alphabet in (known.tolist(), known, texts, dict(enumerate(texts))):
        found = encode(SHIFTED[kind], alphabet, None)
        np.testing.assert_array_equal(found.states, expected.states)
        assert found.names == expected.names
    backwards = encode(SHIFTED[kind], known[::-1].tolist(), None)
    np.testing.assert_array_equal(backwards.states, 2 - expected.states)


def test_tokens_from_one_up_are_told_of_zero():
    said = (
        r"^token 0 never occurs in tokens from 1 to 3, but is one of the 4 states: "
        r"Observed\(…, relabel=True\) begins at 1, Observed\(…, alphabet=range\(4\)\) keeps 0 as it is$"
    )
    counted = Observed(ROWS + 1)
    assert counted.n_states == 4
    assert re.match(said, counted.never_zero())
    assert Observed(ROWS + 1, relabel=True).names == ("1", "2", "3")
    assert Observed(ROWS + 1, alphabet=range(4)).names == ("0", "1", "2", "3")
    for silent in (ROWS, 10 * ROWS + 10):
        assert Observed(silent).never_zero() is None


def test_negative_states_are_gaps_until_the_user_says_otherwise():
    with pytest.raises(
        OptionError, match=r"^tokens\[0\]\[2\] is -1, .*: relabel=True takes -1, 1 in this order$"
    ):
        Observed([[1, 1, -1]] * 90)
    assert Observed([[1, 1, -1]] * 90, relabel=True, order=1).names == ("-1", "1")


def test_large_states_may_be_relabelled():
    tokens = SHIFTED["of a tokenizer"]
    with pytest.raises(
        OptionError, match=r"max_states=2000 .*; relabel=True takes 17, 5017, 10017 in this order$"
    ):
        Observed(tokens)
    assert Observed(tokens, relabel=True, order=1).names == ("17", "5017", "10017")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"relabel": 1}, "relabel is 1, expected True or False"),
        ({"relabel": True, "alphabet": "abc"}, "relabel is True, expected no alphabet with it"),
        ({"limit": 0}, "limit is 0, expected an integer from 1 to 2000000"),
        ({"limit": 2.5}, "limit is 2.5, expected an integer from 1 to 2000000"),
        ({"limit": 2_000_001}, "limit is 2000001, expected an integer from 1 to 2000000"),
        ({"alphabet": (c for c in "abc")}, "alphabet is <generator"),
        ({"alphabet": 3}, "alphabet is 3, expected a text or a list of the states' names"),
        ({"alphabet": b"abc"}, "alphabet is b'abc', expected a text or a list of the states' names"),
        (
            {"alphabet": {"a": 0, "b": 2}},
            "alphabet is {'a': 0, 'b': 2}, expected numbers from 0 up, one a state",
        ),
        ({"alphabet": ["a", "b", 0.5]}, r"alphabet\[2\] is 0.5, expected a text"),
        ({"alphabet": ["0", "1"]}, r"tokens\[\d+\] is '2', expected one of the 2 symbols of alphabet, 0, 1"),
    ],
)
def test_options_that_make_no_sense(options, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        Observed(ROWS, **options)


def test_an_endless_alphabet_is_not_begun():
    def endless():
        while True:
            yield "a"

    with pytest.raises(ValueError, match=r"^alphabet is <generator"):
        Observed(ROWS, alphabet=endless())


@pytest.mark.parametrize("kind", ["from 1", "gapped"])
def test_a_model_of_as_many_states_as_occur_is_told_how(kind):
    tokens, known = SHIFTED[kind], np.unique(SHIFTED[kind])
    those = ", ".join(map(str, known))
    said = (
        rf"; 3 of the {known.max() + 1} occur: Observed\(…, relabel=True\), .* takes {those} in this order$"
    )
    with pytest.raises(ValueError, match=said):
        mm.Run.from_model(model(3), source=Observed(tokens))
    run = mm.Run.from_model(model(3), source=Observed(tokens, relabel=True))
    assert run.source.labels == tuple(map(str, known))


@pytest.mark.parametrize("kind", ["from 1", "gapped"])
def test_a_map_to_tokens_may_leave_out_states_that_never_occur(kind):
    tokens, known = SHIFTED[kind], np.unique(SHIFTED[kind]).tolist()
    decoder = model(7)
    run = mm.Run.from_model(decoder, source=Observed(tokens), tokens={known[0]: 5, known[1]: 2, known[2]: 0})
    assert run.source.labels == tuple(map(str, known))
    assert run.provenance["tokens"] == [5, 2, 0]
    torch.testing.assert_close(run.states["embed.W_E"][0], decoder.W_E[[5, 2, 0]])
    np.testing.assert_array_equal(run.source.tokens, ROWS.ravel())
    with pytest.raises(ValueError, match=rf"leaves out the state {known[2]}"):
        mm.Run.from_model(decoder, source=Observed(tokens), tokens={known[0]: 5, known[1]: 2})


def test_numbers_in_a_map_are_those_of_the_source_that_was_given():
    """Of six letters three occur; the map names two of them by number."""
    source = Observed(ROWS * 2, alphabet="abcdef")
    for tokens in ({0: 6, "c": 1, 4: 3}, {"a": 6, "c": 1, "e": 3}):
        run = mm.Run.from_model(model(7), source=source, tokens=tokens)
        assert (run.source.labels, run.provenance["tokens"]) == (("a", "c", "e"), [6, 1, 3])
    for text in ("0=6,c=1,4=3", "a=6,2=1,e=3"):
        smaller, ids = source_and_ids(text, source, Objective())
        assert (smaller.labels, ids) == (("a", "c", "e"), [6, 1, 3])
    with pytest.raises(
        ValueError, match=r"""^--tokens leaves out the state c: such as --tokens "a=0,c=1,e=2"$"""
    ):
        source_and_ids("0=6,4=3", source, Objective())


def test_a_state_that_never_occurs_may_be_named():
    run = mm.Run.from_model(model(7), source=Observed(ROWS + 1), tokens={0: 6, 1: 5, 2: 2, 3: 0})
    assert run.source.labels == ("0", "1", "2", "3")


def test_what_is_left_after_states_are_left_out_is_the_law_of_the_others():
    source = Observed(10 * ROWS + 10, order=1)
    some = source.named_only([])
    assert some.named_only([]) is some
    assert (some.order, some.lengths, some.block) == (source.order, source.lengths, source.block)
    np.testing.assert_array_equal(
        some.estimate.counts(1).toarray(), source.estimate.counts(1)[:, [10, 20, 30]].toarray()
    )
    assert mm.Circle(n_states=3, p=0.5).named_only([]) == mm.Circle(n_states=3, p=0.5)


def test_a_model_of_more_states_than_occur_is_told_of_the_alphabet():
    source = Observed(ROWS)
    with pytest.raises(
        ValueError, match=r"the data may not show all: Observed\(…, alphabet=\[…\]\), .* names 5 states"
    ):
        mm.Run.from_model(model(5), source=source)
    mm.Run.from_model(model(5), source=Observed(ROWS, alphabet=range(5)))


def test_a_model_without_line_ends_is_told_of_lines():
    text = "the cat sat\non the mat and slept\n" * 20
    with pytest.raises(
        ValueError, match=r"without line ends the source has as many: Observed.read\(…, lines=True\)"
    ):
        mm.Run.from_model(model(len(set(text)) - 1), source=Observed(text))


def test_a_recording_of_such_a_map_is_gone_on_with(tmp_path):
    decoder, tokens = model(7), {10: 5, 20: 2, 30: 0}
    for step, resume in ((0, False), (1, True)):
        recorder = mm.Recorder(
            tmp_path / "a.pt", source=Observed(10 * ROWS + 10), tokens=tokens, resume=resume
        )
        recorder(step, decoder)
    run = recorder.finish(2, decoder)
    assert run.source.labels == ("10", "20", "30")
    assert run.provenance["tokens"] == [5, 2, 0]
