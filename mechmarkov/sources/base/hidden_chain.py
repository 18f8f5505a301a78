"""A source whose tokens a stationary hidden chain emits: its laws, draws, beliefs and predictors."""

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from mechmarkov.sources.base.rows import laws_of
from mechmarkov.sources.base.source import Predictor, WithHidden, by_name, check_request
from mechmarkov.sources.base.stationary import Stationary, check_steps, read_only
from mechmarkov.sources.sampling.paths import emit, sample_paths
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, table
from mechmarkov.theory import predictors
from mechmarkov.theory.predictors import NextLaws, Tokens

ROUNDING = 1e-12  # of laws that are sums of a few hundred probabilities

Parts = dict[str, Float[np.ndarray, "hidden value"]]
"""Parts of what is hidden that have a meaning: the value that each hidden state has of it."""


class HiddenChain(WithHidden, Stationary):
    """A hidden chain in its stationary law; each token is drawn from the law of its hidden state.

    A subclass defines `T`, `E` and `hidden_law`. What is known of the hidden state after some tokens, the
    belief, follows from the forward filter, and so does the Bayes-optimal predictor.

    Example:
        >>> from mechmarkov.sources import HiddenMarkov
        >>> source = HiddenMarkov(transitions=[[0.9, 0.1], [0.1, 0.9]], emissions=[[1, 0], [0.5, 0.5]])
        >>> isinstance(source, HiddenChain), source.best().name
        (True, 'forward_filter')
    """

    parts_are_independent: ClassVar[bool] = False
    """True where tokens leave the parts independent, so that one may be known and the others stay."""

    @cached_property
    @abstractmethod
    def T(self) -> Float[np.ndarray, "hidden_from hidden_to"]:
        """Transitions of the hidden chain; read-only."""

    @cached_property
    @abstractmethod
    def E(self) -> Float[np.ndarray, "hidden state"]:
        """Emissions, `Pr(token = j | hidden = h)`; read-only."""

    @cached_property
    @abstractmethod
    def hidden_law(self) -> Float[np.ndarray, " hidden"]:
        """A stationary law of the hidden chain, from which sequences start; read-only."""

    @property
    def order(self) -> int | None:
        """Returns 1 where the last token tells all that tokens tell of the next one, 0 where none tells any.

        It does where hidden states that emit the same token have one law of the next, and where the belief
        over hidden states is the same whatever came before that token. Otherwise None: the law of the next
        token may depend on tokens however far back.

        Example:
            >>> from mechmarkov.sources import HiddenMarkov
            >>> HiddenMarkov(transitions=[[0.9, 0.1], [0.2, 0.8]], emissions=[[1, 0], [0, 1]]).order
            1
        """
        laws, comes = self.T @ self.E, self.hidden_law > 0
        if _is_one(laws[comes]):
            return 0
        by_token = all(_is_one(laws[comes & emits]) for emits in self.E.T > 0)
        return 1 if by_token or self._forgets() else None

    def _forgets(self) -> bool:
        """Returns whether the belief after a token is the one at the start, whatever came before it."""
        at_start = self.hidden_law * self.E.T  # [state, hidden], times how likely the token is
        likely = at_start.sum(-1, keepdims=True)
        beliefs = np.divide(at_start, likely, out=np.zeros_like(at_start), where=likely > 0)
        later = (beliefs @ self.T)[:, None] * self.E.T  # [state before, state, hidden]
        total = later.sum(-1, keepdims=True)
        return bool((np.abs(later - total * beliefs) <= ROUNDING).all())

    @property
    def n_hidden(self) -> int:
        """Number of hidden states."""
        return len(self.T)

    @property
    def parts(self) -> Parts:
        """Parts of the hidden state, such as the task and the state in it; none where it is one thing."""
        return {}

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The law of one token; read-only."""
        return read_only(self.hidden_law @ self.E)

    def step_law(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """Returns the law by m steps of the hidden chain; see `Stationary.step_law`."""
        check_steps(m)
        return next(islice(self.step_laws(), m, None))

    def step_laws(self) -> Iterator[Float[np.ndarray, "state_from state_to"]]:
        """Yields each law from one more step of the hidden chain; see `Stationary.step_laws`."""
        yield np.eye(self.n_states)
        joint = (self.hidden_law[:, None] * self.E).T  # of a token, and the hidden state now
        known = laws_of(joint, self.hidden_law)
        while True:
            known = known @ self.T
            yield known @ self.E

    def sample_with_hidden(
        self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu"
    ) -> tuple[Sequences, Sequences]:
        """Draw sequences and the hidden states behind them; see `Source.sample`."""
        check_request(batch, length, generator, device)
        T, E, start = (table(generator, device, a) for a in (self.T, self.E, self.hidden_law))
        hidden = sample_paths(T[None], start[None], batch, length, generator)
        return emit(E, hidden, generator), hidden

    def beliefs(self, tokens: Tokens) -> Float[np.ndarray, "batch position hidden"]:
        """The law of the hidden state at each position, given the tokens up to it: the forward filter.

        A token that is impossible after those before it tells nothing of the hidden state.
        """
        predictors.check_tokens(tokens, self.n_states)
        belief = np.empty((*tokens.shape, self.n_hidden))
        ahead = np.tile(self.hidden_law, (len(tokens), 1))
        for t in range(tokens.shape[1]):
            seen = ahead * self.E.T[tokens[:, t]]
            total = seen.sum(-1, keepdims=True)
            belief[:, t] = np.divide(seen, total, out=ahead, where=total > 0)
            ahead = belief[:, t] @ self.T
        return belief

    def laws_of_hidden(self, tokens: Tokens) -> Float[np.ndarray, "batch position hidden state"]:
        """The law of the next token if each hidden state were known to be the one now (probability)."""
        predictors.check_tokens(tokens, self.n_states)
        return np.broadcast_to(self.T @ self.E, (*tokens.shape, self.n_hidden, self.n_states))

    def predictors(self) -> dict[str, Predictor]:
        """Returns those of every stationary source, and `forward_filter`."""
        label = "forward filter: the belief over hidden states, a step on, exact"
        return super().predictors() | by_name(Predictor("forward_filter", label, True, self.best_law))

    def best(self) -> Predictor | str:
        """Returns what the belief over hidden states says of the next token."""
        return self.predictors()["forward_filter"]

    def best_law(self, tokens: Tokens) -> NextLaws:
        """The law of the next token, given all before it (probability)."""
        return self.beliefs(tokens) @ self.T @ self.E


def _is_one(laws: Float[np.ndarray, "law state"]) -> bool:
    """Returns whether laws are the same up to rounding."""
    return bool(np.abs(laws - laws[:1]).max(initial=0.0) < ROUNDING)
