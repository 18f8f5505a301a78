"""What Python holds sequences in gives the sequences that it holds, or one line that says what to write."""

import collections

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.sources.estimation.encode import encode
from mechmarkov.sources.observed import Observed

ROWS = np.random.default_rng(0).integers(0, 3, (40, 20))
ONE = ROWS.ravel()
TEXTS = ["".join("abc"[state] for state in row) for row in ROWS]
TABLE = datasets.Dataset.from_dict({"input_ids": ROWS.tolist()})
TENSOR = torch.tensor(ROWS)

SEVERAL = {
    "array": ROWS,
    "fortran": np.asfortranarray(ROWS),
    "big-endian": ROWS.astype(">u2"),
    "tensor": TENSOR,
    "with an axis of stride 0": torch.as_strided(TENSOR, (40, 20), (20, 1)),
    "nested tensor": torch.nested.nested_tensor(list(TENSOR), layout=torch.jagged),
    "tensors": list(TENSOR),
    "lists": ROWS.tolist(),
    "tuples": tuple(map(tuple, ROWS.tolist())),
    "arrays": list(ROWS),
    "lists of 0-d tensors": [list(row) for row in TENSOR],
    "object array": np.array([*ROWS, None], dtype=object)[:-1],
    "deque": collections.deque(ROWS.tolist()),
    "masked, with nothing masked": np.ma.array(ROWS),
    "series of lists": pd.Series(ROWS.tolist()),
    "series of arrays": pd.Series(list(ROWS), index=range(40, 0, -1)),
    "frame of one column": pd.DataFrame({"input_ids": ROWS.tolist()}),
    "data set": TABLE,
    "data set in torch": TABLE.with_format("torch"),
    "data set in numpy": TABLE.with_format("numpy"),
    "column": TABLE["input_ids"],
    "column as a list": list(TABLE["input_ids"]),
    "column of a row format": TABLE.with_format("torch")["input_ids"],
    "one split": datasets.DatasetDict(train=TABLE),
    "arrow": pa.array(ROWS.tolist()),
    "arrow in chunks": pa.chunked_array([ROWS[:7].tolist(), ROWS[7:].tolist()]),
    "arrow, lists of one size": pa.FixedSizeListArray.from_arrays(pa.array(ONE), 20),
    "arrow table": pa.table({"a": ROWS.tolist()}),
}
SINGLE = {
    "series": pd.Series(ONE),
    "nullable series": pd.Series(ONE, dtype="Int64"),
    "index": pd.Index(ONE),
    "arrow": pa.array(ONE),
    "arrow in chunks": pa.chunked_array([ONE[:7], ONE[7:]]),
    "memory map": np.memmap,
    "figures": [str(state) for state in ONE],
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_sequences_are_what_they_are_in_a_list(kind):
    found = encode(SEVERAL[kind], None, None)
    np.testing.assert_array_equal(found.states, ONE)
    assert (found.lengths, found.names) == ((20,) * 40, ("0", "1", "2"))


@pytest.mark.parametrize("kind", SINGLE)
def test_one_sequence_is_what_it_is_in_a_list(kind, tmp_path):
    held = SINGLE[kind]
    if held is np.memmap:
        ONE.astype(np.uint16).tofile(tmp_path / "a.bin")
        held = np.memmap(tmp_path / "a.bin", np.uint16, mode="r")
    assert Observed(held, order=1) == Observed(ONE.tolist(), order=1)


CHARACTERS = {
    "list": list("abc" * 60),
    "series": pd.Series(list("abc" * 60)),
    "categories": pd.Series(list("abc" * 60), dtype="category"),
    "array": np.array(list("abc" * 60)),
    "array of strings": np.array(list("abc" * 60), dtype=np.dtypes.StringDType()),
    "arrow": pa.array(list("abc" * 60)),
    "arrow, encoded": pa.array(list("abc" * 60)).dictionary_encode(),
}


@pytest.mark.parametrize("kind", CHARACTERS)
def test_single_characters_are_states(kind):
    assert Observed(CHARACTERS[kind], order=1) == Observed("abc" * 60, order=1)


OF_TEXTS = {
    "list": TEXTS,
    "series": pd.Series(TEXTS),
    "array": np.array(TEXTS),
    "objects": np.array(TEXTS, dtype=object),
    "arrow": pa.array(TEXTS),
    "column": datasets.Dataset.from_dict({"text": TEXTS})["text"],
    "data set": datasets.Dataset.from_dict({"text": TEXTS}),
}


@pytest.mark.parametrize("kind", OF_TEXTS)
def test_texts_are_asked_about_and_each_is_a_sequence_of_characters_if_that_is_said(kind):
    with pytest.raises(
        OptionError, match=r"^tokens hold texts such as '[abc]+': each=\"character\" takes each"
    ):
        Observed(OF_TEXTS[kind])
    found = encode(OF_TEXTS[kind], None, None, each="character")
    np.testing.assert_array_equal(found.states, ONE)
    assert (found.lengths, found.names) == ((20,) * 40, ("a", "b", "c"))


def test_words_are_states_if_that_is_said_and_a_sentence_may_be_a_sequence():
    words = ["the", "cat", "sat"] * 60
    with pytest.raises(OptionError) as error:
        Observed(words)
    assert [options for options, _ in error.value.choices] == [{"each": "state"}, {"each": "character"}]
    assert Observed(words, each="state", order=1).names == ("cat", "sat", "the")
    sentences = ["the cat sat", "a cat."] * 60
    with pytest.raises(OptionError, match=r'each="word" takes each as a sequence of words$'):
        Observed(sentences)
    source = Observed(sentences, each="word", order=1)
    assert (source.names, source.lengths) == ((".", "a", "cat", "sat", "the"), (3, 3) * 60)
    assert Observed("the cat sat " * 60, each="word", order=1) == Observed(words, each="state", order=1)


def test_what_is_offered_would_be_taken():
    """Of few texts none can be a state: there would be too few transitions."""
    words = ["ab cd", "cd"] * 60, ["ab cd ef", "cd"] * 60, [f"{i:04b}" for i in range(16)] * 9
    for texts in (TEXTS, ["abba", "baab"] * 60, *words):
        with pytest.raises(OptionError) as error:
            Observed(texts)
        for options, _ in error.value.choices:
            encode(texts, None, None, **options)


def test_words_that_are_all_integers_are_those_integers():
    assert Observed(["0", "10", "2"] * 50, each="state", order=1) == Observed([0, 10, 2] * 50, order=1)
    assert Observed(["0 10 2 2", "2 0"] * 50, each="word", order=1) == Observed(
        [[0, 10, 2, 2], [2, 0]] * 50, order=1
    )
    assert Observed(["01", "10"] * 60, each="state", order=1).names == ("01", "10")
    assert Observed([["1", "2"], ["2", "1"]] * 60, order=1) == Observed([[1, 2], [2, 1]] * 60, order=1)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=9), min_size=1, max_size=9))
def test_any_lists_give_their_states_and_lengths_however_they_are_held(rows):
    rows = [[0, 1] * 60, *rows]
    expected = encode(rows, None, None)
    for held in (pd.Series(rows), pa.array(rows), [np.array(row) for row in rows], list(map(tuple, rows))):
        found = encode(held, None, None)
        np.testing.assert_array_equal(found.states, [state for row in rows for state in row])
        assert (found.lengths, found.names) == (expected.lengths, expected.names)
        assert found.lengths == tuple(map(len, rows))


PLACE = "expected a state at every place"
SYMBOL = "expected an integer or a text"
INTEGERS = ": np.array(tokens).astype(int)"
LIST = "expected a text, an array or a list of sequences"
SPLITS = datasets.DatasetDict(train=TABLE, test=TABLE)
LABELLED = TABLE.add_column("labels", [0] * 40)
DATES = np.array(["2020-01-01"] * 100, dtype="M8[D]")
SEQUENCES, ONE_OF = "expected states [sequence, position]", "expected one of them, such as"
REFUSED = {
    "sparse tensor": (TENSOR.to_sparse(), "is a sparse tensor, expected tokens.to_dense()"),
    "on no device": (TENSOR.to("meta"), "is a tensor on the device meta, expected one with values"),
    "fractions": (TENSOR.float(), "is a tensor of torch.float32, expected integers: tokens.long()"),
    "bfloat16": (TENSOR.bfloat16(), "is a tensor of torch.bfloat16, expected integers"),
    "three axes": (TENSOR[None], f"has shape [1, 40, 20], {SEQUENCES}"),
    "an axis of one": (TENSOR[..., None], f"has shape [40, 20, 1], {SEQUENCES}: tokens[..., 0]"),
    "one number": (torch.tensor(3), "is one symbol, 3, expected a sequence"),
    "truth": (TENSOR > 0, f"[0][0] is True, {SYMBOL}{INTEGERS}"),
    "fractions in a list": ([0.5, 1.0] * 80, f"[0] is 0.5, {SYMBOL}"),
    "whole fractions": ([0.0, 1.0] * 60, f"[0] is 0.0, {SYMBOL}{INTEGERS}"),
    "sparse array": (scipy.sparse.csr_array(ROWS), "is sparse, expected tokens.toarray()"),
    "a list too deep": ([[[0], [1, 1]]] * 60, "[0][0] is a sequence, expected a state"),
    "a list among numbers": ([[0, [1]], [1, 1]] * 60, "[0][1] is a sequence, expected a state"),
    "an empty one": ([[0, 1] * 60, []], "[1] has shape [0], expected a sequence of states"),
    "an empty list": ([], "has shape [0], expected a sequence of states"),
    "one symbol among lists": ([[0, 1], 1], "[1] is one symbol, expected a sequence as the others are"),
    "one state": ([3] * 200, "hold one state, '3', expected at least 2"),
    "a short text": ("ab" * 50, "hold 99 transitions, expected at least 100"),
    "short lists": ([[0, 1]] * 99, "hold 99 transitions, expected at least 100"),
    "texts after numbers": (
        [[0, 1], ["a"]],
        "[1] holds 'a' and tokens[0] 0, expected only integers or only texts",
    ),
    "numbers among texts": ([0, "a"] * 60, "holds 0 and 'a', expected only integers or only texts"),
    "masked": (np.ma.masked_equal([0, 1, 2] * 40, 2), f"[2] is masked, {PLACE}"),
    "a gap": ([0, 1, -1] * 50, f"[2] is -1, {PLACE}: at a gap, end the sequence"),
    "missing": (pd.Series([0, pd.NA] * 60, dtype="Int64"), f"[1] is <NA>, {PLACE}"),
    "not a number": (pd.Series([0, 1, None] * 50), f"[2] is nan, {PLACE}"),
    "null": (pa.array([0, None] * 60), f"[1] is None, {PLACE}"),
    "null in a list": ([["a", "b"] * 30, ["a", None] * 30], f"[1][1] is None, {PLACE}"),
    "too large in an array": (
        np.full(200, 2**64 - 1, "u8"),
        f"[0] is {2**64 - 1}, expected at most {2**63 - 1}",
    ),
    "too large": ([10**30, 1] * 60, f"[0] is {10**30}, expected at most {2**63 - 1}"),
    "bytes in an array": (np.array([b"a", b"b"] * 60), f"[0] is b'a', {SYMBOL}"),
    "dates": (DATES, f"[0] is datetime.date(2020, 1, 1), {SYMBOL}"),
    "a generator": ((state for state in ONE), "is <generator object"),
    "a stream": (TABLE.to_iterable_dataset(), "is <datasets"),
    "a dict": ({"a": [0, 1]}, f"is {{'a': [0, 1]}}, {LIST}"),
    "nothing": (None, f"is None, {LIST}"),
    "an ellipsis": (..., f"is missing, {LIST}"),
    "two splits": (SPLITS, f"is a data set of 2 splits, {ONE_OF} tokens['train'], of train, test"),
    "two columns": (LABELLED, f"is a table of 2 columns, {ONE_OF} tokens['input_ids'], of input_ids, labels"),
    "a frame": (pd.DataFrame(ROWS), f"is a table of 20 columns, {ONE_OF} tokens[0], of 0, 1"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_holds_no_states_is_refused_with_what_to_write(kind):
    tokens, said = REFUSED[kind]
    with pytest.raises(ValueError) as error:  # noqa: PT011 - what it says is looked at
        Observed(tokens)
    assert str(error.value).startswith(f"tokens{said}" if said[0] == "[" else f"tokens {said}")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("tokens", [b"abc" * 60, bytearray(b"abc" * 60), [b"ab", b"ba"] * 60])
def test_bytes_are_no_text(tokens):
    with pytest.raises(
        TypeError, match=r"^tokens(\[0\])? is (b'|bytearray).*, expected a text, tokens.*decode\(\)"
    ):
        Observed(tokens)


@pytest.mark.parametrize(
    ("tokens", "each", "said"),
    [
        (ROWS, "character", "each is 'character', expected none: tokens hold sequences of states"),
        ([["the", "cat"]] * 99, "word", "each is 'word', expected none: tokens hold sequences of states"),
        (TEXTS, "letter", "each is 'letter', expected 'state', 'character' or 'word'"),
        ("abc" * 60, "state", "each is 'state', expected 'character' or 'word': tokens are one text"),
    ],
)
def test_each_where_it_says_nothing(tokens, each, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        Observed(tokens, each=each)
