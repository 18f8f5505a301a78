"""Which contexts a certificate is about: every sequence that the source can give, or a superset of them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from mechmarkov.models.config import DecoderConfig
from mechmarkov.objectives import Objective
from mechmarkov.sources import FixedChain, Source

MOST_TURNS = 16  # states of which all pairs take turns in `Contexts.plain`


@dataclass(frozen=True, eq=False)
class Contexts:
    """The contexts of a model, told apart by the position that predicts and by the parent.

    The parent is the last state that is known: the query's own token, or the one in front of a query token.

    Attributes:
        n_states: The number of states of the source.
        n_tokens: The number of tokens: the states and, where there is one, the query token, the last.
        reads: The positions whose output is a prediction.
        start: The states that a sequence may begin with.
        transitions: Which state may follow which.
        query: Whether a query token ends the input.
        is_exact: Whether these are the sequences that the source can give; else they are among these.
    """

    n_states: int
    n_tokens: int
    reads: tuple[int, ...]
    start: Bool[np.ndarray, " state"]
    transitions: Bool[np.ndarray, "state_from state_to"]
    query: bool
    is_exact: bool

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
        if not any(contexts.exists(last, parent) for parent in range(n)):
            raise ValueError(
                f"{source.title()!r} has no sequence of {config.n_ctx} states: its support is empty"
            )
        return contexts

    def token(self, parent: int) -> int:
        """The query's own token: the parent, or the query token where there is one."""
        return self.n_tokens - 1 if self.query else parent

    def allowed(self, read: int, parent: int) -> Bool[np.ndarray, "key token"]:
        """True where a key up to the query, at `read`, may have a token, given the parent."""
        mask = np.zeros((read + 1, self.n_tokens), dtype=bool)
        mask[:, : self.n_states] = True
        mask[0, : self.n_states] &= self.start
        known = np.arange(self.n_tokens)
        if self.query:
            mask[read] = known == self.n_tokens - 1
            if read:
                mask[read - 1] &= known == parent
        else:
            mask[read] &= known == parent
        return mask

    @property
    def token_transitions(self) -> Bool[np.ndarray, "token_from token_to"] | None:
        """`transitions` over all tokens: a query token follows every state. None where all are allowed."""
        if self.transitions.all():
            return None
        possible = np.ones((self.n_tokens, self.n_tokens), dtype=bool)
        possible[: self.n_states, : self.n_states] = self.transitions
        return possible

    def exists(self, read: int, parent: int) -> bool:
        """Returns whether any sequence has that parent at that position."""
        reached = self.start
        for _ in range(read - self.query):
            following = self.transitions[reached].any(0)
            if np.array_equal(following, reached):  # a chain that starts as it goes on
                break
            reached = following
        return bool(reached[parent])

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
