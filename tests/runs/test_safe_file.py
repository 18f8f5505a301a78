"""Plain values in, the same plain values out, and nothing else ever comes in."""

import os
import warnings
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from run_files import repack, saved
from safe_file_cases import refusal, same

from mechmarkov.runs import RunFileError
from mechmarkov.safe import file as safe_file
from mechmarkov.safe import without_torch
from mechmarkov.safe.plain_data import ITEM_BYTES, FileTensor

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
tensors = st.builds(
    lambda dtype, shape, seed: torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed)).to(
        getattr(torch, dtype.removeprefix("torch."))
    ),
    st.sampled_from(list(ITEM_BYTES)),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 1000),
)
leaves = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), texts, tensors)
plain = st.dictionaries(
    texts,
    st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def by_torch(value: Any) -> Any:
    """The content that was read without torch, with torch's tensors."""
    if isinstance(value, dict):
        return {key: by_torch(item) for key, item in value.items()}
    if isinstance(value, list):
        return [by_torch(item) for item in value]
    if not isinstance(value, FileTensor):
        return value
    numbers = torch.from_numpy(value.numpy().copy())
    return numbers.to(getattr(torch, value.dtype.removeprefix("torch.")))


@given(plain)
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("plain") / "data.pt"
    safe_file.write(path, data)
    assert same(safe_file.read(path), data)
    assert same(torch.load(path, weights_only=True), data)
    safe_file.verify(path)
    read = without_torch.read(path, data)
    assert same(by_torch(read), data)


@given(plain)
@settings(max_examples=40, deadline=None)
def test_what_torch_saves_is_read(tmp_path_factory, data):
    path = saved(tmp_path_factory.mktemp("plain") / "data.pt", data)
    assert same(safe_file.read(path), data)


def test_views_shared_and_strided_tensors_are_read_and_written_apart(tmp_path):
    base = torch.arange(24.0).view(4, 6)
    row = [0.5, 0.5]
    views = {"column": base[:, 1], "t": base.T, "half": base[::2, 1::2]}
    data = {"a": base, "same": base, **views, "P": [row, row]}
    data["gradient"] = torch.ones(2, requires_grad=True) * 3
    for path in (saved(tmp_path / "torch.pt", data), tmp_path / "ours.pt"):
        if path.name == "ours.pt":
            safe_file.write(path, data)
        shown = by_torch(without_torch.read(path, data))
        assert all(torch.equal(shown[key], data[key]) for key in data if key != "P")
        read = safe_file.read(path)
        assert all(torch.equal(read[key], data[key]) for key in data if key != "P")
        assert read["P"] == [row, row]
    assert len({read[key].data_ptr() for key in ("a", "same")}) == 2
    assert all(read[key].is_contiguous() and not read[key].requires_grad for key in data if key != "P")


def test_reading_copies_nothing(tmp_path):
    """The tensors are windows into the file: what is written there later shows in them."""
    values = torch.arange(100.0)
    path = saved(tmp_path / "run.pt", {"a": values})
    read = safe_file.read(path)["a"]
    at = path.read_bytes().index(values.numpy().tobytes())
    with open(path, "r+b") as file:
        file.seek(at)
        file.write((2 * values).numpy().tobytes())
    assert torch.equal(read, 2 * values)


FOREIGN = {
    "tuple": ((1, 2), "is a tuple"),
    "set": ({1, 2}, "is a set"),
    "bytes": (b"abc", "is bytes"),
    "bytearray": (bytearray(b"abc"), "is a bytearray"),
    "complex": (1j, "is a complex number"),
    "numpy number": (np.float64(0.5), "is a numpy"),
    "numpy array": (np.zeros(3), "is a numpy"),
    "OrderedDict": (OrderedDict(a=1), "is an OrderedDict"),
    "Counter": (Counter("aab"), "refers to collections.Counter"),
    "Parameter": (torch.nn.Parameter(torch.zeros(3)), "is a Parameter"),
    "sparse": (torch.eye(3).to_sparse(), "is a sparse tensor"),
    "csr": (torch.eye(3).to_sparse_coo(), "is a sparse tensor"),
    "complex tensor": (torch.zeros(3, dtype=torch.complex64), "is a complex tensor"),
    "meta tensor": (torch.zeros(3, device="meta"), "_rebuild_meta_tensor_no_storage"),
    "expanded": (torch.zeros(1).expand(5), "elements overlap"),
    "overlapping": (torch.arange(9.0).as_strided((3, 3), (2, 1)), "elements overlap"),
    "float8": (torch.zeros(3, dtype=torch.float8_e4m3fn), "is a tensor of float8"),
    "dtype": (torch.float32, "refers to torch.float32"),
    "size": (torch.Size([1]), "refers to torch.Size"),
    "device": (torch.device("cpu"), "refers to torch.device"),
    "path": (Path("/x"), "refers to pathlib"),
    "large integer": (2**64, "integer of 65 bits"),
    "lone surrogate": ("\ud800", "not valid unicode"),
    "module": (torch.nn.Linear(2, 2), "refers to torch.nn.modules.linear.Linear"),
    "function": (len, "refers to __builtin__.len"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_is_not_plain_is_named_by_its_place(tmp_path, case):
    value, words = FOREIGN[case]
    data = {"states": {"embed.W_E": [0.5, value]}}
    message = refusal(saved(tmp_path / "run.pt", data))
    assert message.startswith('states["embed.W_E"][1]')
    assert words in message
    with pytest.raises(RunFileError, match=r'states\["embed.W_E"\]\[1\] (is|refers|reaches)'):
        safe_file.write(tmp_path / "written.pt", data)
    assert os.listdir(tmp_path) == ["run.pt"]


def test_a_quantised_tensor_is_refused(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once in a process that these are to go
        quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    assert refusal(saved(tmp_path / "run.pt", {"a": quantised})).startswith("a is a quantised tensor")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({1: 2}, "it has a key that is an int"),
        ({"a": {(1, 2): 3}}, "a has a key that is a tuple"),
        ({"a\nb": {None: 1}}, '"a\\nb" has a key that is None'),
        ({"a": {"\ud800": 1}}, "a key of a is not valid unicode"),
        ([1, 2], "its content is a list, expected a dict"),
        (torch.zeros(3), "expected a dict"),
        (OrderedDict(a=1), "its content is an OrderedDict, not a run file"),
    ],
)
def test_keys_are_strings_and_the_whole_is_a_dict(tmp_path, data, words):
    assert words in refusal(saved(tmp_path / "run.pt", data))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b")" + b"q\x00h\x00\x86" * 30, "long or nested tuple"),  # pairs of pairs: 2^30 steps to hash
        (b")" + b"\x85" * 200_000, "long or nested tuple"),  # and these overflow the stack
        (b"(" + b"N" * 9000 + b"t", "long or nested tuple"),  # read 80 000 times, it is hashed as often
        (b"\x8a\x09" + (2**61 - 1 << 8).to_bytes(9, "little"), "integer of over 64 bits"),  # share a hash
    ],
    ids=range(4),
)
def test_a_key_that_would_be_hashed_without_end_is_refused_before(tmp_path, key, words):
    path = saved(tmp_path / "run.pt", {"a": 1})
    assert words in refusal(repack(path, {"data.pkl": b"\x80\x02}" + key + b"Ns."}))


@pytest.mark.parametrize("length", [1001, 7 << 20])
def test_a_key_is_at_most_a_thousand_characters_long(tmp_path, length):
    words = f"it has a key of {length} characters, expected at most 1000"
    assert refusal(saved(tmp_path / "run.pt", {"a" * length: 1})) == words
    assert refusal(saved(tmp_path / "run.pt", {"a": [{"a" * length: 1}]})) == words
    with pytest.raises(RunFileError, match="a\\[0\\] has a key of"):
        safe_file.write(tmp_path / "other.pt", {"a": [{"a" * length: 1}]})
    assert safe_file.read(saved(tmp_path / "run.pt", {"a" * 1000: 1})) == {"a" * 1000: 1}


def test_keys_are_checked_before_writing(tmp_path):
    with pytest.raises(RunFileError, match="a has a key that is an int, expected str keys"):
        safe_file.write(tmp_path / "run.pt", {"a": {1: 2}})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("put_in", [lambda x: {"a": x}, lambda x: [x]], ids=["dicts", "lists"])
def test_sixteen_levels_are_kept_and_no_more(tmp_path, put_in):
    value = 1
    for _ in range(15):
        value = put_in(value)
    safe_file.write(tmp_path / "run.pt", {"a": value})
    assert safe_file.read(tmp_path / "run.pt") == {"a": value}
    with pytest.raises(RunFileError, match="is nested deeper than 16 levels"):
        safe_file.write(tmp_path / "deeper.pt", {"a": put_in(value)})


def test_depth_is_bounded_and_a_structure_that_holds_itself_ends(tmp_path):
    deep: list = []
    for _ in range(50):
        deep = [deep]
    assert "nested deeper" in refusal(saved(tmp_path / "deep.pt", {"a": deep}))
    loop: dict = {}
    loop["a"] = loop
    assert "nested deeper" in refusal(saved(tmp_path / "loop.pt", loop))
    with pytest.raises(RunFileError, match="nested deeper"):
        safe_file.write(tmp_path / "written.pt", loop)
    # Ten lists of ten times the one before, all shared: small in the file, 10^10 values to walk.
    laughs: list = []
    for _ in range(10):
        laughs = [laughs] * 10
    assert "holds more than" in refusal(saved(tmp_path / "laughs.pt", {"a": laughs}))
