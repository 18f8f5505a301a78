"""Sequences in files: texts, tables, arrays and bare numbers; regular files only, of bounded size."""

import csv
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Integer

from mechmarkov.safe.file import check_regular
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources.estimation import tables, texts
from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.sources.estimation.sequences import MAX_TOKENS, check_count
from mechmarkov.utils.text import printable, shown

KINDS = "a text, .csv, .tsv, .parquet, .npy or, with dtype, .bin"
BARE = (".bin", ".raw")  # numbers, with nothing to say of what type
OTHERS = {
    ".json": "give Observed the list that is in it",
    ".jsonl": "give Observed the list that is in it",
    ".npz": "give Observed an array of it, np.load(…)['name']",
    ".arrow": "give Observed a column of the data set, datasets.load_from_disk(…)['name']",
    ".pkl": "a pickle can run code; give Observed what is in it, or its vocabulary as alphabet",
    **dict.fromkeys((".gz", ".zip", ".zst", ".xz", ".bz2"), "decompress it first"),
    ".pt": "give Observed the tensor, torch.load(…, weights_only=True)",
}
MIN_LOOKED_AT = 100
LARGEST_TOKEN = 1 << 20  # of any vocabulary
MAX_TEXT_BYTES = 1 << 26  # of words; characters stop at four bytes for each state
MAX_HEADER_BYTES = 10_000  # of .npy, as numpy itself allows
MAX_ITEM_BYTES = 1 << 10  # of an array of texts
LLMC_BYTES, LLMC_DATES = 1024, (20240520, 20240801)  # of llm.c's data: tokens of two bytes, or of four
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
ASKED_TYPE = ({"dtype": "uint16"}, "reads numbers of two bytes, as nanoGPT writes them")


def read(
    path: Any, *, unit: Any, lines: Any, dtype: Any, column: Any, sequence: Any, limit: Any
) -> tuple[Any, Literal["character", "word"] | None]:
    """Returns what a file holds, and what its texts are sequences of; see `Observed.read`.

    Raises:
        ValueError: One line that begins with the file's name, or names the option.
        OSError: The file cannot be read.
    """
    path, name = _checked(path)
    if unit not in (None, "character", "word"):
        raise ValueError(f"unit is {shown(unit)}, expected 'character' or 'word'")
    if lines is not None and type(lines) is not bool:
        raise ValueError(f"lines is {shown(lines)}, expected True or False")
    check_count("limit", limit)
    of_text, of_table = {"unit": unit, "lines": lines}, {"column": column, "sequence": sequence}
    suffix = path.suffix.lower()
    is_table = suffix in tables.SUFFIXES
    if suffix in OTHERS and dtype is None:
        kind = "JSON" if suffix in (".json", ".jsonl") else f"a {suffix} file"
        raise ValueError(f"{name} is {kind}, expected {KINDS}: {OTHERS[suffix]}")
    if suffix == ".npy" or is_table:
        _expect_none(name, f"which is a {suffix} file", dtype=dtype, unit=unit)
    if not is_table:
        what = "which is a .npy file" if suffix == ".npy" else "which holds bare numbers"
        _expect_none(name, what if dtype or suffix == ".npy" else "which is a text", **of_table)
    if dtype is not None or suffix == ".npy":
        _expect_none(name, "which is not a text", **of_text)
        return (_array(path) if dtype is None else _bare(path, dtype, limit)), None
    if is_table:
        with naming(path):
            return tables.read(path, lines=lines, limit=limit, **of_table), None
    if suffix in BARE:
        raise OptionError(f"{name} holds bytes, and not their type", ASKED_TYPE)
    text = _text(path, name, unit, limit)
    texts.check_meaning(text, name, unit, lines)
    return (texts.lines_of(text) if lines else text), unit or "character"


def _checked(path: Any) -> tuple[Path, str]:
    """A path, once it is seen to be that of a regular file, and its name for messages."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"path is {shown(path)}, expected a str or a Path")
    path = Path(os.path.expanduser(path))
    if "\0" in str(path):
        raise ValueError(f"path is {shown(str(path))}, expected no NUL byte in it")
    name = printable(path.name or str(path), 60)
    path.stat()  # what is not there is an OSError
    try:
        check_regular(path)
    except RunFileError as error:
        raise ValueError(f"{name} {error}") from None
    return path, name


def _expect_none(name: str, what: str, **options: Any) -> None:
    for option, value in options.items():
        if value is not None:
            raise ValueError(f"{option} is {shown(value)}, expected none for {name}, {what}")


def _text(path: Path, name: str, unit: str | None, limit: int | None) -> str:
    """A text in UTF-8, no more of it than may be needed."""
    wanted = MAX_TEXT_BYTES if unit == "word" or limit is None else min(4 * limit + 4, MAX_TEXT_BYTES)
    size = path.stat().st_size
    if size > MAX_TEXT_BYTES and limit is None:
        raise OptionError(
            f"{name} has {size} bytes, expected at most {MAX_TEXT_BYTES}",
            ({"limit": MAX_TOKENS}, f"takes its first {MAX_TOKENS} states"),
        )
    with open(path, "rb") as file:
        content = file.read(wanted)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{name} is a text in UTF-16, expected one in UTF-8")
    if (at := content.find(b"\0")) >= 0:
        raise OptionError(f"{name} has a NUL byte, at {at}, as no text has", ASKED_TYPE)
    try:
        text = content.decode("utf-8-sig")  # a mark of byte order is not a state
    except UnicodeDecodeError as error:
        if len(content) == size or error.start < len(content) - 3:
            raise OptionError(
                f"{name} is not a text in UTF-8: byte {error.start}; expected {KINDS}", ASKED_TYPE
            ) from None
        text = content[: error.start].decode("utf-8-sig")  # cut within a character
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _bare(path: Path, dtype: Any, limit: int | None) -> np.ndarray:
    """The numbers in a file, as `ndarray.tofile` writes them, and llm.c behind a header."""
    name = printable(path.name, 60)
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype("O")
    if kind.kind not in "iu":
        raise ValueError(f"dtype is {shown(dtype)}, expected a type of integers such as 'uint16'")
    size = path.stat().st_size
    if size % kind.itemsize or not size:
        raise ValueError(f"{name} has {size} bytes, expected a multiple of {kind.itemsize} for {kind.name}")
    begin = LLMC_BYTES * _has_header(path, size, kind.itemsize)
    count = (size - begin) // kind.itemsize
    if limit is None and count > MAX_TOKENS:
        raise OptionError(
            f"{name} holds {count} states, expected at most {MAX_TOKENS}",
            ({"limit": MAX_TOKENS}, f"takes the first {MAX_TOKENS}"),
        )
    numbers = np.fromfile(path, kind, count=-1 if limit is None else min(limit, count), offset=begin)
    _check_width(numbers, name)
    return numbers


def _has_header(path: Path, size: int, item_bytes: int) -> bool:
    """Returns whether a file begins with 256 integers: a date, a version, how many tokens follow, zeros."""
    head = np.fromfile(path, "<i4", count=LLMC_BYTES // 4)
    if len(head) * 4 < LLMC_BYTES or head[0] not in LLMC_DATES or head[3:].any():
        return False
    return bool(int(head[2]) * item_bytes == size - LLMC_BYTES)


def _check_width(numbers: Integer[np.ndarray, " token"], name: str) -> None:
    """Ask for another type where numbers look like halves of others, or like several in one."""
    if len(numbers) >= MIN_LOOKED_AT and not numbers[1::2].any() and numbers.any():
        wider = f"uint{16 * numbers.dtype.itemsize}"
        raise OptionError(
            f"every second number in {name} is 0 as {numbers.dtype.name}",
            ({"dtype": wider}, "reads both as one (if they are states, give Observed the array)"),
        )
    if int(numbers.max()) > LARGEST_TOKEN:
        raise OptionError(
            f"{name} goes up to {numbers.max()} as {numbers.dtype.name}, which no vocabulary does", ASKED_TYPE
        )


def _array(path: Path) -> np.ndarray:
    """The array in a .npy file, mapped: nothing is read before its header is known to be true."""
    with naming(path):
        with open(path, "rb") as file:
            begins = file.read(12)
        length = int.from_bytes(begins[8:10] if begins[6:7] == b"\1" else begins[8:12], "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"its header has {length} bytes")
        try:
            with open(path, "rb") as file:
                shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)
                data = path.stat().st_size - file.tell()
        except Exception as error:  # what a header can make numpy's parser raise is not documented
            raise ValueError(str(error)) from None
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"its shape is {shown(shape)}")
        if dtype.hasobject or not 0 < dtype.itemsize <= MAX_ITEM_BYTES:
            raise ValueError(f"its items are {printable(str(dtype), 40)}")
        if not 0 < math.prod(shape) * dtype.itemsize <= data:
            raise ValueError(f"its header claims {shown(list(shape))} items, and it has {data} bytes of them")
        return np.lib.format.open_memmap(path, mode="r")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say of which file, and in one line, what the library that reads it has to say."""
    try:
        yield
    except (OptionError, tables.ColumnError):
        raise
    except (ValueError, csv.Error, OSError) as error:  # those of pandas and pyarrow are among these
        if isinstance(error, OSError) and error.errno is not None:  # of the system, and it names the file
            raise
        cause = printable(str(error).partition("\n")[0], 150)
        raise ValueError(
            f"{printable(path.name, 60)} cannot be read: {cause}; expected a sound {path.suffix} file"
        ) from None
