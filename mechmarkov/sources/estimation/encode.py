"""Sequences of symbols as numbered states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.sources.estimation.sequences import (
    GAP,
    MAX_SEQUENCES,
    MAX_STATES,
    MAX_TOKENS,
    MIN_TRANSITIONS,
    check_count,
    flat,
    sequences_of,
)
from mechmarkov.sources.estimation.texts import are_numbers
from mechmarkov.utils.errors import list_of, nested_lists
from mechmarkov.utils.text import first_of, printable, shown

REST = "<rest>"
NAMED = 6  # states in a message

Numbered = tuple[Int[np.ndarray, " token"], tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Sequences of states, one after the other.

    Attributes:
        states: The states of all sequences, from 0.
        lengths: The number of states of each sequence.
        names: The name of each state.
    """

    states: Int[np.ndarray, " token"]
    lengths: tuple[int, ...]
    names: tuple[str, ...]


def encode(
    tokens: Any,
    alphabet: Any,
    max_states: int | None,
    *,
    each: Any = None,
    relabel: Any = False,
    limit: Any = None,
) -> Encoded:
    """Number the symbols of sequences from 0; the arguments are those of `Observed`.

    Raises:
        ValueError: One line that names the field, its value and what was expected.

    Example:
        >>> found = encode(["b", "a", "c"] * 40, None, None)
        >>> found.names, found.states[:3].tolist(), found.lengths
        (('a', 'b', 'c'), [1, 0, 2], (120,))
    """
    check_count("max_states", max_states, 2, MAX_STATES)
    check_count("limit", limit)
    if type(relabel) is not bool:
        raise ValueError(f"relabel is {shown(relabel)}, expected True or False")
    if relabel and alphabet is not None:
        raise ValueError("relabel is True, expected no alphabet with it: an alphabet says the order itself")
    names = None if alphabet is None else _names(alphabet)
    parts = _limited(list(sequences_of(tokens, each)), limit)
    sequences = [flat(one, where) for where, one in parts]
    lengths = tuple(map(len, sequences))
    for number, one in enumerate(sequences):
        if one.dtype != sequences[0].dtype:
            (symbol,), (first,) = one[:1].tolist(), sequences[0][:1].tolist()
            raise ValueError(
                f"tokens[{number}] holds {shown(symbol)} and tokens[0] {shown(first)}, "
                "expected only integers or only texts"
            )
    symbols = np.concatenate(sequences)
    of_characters = each == "character" or (each is None and isinstance(tokens, str))
    if symbols.dtype == object and not of_characters and are_numbers(symbols.tolist()):
        symbols = np.array(symbols.tolist()).astype(np.int64)
    if symbols.dtype.kind in "iu":
        where = [name for name, _ in parts]
        states, known = _numbered(symbols, names, max_states, relabel, (where, lengths))
    else:
        states, known = _named(symbols, names)
    if max_states is not None and len(known) > max_states:
        states, known = _most_frequent(states, known, max_states)
    if len(known) > MAX_STATES:
        raise OptionError(
            f"tokens have {len(known)} different states, expected at most {MAX_STATES}",
            ({"max_states": MAX_STATES}, f"keeps the most frequent and calls the others {REST}"),
        )
    transitions = sum(length - 1 for length in lengths)
    if transitions < MIN_TRANSITIONS:
        file = isinstance(tokens, str) and Path(tokens).suffix and Path(tokens).is_file()
        path = f"; of the file of this name: Observed.read({shown(tokens)})" if file else ""
        raise ValueError(f"tokens hold {transitions} transitions, expected at least {MIN_TRANSITIONS}{path}")
    if len(present := np.unique(states)) < 2:
        raise ValueError(f"tokens hold one state, {shown(known[present[0]])}, expected at least 2")
    return Encoded(states, lengths, known)


def without_zero(states: Int[np.ndarray, " token"], names: Sequence[str]) -> str | None:
    """Returns one line where every integer from 1 up occurs, but 0, which then is a state, does not.

    Example:
        >>> without_zero(np.array([1, 2]), ("0", "1", "2")).split(",")[0]
        'token 0 never occurs in tokens from 1 to 2'
        >>> without_zero(np.array([0, 1]), ("1", "2"))
    """
    count = len(names)
    occurs = np.bincount(states, minlength=count) > 0
    if occurs[0] or not occurs[1:].all() or (names[0], names[-1]) != ("0", str(count - 1)):
        return None
    return (
        f"token 0 never occurs in tokens from 1 to {count - 1}, but is one of the {count} states: "
        f"Observed(…, relabel=True) begins at 1, Observed(…, alphabet=range({count})) keeps 0 as it is"
    )


def _names(alphabet: Any) -> tuple[str, ...]:
    """The states' names in their order: a text, a list, or a vocabulary `{symbol: number}` or its inverse."""
    if isinstance(alphabet, Mapping):
        by_number = {n: name for n, name in alphabet.items() if isinstance(n, int)}
        if len(by_number) < len(alphabet):
            by_number = {n: name for name, n in alphabet.items()}
        if sorted(by_number, key=str) != sorted(range(len(by_number)), key=str):
            raise ValueError(f"alphabet is {shown(alphabet)}, expected numbers from 0 up, one a state")
        alphabet = [by_number[number] for number in range(len(by_number))]
    if hasattr(alphabet, "tolist"):
        alphabet = nested_lists("alphabet", alphabet, "a text or a list of the states' names")
    if isinstance(alphabet, range):
        alphabet = list_of("alphabet", alphabet, "a list of the states' names")
    if not isinstance(alphabet, Sequence) or isinstance(alphabet, bytes):
        raise ValueError(f"alphabet is {shown(alphabet)}, expected a text or a list of the states' names")
    names = tuple(str(name) if type(name) is int else name for name in alphabet)
    for number, name in enumerate(names):
        if not isinstance(name, str) or "\0" in name:
            raise ValueError(f"alphabet[{number}] is {shown(name)}, expected a text")
    if len(set(names)) < len(names):
        raise ValueError(
            f"alphabet has {len(names)} symbols of which {len(set(names))} differ, expected no repeats"
        )
    return names


def _limited(parts: list[tuple[str, Any]], limit: int | None) -> list[tuple[str, Any]]:
    """The first `limit` states, whole sequences and a part of one; at most what a source may hold.

    Raises:
        OptionError: There are more, and no limit is given.
    """
    ends = np.cumsum([len(one) if hasattr(one, "__len__") else 0 for _, one in parts])
    total = int(ends[-1]) if len(ends) else 0
    if limit is not None:
        chosen = []
        for (where, one), end in zip(parts, ends.tolist(), strict=True):
            begins = end - len(one)
            if begins < limit:
                chosen.append((where, one[: limit - begins]))
        return chosen[:MAX_SEQUENCES]
    if total > MAX_TOKENS or len(parts) > MAX_SEQUENCES:
        raise OptionError(
            f"tokens hold {total} states in {len(parts)} sequences, expected at most {MAX_TOKENS} "
            f"in at most {MAX_SEQUENCES}",
            ({"limit": MAX_TOKENS}, f"takes the first {MAX_TOKENS}"),
        )
    return parts


def _numbered(
    symbols: Int[np.ndarray, " token"],
    names: tuple[str, ...] | None,
    max_states: int | None,
    relabel: bool,
    named: tuple[Sequence[str], Sequence[int]],
) -> Numbered:
    """Integers are states as they are, so that they stay the tokens of a model; or in their order."""

    def where(at: int) -> str:
        ends = np.cumsum(named[1])
        part = int(np.searchsorted(ends, at, side="right"))
        return f"{named[0][part]}[{at - int(ends[part]) + named[1][part]}]"

    if names is not None and are_numbers(names):  # it names the numbers themselves
        return _named(symbols.astype(str).astype(object), names)
    low, high = int(symbols.min()), int(symbols.max())
    if relabel or (max_states is not None and names is None and low >= 0):
        known, states = np.unique(symbols, return_inverse=True)
        return states, tuple(map(str, known.tolist()))
    listed = first_of([*map(str, np.unique(symbols).tolist())], NAMED)
    in_order = [({"relabel": True}, f"takes {listed} in this order")]
    if low < 0:
        raise OptionError(f"{where(int(symbols.argmin()))} is {low}, {GAP}", *in_order)
    if names is not None:
        if high >= len(names):
            at = int(symbols.argmax())
            raise ValueError(f"{where(at)} is {high}, expected below {len(names)}, the size of alphabet")
        return symbols, names
    if high >= MAX_STATES:
        most = ({"max_states": MAX_STATES}, f"keeps the most frequent and calls the others {REST}")
        few = len(np.unique(symbols)) <= MAX_STATES
        raise OptionError(
            f"tokens go up to {high}, expected at most {MAX_STATES} states", most, *in_order * few
        )
    return symbols, tuple(map(str, range(high + 1)))


def _named(symbols: np.ndarray, alphabet: tuple[str, ...] | None) -> Numbered:
    """Texts are states in the order of the alphabet, else in that of their code points."""
    names = tuple(sorted(set(symbols.tolist()))) if alphabet is None else alphabet
    number = {name: state for state, name in enumerate(names)}
    for at, symbol in enumerate(symbols):
        if symbol not in number:
            raise ValueError(
                f"tokens[{at}] is {shown(symbol)}, expected one of the {len(names)} symbols of alphabet, "
                f"{printable(', '.join(names), 60)}"
            )
    return np.array([number[symbol] for symbol in symbols]), names


def _most_frequent(states: Int[np.ndarray, " token"], names: tuple[str, ...], max_states: int) -> Numbered:
    count = np.bincount(states, minlength=len(names))
    frequent = np.sort(np.argsort(-count, kind="stable")[: max_states - 1])
    number = np.full(len(names), max_states - 1)
    number[frequent] = np.arange(len(frequent))
    return number[states], (*(names[state] for state in frequent), REST)
