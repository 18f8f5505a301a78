"""Files of bare numbers, arrays and tables; and files that are none, or lie about what is in them."""

import os
import threading

import datasets
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from mechmarkov.sources.estimation import tables
from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.sources.observed import Observed

ROWS = np.random.default_rng(0).integers(0, 3, (40, 20))
ONE = ROWS.ravel()
OBSERVED = Observed(ONE, order=1)
TEXTS = ["".join("abc"[state] for state in row) for row in ROWS]


def text(path, content):
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "int32", "int64", "<u2", ">u2", np.uint16, np.dtype("i8")]
)
def test_bare_numbers_are_read_by_their_type(tmp_path, dtype):
    ONE.astype(dtype).tofile(tmp_path / "train.bin")
    assert Observed.read(tmp_path / "train.bin", dtype=dtype, order=1) == OBSERVED
    ONE.astype(dtype).tofile(tmp_path / "tokens")  # whatever the name
    assert Observed.read(str(tmp_path / "tokens"), dtype=dtype, order=1) == OBSERVED


@pytest.mark.parametrize(("date", "dtype"), [(20240520, "uint16"), (20240801, "uint32")])
def test_the_header_of_llmc_is_no_token(tmp_path, date, dtype):
    """256 integers that llm.c, and modded-nanogpt after it, write before their tokens."""
    path, header = tmp_path / "train.bin", np.zeros(256, np.int32)
    header[:3] = date, 1, ONE.size
    path.write_bytes(header.tobytes() + ONE.astype(dtype).tobytes())
    assert Observed.read(path, dtype=dtype, order=1) == OBSERVED
    assert Observed.read(path, dtype=dtype, order=1, limit=200) == Observed(ONE[:200], order=1)
    header[2] += 1  # what does not fit the file is not a header
    path.write_bytes(header.tobytes() + ONE.astype(dtype).tobytes())
    with pytest.raises(OptionError, match=r"tokens go up to|every second number|which no vocabulary does"):
        Observed.read(path, dtype=dtype, order=1)


def test_bare_numbers_are_never_read_as_a_text(tmp_path):
    ONE.astype(np.uint16).tofile(tmp_path / "train.bin")
    with pytest.raises(
        OptionError, match=r'^train.bin holds bytes, and not their type: dtype="uint16" reads'
    ):
        Observed.read(tmp_path / "train.bin")
    (tmp_path / "train.bin").rename(tmp_path / "train.txt")
    with pytest.raises(OptionError, match=r'^train.txt has a NUL byte, at 1, as no text has: dtype="uint16"'):
        Observed.read(tmp_path / "train.txt")


def test_the_vocabulary_of_bare_numbers_may_be_given(tmp_path):
    """As nanoGPT's meta.pkl has it, which is not read."""
    ONE.astype(np.uint16).tofile(tmp_path / "train.bin")
    stoi = {"c": 2, "a": 0, "b": 1, "d": 3}
    itos = {number: symbol for symbol, number in stoi.items()}
    for alphabet in ("abcd", ["a", "b", "c", "d"], stoi, itos, np.array(list("abcd"))):
        source = Observed.read(tmp_path / "train.bin", dtype="uint16", alphabet=alphabet, order=1)
        assert source.names == ("a", "b", "c", "d")
        np.testing.assert_array_equal(source.tokens, ONE)
    (tmp_path / "meta.pkl").write_bytes(b"\x80\x04.")
    with pytest.raises(
        ValueError, match=r"^meta.pkl is a .pkl file, .*: a pickle can run code; .* as alphabet$"
    ):
        Observed.read(tmp_path / "meta.pkl")


@pytest.mark.parametrize(
    ("written", "read", "said"),
    [
        ("uint16", "uint8", r'every second number in a.bin is 0 as uint8: dtype="uint16" reads both as one'),
        ("int32", "uint16", r'every second number in a.bin is 0 as uint16: dtype="uint32" reads both as one'),
        ("uint16", "int64", r'a.bin goes up to \d+ as int64, which no vocabulary does: dtype="uint16" reads'),
        ("uint16", "float32", "dtype is 'float32', expected a type of integers such as 'uint16'"),
        ("uint16", "words", "dtype is 'words', expected a type of integers such as 'uint16'"),
        ("uint16", ["uint16"], r"dtype is \['uint16'\], expected a type of integers"),
    ],
)
def test_a_type_that_is_not_theirs(tmp_path, written, read, said):
    ONE.astype(written).tofile(tmp_path / "a.bin")
    with pytest.raises(ValueError, match=f"^{said}"):
        Observed.read(tmp_path / "a.bin", dtype=read)


def test_more_than_a_run_file_holds_is_taken_up_to_a_limit(tmp_path):
    path = tmp_path / "train.bin"
    ONE.astype(np.uint16).tofile(path)
    os.truncate(path, 60_000_000_000)  # sparse: nothing of it is written
    with pytest.raises(
        OptionError, match=r"holds 30000000000 states, expected at most 2000000: limit=2000000"
    ):
        Observed.read(path, dtype="uint16")
    assert Observed.read(path, dtype="uint16", limit=len(ONE), order=1) == OBSERVED
    many = np.tile(ONE, 2600)
    with pytest.raises(
        OptionError, match=r"tokens hold 2080000 states in 1 sequences, .*: limit=2000000 takes"
    ):
        Observed(many)
    assert len(Observed(many, limit=50_000, order=1).tokens) == 50_000
    assert Observed(ROWS, limit=250, order=1).lengths == (20,) * 12 + (10,)


def test_columns_of_lists_and_of_texts(tmp_path):
    pd.DataFrame({"input_ids": ROWS.tolist()}).to_parquet(tmp_path / "a.parquet")
    expected = Observed(ROWS, order=1)
    assert Observed.read(tmp_path / "a.parquet", order=1) == expected
    table = {"labels": [0] * 40, "input_ids": ROWS.tolist(), "attention_mask": (ROWS * 0 + 1).tolist()}
    datasets.Dataset.from_dict(table).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(
        OptionError, match=r'^column is None, .* labels, input_ids, .*: column="input_ids" takes'
    ):
        Observed.read(tmp_path / "b.parquet")
    assert Observed.read(tmp_path / "b.parquet", column="input_ids", order=1) == expected
    pd.DataFrame({"text": TEXTS}).to_parquet(tmp_path / "c.parquet", row_group_size=7)
    with pytest.raises(OptionError, match=r'^tokens hold texts such as .*: each="character" takes each'):
        Observed.read(tmp_path / "c.parquet")
    source = Observed.read(tmp_path / "c.parquet", each="character", order=1)
    assert source.names == ("a", "b", "c")
    np.testing.assert_array_equal(source.tokens, ONE)
    assert Observed.read(tmp_path / "c.parquet", each="character", limit=110, order=0).lengths == (
        20,
    ) * 5 + (10,)


def test_a_table_without_names_whose_lines_are_sequences(tmp_path):
    np.savetxt(tmp_path / "a.csv", ROWS, fmt="%d", delimiter=",")
    frame = pd.DataFrame(ROWS)
    frame.to_csv(tmp_path / "b.csv", index=False)
    frame.to_csv(tmp_path / "c.csv")
    frame.add_prefix("t").to_csv(tmp_path / "d.tsv", index=False, sep="\t")
    (tmp_path / "e.csv").write_text("\n".join(";".join(map(str, row)) for row in ROWS))
    expected = Observed(ROWS, order=1)
    for name in ("a.csv", "d.tsv"):
        with pytest.raises(OptionError, match=r"and 12 others: .*lines=True takes each line as a sequence"):
            Observed.read(tmp_path / name)
    for name in ("a.csv", "b.csv", "c.csv", "d.tsv", "e.csv"):
        assert Observed.read(tmp_path / name, lines=True, order=1) == expected
    rows = [",".join(map(str, row[: 5 + i % 9])) for i, row in enumerate(ROWS.tolist())]
    ragged = text(tmp_path / "f.csv", "\n".join(row + "," * (20 - row.count(",")) for row in rows))
    assert Observed.read(ragged, lines=True, order=0).lengths == tuple(5 + i % 9 for i in range(40))


def test_cells_are_numbers_only_where_they_are_written_as_numbers(tmp_path):
    path = tmp_path / "a.csv"
    assert Observed.read(text(path, "s\n" + "10\n2\n" * 60), order=1) == Observed([10, 2] * 60, order=1)
    with pytest.raises(
        OptionError, match=r'^tokens hold texts such as \'0110\': each="state" .* each="character"'
    ):
        Observed.read(text(path, "s\n" + "0110\n1100\n" * 60))
    with pytest.raises(ValueError, match=r"^s holds numbers such as '0.0', expected integers$"):
        Observed.read(text(path, "s\n" + "0.0\n1.0\n" * 60))
    with pytest.raises(ValueError, match=r"^line 4 of a.csv has 3 cells, expected 2$"):
        Observed.read(text(path, "s,t\n0,1\n0,1\n0,1,1\n"), column="s")
    with pytest.raises(ValueError, match=r"^column is 's', expected a name that one column has$"):
        Observed.read(text(path, "s,s\n" + "0,1\n" * 90), column="s")
    quoted = text(path, 'who,page\n"a, b",home\n"a, b",cart\nc,home\n' * 1 + '"a, b",cart\nc,cart\n' * 80)
    assert Observed.read(quoted, sequence="who", order=1).lengths == (82, 81)


@pytest.mark.parametrize("name", ["column", "sequence"])
def test_a_column_is_one_name(tmp_path, name):
    path = text(tmp_path / "a.csv", "s,t\n" + "0,a\n" * 90)
    for value in (["s"], 0, b"s", ("s", "t")):
        with pytest.raises(ValueError, match=rf"^{name} is .*, expected the name of one column$"):
            Observed.read(path, **{"column": "s"} | {name: value})


def test_a_table_of_50000_columns_is_answered_by_its_first_names(tmp_path):
    path = text(tmp_path / "a.csv", ",".join(f"c{i}" for i in range(50_000)) + "\n" + "0," * 49_999 + "0\n")
    with pytest.raises(OptionError) as error:
        Observed.read(path)
    assert str(error.value).startswith(
        "column is None, expected one of c0, c1, c2, c3, c4, c5, c6, c7 and 49992 others"
    )
    assert len(str(error.value)) < 200


def test_a_pipe_a_device_and_a_folder_are_no_files(tmp_path):
    for name in ("a.txt", "a.csv", "a.npy", "a.parquet", "a.bin"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match=rf"^{name} is not a regular file$"):
            Observed.read(tmp_path / name, **({"dtype": "uint8"} if name == "a.bin" else {}))
    with pytest.raises(ValueError, match=r"^zero is not a regular file$"):
        Observed.read("/dev/zero", dtype="uint8", limit=100)
    with pytest.raises(ValueError, match=r"^.* is a directory, expected a file$"):
        Observed.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        Observed.read(tmp_path / "missing.txt")
    assert threading.active_count() < 100  # no reader waits


@pytest.mark.parametrize("path", [b"a.txt", 3, None, ["a.txt"]])
def test_a_path_is_a_text_or_a_path(path):
    with pytest.raises(TypeError, match=r"^path is .*, expected a str or a Path$"):
        Observed.read(path)


def test_files_that_are_large_only_in_name(tmp_path):
    said = {
        "a.txt": r"expected at most \d+: limit=2000000 takes its first 2000000 states",
        "a.csv": r"expected at most \d+$",
        "a.npy": "cannot be read: the magic string is not correct",
        "a.parquet": "cannot be read: ",
    }
    for name, words in said.items():
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 40_000_000_000)
        with pytest.raises(ValueError, match=rf"^{name} .*{words}"):
            Observed.read(tmp_path / name)
    with pytest.raises(OptionError, match=r"^a.txt has a NUL byte, at 0"):
        Observed.read(tmp_path / "a.txt", limit=1000)


def npy(path, header, data=800, version=b"\x01\x00", length=None):
    header = header.encode()
    size = (len(header) if length is None else length).to_bytes(2 if version[0] == 1 else 4, "little")
    path.write_bytes(b"\x93NUMPY" + version + size + header + b"\0" * data)
    return path


LIES = {
    "10^30 items": ("(1000000000000000000000000000000,)", "<i8", "claims .* items"),
    "2^40 rows of nothing": ("(1099511627776, 0)", "<i8", "claims .* items"),
    "items of 10^9 bytes": ("(2,)", "<U250000000", "its items are <U250000000"),
    "objects": ("(100,)", "|O", "its items are object"),
    "nothing at all": ("(100,)", "|V0", r"its items are \|V0"),
    "a negative number": ("(-5,)", "<i8", r"its shape is \(-5,\)"),
    "a truth": ("(True,)", "<i8", r"its shape is \(True,\)"),
    "a word": ("('a',)", "<i8", "shape is not valid"),
    "a call": ("(10**30,)", "<i8", "malformed|Cannot parse"),
    "more than there is": ("(101,)", "<i8", r"claims \[101\] items, and it has 800 bytes"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_array_whose_header_lies(tmp_path, lie):
    shape, kind, said = LIES[lie]
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n"
    with pytest.raises(
        ValueError, match=rf"^a.npy cannot be read: .*({said}).*; expected a sound .npy file$"
    ):
        Observed.read(npy(tmp_path / "a.npy", header))


@pytest.mark.parametrize(
    "how",
    [
        {"header": "[" * 9000},
        {"header": "", "version": b"\x02\x00", "length": 2**32 - 1},
        {"header": "{}", "version": b"\x09\x00"},
    ],
)
def test_a_header_that_is_none(tmp_path, how):
    path = npy(tmp_path / "a.npy", **how)
    os.truncate(path, 5_000_000_000)  # sparse: as long as any header claims to be
    with pytest.raises(ValueError, match=r"^a.npy cannot be read: .*; expected a sound .npy file$") as error:
        Observed.read(path)
    assert "\n" not in str(error.value)
    assert ("its header has 4294967295 bytes" in str(error.value)) == ("length" in how)


def test_a_column_that_claims_more_than_it_may_hold(tmp_path, monkeypatch):
    """The file's own account is read before its data."""
    pd.DataFrame({"a": np.zeros(2_100_000, dtype=np.int8)}).to_parquet(tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    with pytest.raises(
        OptionError, match=r"^a.parquet holds 2100000 states, expected at most 2000000: limit"
    ):
        Observed.read(tmp_path / "a.parquet")
    monkeypatch.setattr(tables, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"^a.parquet has more than 1000 bytes in a$"):
        Observed.read(tmp_path / "a.parquet", limit=200)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.npz", "np.load"),
        ("a.arrow", "load_from_disk"),
        ("a.pt", "torch.load"),
        ("a.gz", "decompress it first"),
        ("a.json", "give Observed the list"),
        ("a.jsonl", "give Observed the list"),
    ],
)
def test_files_of_other_kinds_are_told_what_to_do(tmp_path, name, said):
    (tmp_path / name).write_bytes(b"ab" * 100)
    with pytest.raises(ValueError, match=rf"^{name} is .*, expected a text, .*: .*{said}"):
        Observed.read(tmp_path / name)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_and_the_sequence_of_each_row(tmp_path, suffix):
    rows = {"page": list("abcaab" * 40), "visitor": [1] * 100 + [2] * 140, "when": list(range(240))}
    path = tmp_path / f"visits.{suffix}"
    table = pd.DataFrame(rows)
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    both = {"column": "page", "sequence": "visitor"}
    assert Observed.read(path, order=1, **both).lengths == (100, 140)
    with pytest.raises(ValueError, match=r"^column is None, expected one of page, when: column="):
        Observed.read(path, sequence="visitor")
    with pytest.raises(ValueError, match=r"^sequence is 'who', expected one of page, visitor, when$"):
        Observed.read(path, column="page", sequence="who")
    with pytest.raises(ValueError, match=r"^column is 'page', expected one of visitor, when$"):
        Observed.read(path, column="page", sequence="page")
