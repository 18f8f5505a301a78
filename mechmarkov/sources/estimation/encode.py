"""Sequences of symbols as numbered states: arrays, tables, texts and files."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int

from mechmarkov.utils.text import printable, shown

MAX_STATES = 2000
MAX_TOKENS = 2_000_000  # their text in a run file stays below the 8 MB that `safe/` reads of one
MAX_SEQUENCES = 100_000
MIN_TRANSITIONS = 100
MAX_NUMBER = 2**63 - 1  # of a state: what int64 holds
REST = "<rest>"
WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, eq=False)
class Encoded:
    """Sequences of states, one after the other.

    Attributes:
        states: `[token]`, from 0.
        lengths: Of the sequences.
        names: Of the states.
    """

    states: Int[np.ndarray, " token"]
    lengths: tuple[int, ...]
    names: tuple[str, ...]


def encode(tokens: Any, alphabet: Sequence[str] | None, max_states: int | None) -> Encoded:
    """Number the symbols of sequences; see `Observed`.

    Raises:
        ValueError: One line that names the field, its value and what was expected.
    """
    if max_states is not None and not (type(max_states) is int and 2 <= max_states <= MAX_STATES):
        raise ValueError(f"max_states is {shown(max_states)}, expected an integer from 2 to {MAX_STATES}")
    for number, name in enumerate(() if alphabet is None else alphabet):
        if not isinstance(name, str):
            raise ValueError(f"alphabet[{number}] is {shown(name)}, expected a text")
    sequences = [_flat(one, where) for where, one in _sequences(tokens)]
    lengths = tuple(map(len, sequences))
    if not 0 < len(lengths) <= MAX_SEQUENCES or sum(lengths) > MAX_TOKENS:
        raise ValueError(
            f"tokens hold {sum(lengths)} states in {len(lengths)} sequences, expected at most {MAX_TOKENS} "
            f"in at most {MAX_SEQUENCES}"
        )
    for number, one in enumerate(sequences):
        if one.dtype != sequences[0].dtype:
            (symbol,), (first,) = one[:1].tolist(), sequences[0][:1].tolist()
            raise ValueError(
                f"tokens[{number}] holds {shown(symbol)} and tokens[0] {shown(first)}, "
                "expected integers alone or texts alone"
            )
    symbols = np.concatenate(sequences)
    if symbols.dtype.kind in "iu":
        states, names = _numbered(symbols, alphabet, max_states)
    else:
        states, names = _named(symbols, alphabet)
    if max_states is not None and len(names) > max_states:
        states, names = _most_frequent(states, names, max_states)
    if len(names) > MAX_STATES:
        raise ValueError(
            f"tokens have {len(names)} different states, expected at most {MAX_STATES}: "
            f"max_states={MAX_STATES} keeps the most frequent and calls the others {REST}"
        )
    transitions = sum(length - 1 for length in lengths)
    if transitions < MIN_TRANSITIONS:
        raise ValueError(f"tokens hold {transitions} transitions, expected at least {MIN_TRANSITIONS}")
    if len(present := np.unique(states)) < 2:
        raise ValueError(f"tokens hold one state, {shown(names[present[0]])}, expected at least 2")
    return Encoded(states, lengths, names)


def read_sequences(
    path: str | os.PathLike[str], unit: Literal["character", "word"], column: str | None, sequence: str | None
) -> Any:
    """What a file holds, as `encode` takes it; see `Observed.read`.

    Raises:
        ValueError: One line, for a column that is not there, and a row that belongs to no sequence.
        OSError: The file cannot be read.
    """
    path = Path(path)
    if unit not in ("character", "word"):
        raise ValueError(f"unit is {unit!r}, expected 'character' or 'word'")
    suffix = path.suffix.lower()
    if suffix in (".json", ".jsonl"):
        raise ValueError(
            f"{printable(path.name, 60)} is JSON, expected a text, .csv, .tsv, .parquet or .npy: "
            "give Observed the list that is in it"
        )
    if suffix == ".npy":
        with _naming(path), open(path, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    if suffix in (".csv", ".tsv", ".parquet"):
        return _column(path, column, sequence)
    for field, name in (("column", column), ("sequence", sequence)):
        if name is not None:
            raise ValueError(
                f"{field} is {name!r}, expected none for {printable(path.name, 60)}, which is a text"
            )
    try:
        text = path.read_text(encoding="utf-8-sig")  # a mark of byte order is no state
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{printable(path.name, 60)} is not a text in UTF-8: byte {error.start}; "
            "expected a text, .csv, .tsv, .parquet or .npy"
        ) from None
    return text if unit == "character" else WORD.findall(text)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say of which file, and in one line, what the library that reads it has to say."""
    try:
        yield
    except ValueError as error:  # those of pandas and pyarrow are ValueErrors too
        said = printable(str(error).partition("\n")[0], 150)
        raise ValueError(
            f"{printable(path.name, 60)} cannot be read: {said}; expected a sound {path.suffix} file"
        ) from None


def _column(path: Path, column: str | None, sequence: str | None) -> Any:
    import pandas as pd  # half a second that other sources do not need

    with _naming(path):
        if path.suffix.lower() == ".parquet":
            table = pd.read_parquet(path)
        else:  # an empty line is a gap, and a state may be called NA
            separator = "," if path.suffix.lower() == ".csv" else "\t"
            table = pd.read_csv(
                path, sep=separator, skip_blank_lines=False, keep_default_na=False, na_values=[""]
            )
    columns = [name for name in table.columns if name != sequence]
    if column is None and len(columns) == 1:
        (column,) = columns
        is_text = path.suffix.lower() != ".parquet"  # which has no line that could be a name or a state
        if is_text and (table[column].astype(str) == column).any():
            raise ValueError(
                f"the first line of {printable(path.name, 60)} is {column!r}, which is a state below: "
                f"expected the column's name (column={column!r}, if that is it)"
            )
    for field, name in (("column", column), ("sequence", sequence)):
        if (field == "column" or name is not None) and name not in table.columns:
            raise ValueError(f"{field} is {name!r}, expected one of {', '.join(map(str, table.columns))}")
    if sequence is None:
        return table[column]
    lacking = table[sequence].isna().to_numpy()
    if lacking.any():
        raise ValueError(f"{sequence}[{lacking.argmax()}] is missing, expected the sequence of every row")
    return [group for _, group in table.groupby(sequence, sort=False)[column]]


def _sequences(tokens: Any) -> Iterable[tuple[str, Any]]:
    """Each sequence and what it is called in messages."""
    if isinstance(tokens, str):
        return [("tokens", list(tokens))]
    if isinstance(tokens, torch.Tensor):
        tokens = tokens.detach().cpu().numpy()
    if hasattr(tokens, "to_numpy"):  # pandas
        if getattr(tokens, "ndim", 1) > 1:
            raise ValueError(f"tokens is a table of {tokens.shape[1]} columns, expected one of them")
        return [("tokens", tokens.to_numpy())]
    if isinstance(tokens, np.ndarray) and tokens.ndim == 0:
        raise ValueError(f"tokens is one symbol, {shown(tokens.item())}, expected a sequence")
    if isinstance(tokens, np.ndarray) and tokens.ndim == 1 and tokens.dtype.kind != "O":
        return [("tokens", tokens)]
    if not isinstance(tokens, (np.ndarray, list, tuple)):
        raise ValueError(f"tokens is {shown(tokens)}, expected a text, an array or a list of sequences")
    nested = [not isinstance(one, str) and hasattr(one, "__len__") for one in tokens]
    if not any(nested):
        return [("tokens", tokens)]
    if not all(nested):
        raise ValueError(
            f"tokens[{nested.index(False)}] is one symbol, expected a sequence as the others are"
        )
    return [(f"tokens[{number}]", one) for number, one in enumerate(tokens)]


def _flat(sequence: Any, where: str) -> np.ndarray:
    """One sequence as an array of integers or of texts."""
    if isinstance(sequence, torch.Tensor):
        sequence = sequence.detach().cpu().numpy()
    values = np.asarray(sequence.to_numpy() if hasattr(sequence, "to_numpy") else sequence)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{where} has shape {list(values.shape)}, expected a sequence of states")
    gap = "expected a state at every place: at a gap, end the sequence and begin another"
    if values.dtype.kind in "iu":
        if values.min() < 0:
            at = int(values.argmin())
            raise ValueError(f"{where}[{at}] is {values[at]}, {gap}")
        if values.max() > MAX_NUMBER:
            at = int(values.argmax())
            raise ValueError(f"{where}[{at}] is {values[at]}, expected at most {MAX_NUMBER}")
        return values.astype(np.int64)
    listed = values.tolist()
    for at, value in enumerate(listed):
        if value is None or value != value:
            raise ValueError(f"{where}[{at}] is {value}, {gap}")
    for at, value in enumerate(listed):
        if not isinstance(value, str):
            raise ValueError(f"{where}[{at}] is {shown(value)}, expected an integer or a text")
    return values.astype(object)


def _numbered(
    symbols: Int[np.ndarray, " token"], alphabet: Sequence[str] | None, max_states: int | None
) -> tuple[Int[np.ndarray, " token"], tuple[str, ...]]:
    """Integers are states as they are, so that they stay the tokens of a model."""
    largest = int(symbols.max())
    if alphabet is None:
        if max_states is None and largest >= MAX_STATES:
            raise ValueError(
                f"tokens go up to {largest}, expected at most {MAX_STATES} states: "
                f"max_states={MAX_STATES} keeps the most frequent and calls the others {REST}"
            )
        if max_states is None:
            return symbols, tuple(map(str, range(largest + 1)))
        known, states = np.unique(symbols, return_inverse=True)
        return states, tuple(map(str, known.tolist()))
    if largest >= len(alphabet):
        at = int(symbols.argmax())
        raise ValueError(f"tokens[{at}] is {largest}, expected below {len(alphabet)}, the size of alphabet")
    return symbols, tuple(alphabet)


def _named(symbols: np.ndarray, alphabet: Sequence[str] | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Texts are states in the order of the alphabet, else in that of their code points."""
    names = tuple(sorted(set(symbols.tolist())) if alphabet is None else alphabet)
    number = {name: state for state, name in enumerate(names)}
    if len(number) < len(names):
        raise ValueError(
            f"alphabet has {len(names)} symbols of which {len(number)} differ, expected no repeats"
        )
    for at, symbol in enumerate(symbols):
        if symbol not in number:
            raise ValueError(
                f"tokens[{at}] is {shown(symbol)}, expected one of the {len(names)} symbols of alphabet"
            )
    return np.array([number[symbol] for symbol in symbols]), names


def _most_frequent(
    states: Int[np.ndarray, " token"], names: tuple[str, ...], max_states: int
) -> tuple[Int[np.ndarray, " token"], tuple[str, ...]]:
    count = np.bincount(states, minlength=len(names))
    kept = np.sort(np.argsort(-count, kind="stable")[: max_states - 1])
    number = np.full(len(names), max_states - 1)
    number[kept] = np.arange(len(kept))
    return number[states], (*(names[state] for state in kept), REST)
