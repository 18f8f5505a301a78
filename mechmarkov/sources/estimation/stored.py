"""Sequences as a run file holds them: numbered states in base64, lengths, and the states' names."""

import base64
import binascii
from collections.abc import Collection
from functools import cached_property
from typing import Annotated, Any, TypeVar

import numpy as np
from jaxtyping import Int
from pydantic import Field

from mechmarkov.sources.base.source import Count
from mechmarkov.sources.base.stationary import Stationary
from mechmarkov.sources.estimation.sequences import MAX_SEQUENCES, MAX_STATES, MAX_TOKENS
from mechmarkov.utils.text import first_of

S = TypeVar("S", bound="StoredSequences")
MAX_LABELS = 6  # in a message
VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥"}


class StoredSequences(Stationary):
    """A source that holds sequences of its own.

    Attributes:
        states: All states, one after the other, in base64.
        lengths: How many states each sequence has.
        names: The states' names.
    """

    states: str = Field(repr=False)
    lengths: Annotated[tuple[Count, ...], Field(max_length=MAX_SEQUENCES, repr=False)]
    names: Annotated[tuple[str, ...], Field(min_length=2, max_length=MAX_STATES, repr=False)]

    def _check_stored(self) -> None:
        """Refuse what is not sequences of the named states.

        Raises:
            ValueError: One line, which names the field.
        """
        try:
            n_bytes = len(base64.b64decode(self.states, validate=True))
        except (binascii.Error, ValueError):
            raise ValueError("states is not base64, expected the states' numbers so written") from None
        width, total = _width(self.n_states).itemsize, sum(self.lengths)
        if min(self.lengths, default=0) < 1 or not n_bytes == width * total <= width * MAX_TOKENS:
            raise ValueError(
                f"states are {n_bytes} bytes, expected {width} for each of the {total} states in lengths"
            )
        if len(set(self.names)) < len(self.names):
            raise ValueError("names has repeats, expected each once")
        if int(self.tokens.max()) >= self.n_states:
            raise ValueError(f"states hold {int(self.tokens.max())}, expected below {self.n_states}")

    @property
    def n_states(self) -> int:
        """Returns how many names there are."""
        return len(self.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names, white space made visible."""
        return tuple(VISIBLE.get(name, name) for name in self.names)

    @cached_property
    def tokens(self) -> Int[np.ndarray, " token"]:
        """All sequences, one after the other; read-only."""
        decoded = base64.b64decode(self.states)
        states = np.frombuffer(decoded, _width(self.n_states)).astype(np.int64)
        states.setflags(write=False)
        return states

    def named_only(self: S, names: Collection[str]) -> S:
        """Returns it without states that never occur and are not named; see `Source.named_only`."""
        occurs = np.bincount(self.tokens, minlength=self.n_states) > 0
        named = np.flatnonzero(occurs | [label in names for label in self.labels])
        if len(named) == self.n_states:
            return self
        states = written(np.searchsorted(named, self.tokens), len(named))
        renumbered: S = self.model_copy(
            update={"states": states, "names": tuple(self.names[state] for state in named)}
        )
        return renumbered

    def advice(self, n_states: int) -> str:
        """Returns advice on states that never occur, line ends and missing states; see `Source.advice`."""
        occur = [self.labels[state] for state in np.unique(self.tokens)]
        if n_states == len(occur) < self.n_states:
            return (
                f"; {len(occur)} of the {self.n_states} occur: Observed(…, relabel=True), or "
                f'"relabel": true in --source, takes {first_of(occur, MAX_LABELS)} in this order'
            )
        if "\n" in self.names and n_states == self.n_states - 1:
            return (
                "; without line ends the source has as many: Observed.read(…, lines=True), or "
                '"lines": true in --source, takes each line as a sequence'
            )
        if n_states > self.n_states:
            return (
                '; the data may not show all: Observed(…, alphabet=[…]), or "alphabet": […] in --source, '
                f"names {n_states} states in their order"
            )
        return ""


def written(states: Int[np.ndarray, " token"], n_states: int) -> str:
    """States as `StoredSequences.states` has them: of up to 256 states a byte each, of more two."""
    return base64.b64encode(states.astype(_width(n_states)).tobytes()).decode()


def _width(n_states: int) -> np.dtype[Any]:
    return np.dtype("u1" if n_states <= 256 else "<u2")
