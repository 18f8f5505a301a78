"""Each limit of the readers: what is accepted at it, and what is refused one beyond."""

import zipfile
from collections import OrderedDict

import pytest
import torch
from run_files import rebuilt, repack, saved, storage_of, text
from safe_file_cases import message_of, refusal

from mechmarkov.runs import RunFileError
from mechmarkov.safe import file as safe_file
from mechmarkov.safe import folder as safe_folder
from mechmarkov.safe.json_file import read_json
from mechmarkov.safe.pickle_scan import scan
from mechmarkov.safe.plain_data import check_loaded_tensor, check_plain, check_strides, describe, readable

PICKLED = b"\x80\x02"


# -- pickles -------------------------------------------------------------------------------------------------


def test_a_pickle_has_250000_instructions_at_most():
    # PROTO, EMPTY_LIST, BINPUT, pairs of NONE and APPEND, STOP.
    assert scan(PICKLED + b"]q\x00" + b"Na" * 124_998 + b".")[0] == [None] * 124_998
    longer = PICKLED + b"]q\x00q\x00" + b"Na" * 124_998 + b"."
    assert message_of(scan, longer) == "its pickle has more than 250000 instructions"


def test_a_stack_holds_10000_values_at_most():
    fits = PICKLED + b"(" + b"N" * 9_999 + b"t."
    assert scan(fits)[0] == (None,) * 9_999
    words = "its pickle holds more than 10000 unfinished values at once"
    assert message_of(scan, PICKLED + b"(" + b"N" * 10_000 + b"t.") == words


def test_a_key_is_a_tuple_of_sixteen_at_most():
    def keyed(count):
        return PICKLED + b"}(" + b"K\x01" * count + b"tNs."

    assert scan(keyed(16))[0] == {(1,) * 16: None}
    assert message_of(scan, keyed(17)) == "it has a key that is a long or nested tuple, expected str keys"


@pytest.mark.parametrize("inside", [False, True], ids=["bare", "in a tuple"])
def test_a_key_has_integers_of_64_bits_at_most(inside):
    def keyed(number):
        raw = number.to_bytes(9, "little", signed=True)
        return PICKLED + b"}\x8a\x09" + raw + (b"\x85" if inside else b"") + b"Ns."

    largest = 2**64 - 1
    assert scan(keyed(largest))[0] == {((largest,) if inside else largest): None}
    assert message_of(scan, keyed(2**64)) == "it has a key with an integer of over 64 bits, expected str keys"


def test_a_scanned_key_has_1000_characters_at_most():
    assert scan(PICKLED + b"}" + text("a" * 1000) + b"Ns.")[0] == {"a" * 1000: None}
    words = "it has a key of 1001 characters, expected at most 1000"
    assert message_of(scan, PICKLED + b"}" + text("a" * 1001) + b"Ns.") == words


@pytest.mark.parametrize("place", range(3))
def test_a_tensor_numbers_less_than_2_to_62(tmp_path, place):
    def message(number):
        numbers = [1, 2, 1]
        numbers[place] = number
        offset, size, step = numbers
        call = rebuilt(storage_of(torch.zeros(3)), offset, (size, 2), (step, 1))
        return refusal(saved(tmp_path / "run.pt", {"a": call}))

    assert message(2**62) == "a tensor in it is larger than any memory"
    assert message(2**62 - 1).startswith(("a reaches outside", "a is a tensor whose"))


def test_an_empty_storage_is_one(tmp_path):
    read = safe_file.read(saved(tmp_path / "run.pt", {"a": torch.zeros(0, 3)}))
    assert read["a"].shape == (0, 3)


# -- archives ------------------------------------------------------------------------------------------------


def pickle_of(size: int) -> bytes:
    """A dict of one text, so many bytes long."""
    return PICKLED + b"}" + text("a") + text("b" * (size - 16)) + b"s."


def test_a_pickle_has_eight_megabytes_at_most(tmp_path):
    path = saved(tmp_path / "run.pt", {"a": 1})
    limit = 8 * 1024 * 1024
    assert len(pickle_of(limit)) == limit
    assert len(safe_file.read(repack(path, {"data.pkl": pickle_of(limit)}))["a"]) == limit - 16
    words = "has a data.pkl of more than 8388608 bytes"
    assert refusal(repack(path, {"data.pkl": pickle_of(limit + 1)})) == words


def test_a_zip_directory_has_four_megabytes_at_most(tmp_path):
    limit, path = 4 * 1024 * 1024, tmp_path / "run.pt"

    def with_directory(size):
        """An archive whose directory takes so many bytes: 46 and its name for each entry."""
        entries = ["run/data.pkl", *(f"run/{i:05}{'x' * 991}" for i in range(4000))]
        left = size - sum(46 + len(name) for name in entries)
        while left:
            length = min(left - 46, 1000) if left - 46 <= 1000 or left > 2100 else 500
            entries.append(f"run/y{left}".ljust(length, "y"))
            left -= 46 + length
        with zipfile.ZipFile(path, "w") as zipped:
            for name in entries:
                zipped.writestr(name, PICKLED + b"}." if name.endswith("pkl") else b"")
        assert int.from_bytes(path.read_bytes()[-10:-6], "little") == size
        return path.stat().st_size

    pickled, sizes = safe_file.read_archive(path, with_directory(limit))
    assert (pickled, sizes) == (PICKLED + b"}.", {})
    size = with_directory(limit + 1)
    assert message_of(safe_file.read_archive, path, size) == "has a zip directory of more than 4194304 bytes"


def test_entries_may_not_fill_more_than_their_file(tmp_path):
    path = saved(tmp_path / "run.pt", {"a": torch.zeros(3)})
    with zipfile.ZipFile(path) as archive:
        data = sum(entry.file_size for entry in archive.infolist())
        assert safe_file._check_directory(archive, data)[1] == {"0": 12}
        words = "claims more data than the file is long"
        assert message_of(safe_file._check_directory, archive, data - 1) == words


def test_what_is_shorter_than_an_end_is_truncated(tmp_path):
    path = tmp_path / "run.pt"
    path.write_bytes(b"PK\x03\x04" + bytes(9))
    assert refusal(path) == "is truncated or damaged: it does not end as a zip archive does"


# -- plain data ----------------------------------------------------------------------------------------------


def test_half_a_million_values_are_kept_and_no_more():
    # The dict and the list count too.
    assert message_of(check_plain, {"a": [None] * 499_998}, check_loaded_tensor) == ""
    message = message_of(check_plain, {"a": [None] * 499_999}, check_loaded_tensor)
    assert message == "holds more than 500000 values"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (2**64 - 1, ""),
        (1 - 2**64, ""),
        (2**64, "a is an integer of 65 bits, expected at most 64"),
        (-(2**64), "a is an integer of 65 bits, expected at most 64"),
    ],
)
def test_an_integer_has_64_bits_at_most(number, words):
    assert message_of(check_plain, {"a": number}, check_loaded_tensor) == words


def test_a_deep_place_is_named_in_80_characters():
    value = 1
    for _ in range(16):
        value = {"abcdefgh": value}
    message = message_of(check_plain, {"a": value}, check_loaded_tensor)
    path = "a" + '["abcdefgh"]' * 16
    assert message == f"{path[:80]} is nested deeper than 16 levels"


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "room", "words"),
    [
        ((3,), (1,), 2, 5, ""),
        ((3,), (1,), 3, 5, "W reaches outside its storage (6 of 5 elements)"),
        ((), (), 4, 5, ""),
        ((), (), 5, 5, "W reaches outside its storage (6 of 5 elements)"),
        ((2, 3), (3, 1), 0, 6, ""),
        ((2, 3), (3, 1), 0, 5, "W reaches outside its storage (6 of 5 elements)"),
        ((2, 3), (2, 1), 0, 9, "W is a tensor whose elements overlap in memory (an expanded one?)"),
        ((3, 2), (1, 3), 0, 6, ""),
        ((3, 2), (1, 2), 0, 9, "W is a tensor whose elements overlap in memory (an expanded one?)"),
        ((2,), (0,), 0, 9, "W is a tensor whose elements overlap in memory (an expanded one?)"),
        ((1,), (0,), 0, 1, ""),
        ((1, 3), (99, 1), 0, 3, ""),
        ((0, 3), (0, 0), 7, 0, ""),
        ((3,), (1,), -1, 9, "W has shape (3,), strides (1,) and offset -1: not a tensor"),
        ((3,), (-1,), 2, 9, "W has shape (3,), strides (-1,) and offset 2: not a tensor"),
        ((-1,), (1,), 0, 9, "W has shape (-1,), strides (1,) and offset 0: not a tensor"),
        ((3,), (1, 1), 0, 9, "W has shape (3,), strides (1, 1) and offset 0: not a tensor"),
    ],
)
def test_elements_lie_apart_and_inside_their_storage(shape, stride, offset, room, words):
    assert message_of(check_strides, "W", shape, stride, offset, room) == words


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(2).to_sparse(), "W is a sparse tensor, expected a dense one"),
        (torch.ones(2, dtype=torch.complex64), "W is a tensor of torch.complex64, expected real numbers, "),
        (torch.ones(2, device="meta"), "W is a tensor on the meta device: it has no data"),
        (torch.ones(6)[3:], ""),
        (torch.ones(2, dtype=torch.float64)[1:], ""),
        (torch.ones(2, 2).T, ""),
    ],
)
def test_a_loaded_tensor_is_dense_and_real(tensor, words):
    message = message_of(check_loaded_tensor, tensor, "W")
    assert message.startswith(words)
    assert bool(message) == bool(words)


def test_a_key_is_bare_where_it_is_a_short_name():
    assert readable("a" * 60) == "a" * 60
    assert readable("a" * 61).startswith('"a')
    assert [readable(key) for key in ("a_1", "1a", "é")] == ["a_1", '"1a"', '"é"']


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "a list"),
        (OrderedDict(), "an OrderedDict"),
        (1, "an int"),
        (torch.ones(2, 3).int(), "a tensor of shape (2, 3)"),
    ],
)
def test_a_value_is_described_with_its_article(value, words):
    assert describe(value) == words


# -- folders and JSON ----------------------------------------------------------------------------------------


def test_a_folder_is_whole_readable_and_new(tmp_path):
    content = {"a": torch.ones(2), "b": {"c": torch.zeros(1), "d": 1}}
    made = safe_folder.write(tmp_path / "run", content, {"x": "é"})
    assert made.stat().st_mode & 0o777 == 0o755
    assert (made / "x").read_bytes() == "é".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert "exists, expected a new folder" in message_of(safe_folder.write, tmp_path / "run", {}, {})
    with pytest.raises(RunFileError, match=r'holds "x", expected only run\.json'):
        safe_folder.read(made)
    (made / "x").unlink()
    assert safe_folder.read(made)["b"].keys() == {"c", "d"}


def test_json_nests_as_deep_as_python_reads_it(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("[" * 200_000, "utf-8")
    assert message_of(read_json, path).startswith(f"{path}: is not JSON: ")
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path) == [1]
    assert message_of(read_json, path, 5) == f"{path}: has 6 bytes, expected at most 5"
    assert message_of(read_json, path, 5, "it") == "it: has 6 bytes, expected at most 5"
