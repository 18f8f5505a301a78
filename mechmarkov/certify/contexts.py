"""Which contexts a certificate is about: every sequence that the source can give, or a superset of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from mechmarkov.models.config import DecoderConfig
from mechmarkov.objectives import Objective
from mechmarkov.sources import FixedChain, Source

MOST_TURNS = 16  # states of which all pairs take turns in `Contexts.plain`


def n_cases(n_states: int, lags: Sequence[int]) -> int:
    """Returns how many cases the states at some lags make."""
    return n_states if len(lags) == 1 else (n_states + 1) ** len(lags)


def cases(
    states: Int[np.ndarray, "batch position"], n_states: int, lags: Sequence[int]
) -> Int[np.ndarray, "batch position"]:
    """Returns the case at each position of some sequences, where its state is the parent.

    Example:
        >>> cases(np.array([[2, 0, 1]]), 3, (1, 2)).tolist()  # 2 after none, 0 after 2, 1 after 0
        [[14, 8, 1]]
        >>> cases(np.array([[2, 0, 1, 1]]), 3, (1, 7)).tolist()  # nothing is seven back
        [[14, 12, 13, 13]]
    """
    if len(lags) == 1:
        return states
    code = np.zeros_like(states)
    for i, lag in enumerate(lags):
        back = np.full_like(states, n_states)
        back[:, lag - 1 :] = states[:, : max(0, states.shape[1] + 1 - lag)]
        code += back * (n_states + 1) ** i
    return code


@dataclass(frozen=True, eq=False)
class Contexts:
    """The contexts of a model, told apart by the position that predicts and by the states at some lags.

    Lag 1 is the parent, the last state that is known: the query's own token, or the one in front of a query
    token. Of the parent only, a case is its number. Of several lags, a case counts their states as digits,
    the parent's the lowest; there the digit `n_states` stands for what is in front of the sequence.

    Attributes:
        n_states: The number of states of the source.
        n_tokens: The number of tokens: the states and, where there is one, the query token, the last.
        reads: The positions whose output is a prediction.
        start: The states that a sequence may begin with.
        transitions: Which state may follow which.
        query: Whether a query token ends the input.
        is_exact: Whether these are the sequences that the source can give; else they are among these.
        lags: The lags of the states, the parent's first.
    """

    n_states: int
    n_tokens: int
    reads: tuple[int, ...]
    start: Bool[np.ndarray, " state"]
    transitions: Bool[np.ndarray, "state_from state_to"]
    query: bool
    is_exact: bool
    lags: tuple[int, ...] = (1,)

    @staticmethod
    def of(source: Source, objective: Objective, config: DecoderConfig) -> "Contexts":
        """The contexts of a run.

        Those of a chain are its paths, from a state of positive stationary probability, as sequences start.
        Of any other source they are all sequences of its states.

        Raises:
            ValueError: No sequence of the model's length has positive probability.
        """
        n, last = source.n_states, config.n_ctx - 1
        is_last = objective.read == "last" or objective.query
        start, transitions = np.ones(n, dtype=bool), np.ones((n, n), dtype=bool)
        is_chain = isinstance(source, FixedChain)
        if isinstance(source, FixedChain):
            start, transitions = source.pi > 0, source.P > 0
        reads = (last,) if is_last else tuple(range(config.n_ctx))
        contexts = Contexts(n, config.d_vocab, reads, start, transitions, objective.query, is_chain)
        if not any(contexts.exists(last, case) for case in range(n)):
            raise ValueError(
                f"{source.title()!r} has no sequence of {config.n_ctx} states: its support is empty"
            )
        return contexts

    @property
    def n_cases(self) -> int:
        """Returns how many cases there are at most.

        Example:
            >>> every = np.ones((3, 3), dtype=bool)
            >>> Contexts(3, 3, (4,), every[0], every, False, True, lags=(1, 2)).n_cases
            16
        """
        return n_cases(self.n_states, self.lags)

    def states(self, case: int) -> dict[int, int]:
        """The states of a case by their lags; `n_states` in front of the sequence."""
        base = self.n_states + (len(self.lags) > 1)
        return {lag: case // base**i % base for i, lag in enumerate(self.lags)}

    def token(self, case: int) -> int:
        """The query's own token: the parent, or the query token where there is one."""
        return self.n_tokens - 1 if self.query else self.states(case)[1]

    def allowed(self, read: int, case: int) -> Bool[np.ndarray, "key token"]:
        """True where a key up to the query, at `read`, may have a token, given a case that exists."""
        mask = np.zeros((read + 1, self.n_tokens), dtype=bool)
        mask[:, : self.n_states] = True
        mask[0, : self.n_states] &= self.start
        known = np.arange(self.n_tokens)
        if self.query:
            mask[read] = known == self.n_tokens - 1
        for lag, state in self.states(case).items():
            if state < self.n_states:
                mask[self.position(read, lag)] &= known == state
        return mask

    def position(self, read: int, lag: int) -> int:
        """The position of the state at a lag, negative in front of the sequence."""
        return read - self.query + 1 - lag

    @property
    def token_transitions(self) -> Bool[np.ndarray, "token_from token_to"] | None:
        """`transitions` over all tokens: a query token follows every state. None where all are allowed."""
        if self.transitions.all():
            return None
        possible = np.ones((self.n_tokens, self.n_tokens), dtype=bool)
        possible[: self.n_states, : self.n_states] = self.transitions
        return possible

    def exists(self, read: int, case: int) -> bool:
        """Returns whether any sequence has that case at that position."""
        fixed = {self.position(read, lag): state for lag, state in self.states(case).items()}
        if any((at < 0) != (state == self.n_states) for at, state in fixed.items()):
            return False
        reached, names, first = self.start, np.arange(self.n_states), max(0, min(fixed))
        for _ in range(first):
            following = self.transitions[reached].any(0)
            if np.array_equal(following, reached):  # a chain that starts as it goes on
                break
            reached = following
        for at in range(first, read - self.query + 1):
            reached = self.transitions[reached].any(0) if at > first else reached
            reached = reached & (names == fixed.get(at, names))
        return bool(reached.any())

    def are_allowed(self, histories: Int[np.ndarray, "batch position"]) -> Bool[np.ndarray, " batch"]:
        """True for the sequences of states that these contexts include."""
        moves = self.transitions[histories[:, :-1], histories[:, 1:]]
        return np.asarray(self.start[histories[:, 0]] & moves.all(1))

    def completed(
        self, histories: Int[np.ndarray, "batch position"], length: int
    ) -> Int[np.ndarray, "batch longer"]:
        """The same sequences, `length` states long: they go on with the first state that may follow."""
        following, columns = self.transitions.argmax(1), list(histories.T)
        while len(columns) < length:
            columns.append(following[columns[-1]])
        return np.stack(columns[:length], axis=1)

    def plain(self, length: int) -> Int[np.ndarray, "batch position"]:
        """Sequences that stay at one state, or go to and fro between two, as far as these are included."""
        n = self.n_states
        pairs = np.stack(np.divmod(np.arange(n * n), n), axis=1)
        pairs = pairs if n <= MOST_TURNS else np.repeat(np.arange(n)[:, None], 2, axis=1)
        every = np.tile(pairs, (1, (length + 1) // 2))[:, :length]
        return every[self.are_allowed(every)]
