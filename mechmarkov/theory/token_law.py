"""The exact law of tokens: a hidden chain that emits symbols, read by a tokeniser.

A chain whose edges emit symbols and a transducer that reads them make one finite chain, whose state is what
the source remembers and what the tokeniser has not yet written. How often each token is written is one linear
solve (Rajaraman, Jiao & Ramchandran 2024, arXiv 2404.08335, ask for the loss of a unigram model over tokens).
Losses are in nats.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array, eye_array, vstack
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import spsolve
from scipy.special import entr

from mechmarkov.theory.hidden import Matrices
from mechmarkov.theory.transducer import Transducer, Written

State = tuple[int, Hashable]
"""The memory of the source, and the tokeniser's pending symbols."""


@dataclass(frozen=True, eq=False)
class TokenUnigram:
    """Frequencies of tokens in the long run.

    Attributes:
        law: The share of all tokens that are this one.
        symbols_per_token: Mean number of source symbols that a token stands for.
    """

    law: Float[np.ndarray, " token"]
    symbols_per_token: float

    @property
    def loss_per_symbol(self) -> float:
        """The loss of the unigram model over tokens, in nats a source symbol."""
        return float(entr(self.law).sum()) / self.symbols_per_token


@dataclass(frozen=True, eq=False)
class TokenChain:
    """Tokens as a function of a Markov chain, which takes a step a token.

    Attributes:
        transitions: Those of the hidden chain.
        token: The one that each hidden state has just written.
        law: The stationary law of the hidden states.
        pending: The tokeniser's state there, what it writes next without reading, and the source's state.
    """

    transitions: Float[np.ndarray, "hidden_from hidden_to"]
    token: Int[np.ndarray, " hidden"]
    law: Float[np.ndarray, " hidden"]
    pending: tuple[tuple[Hashable, Written, int], ...]


def unigram(T: Matrices, tokeniser: Transducer) -> TokenUnigram:
    """The law of tokens by one linear solve, over the states that are reached with nothing pending at first.

    Args:
        T: `T[x, h, h']`, to emit symbol x and go to h', given h.
        tokeniser: It reads the symbols.

    Raises:
        ValueError: The law depends on where the first token begins, as for blocks of a periodic chain.

    Example:
        >>> from mechmarkov.theory.transducer import strings
        >>> P = np.array([[0.2, 0.8], [0.8, 0.2]])
        >>> T = np.stack([P * [1, 0], P * [0, 1]])
        >>> [round(unigram(T, strings(2, r)).loss_per_symbol, 4) for r in (1, 2, 4)]
        [0.6931, 0.5968, 0.5486]
    """
    index: dict[State, int] = {}
    edges: list[tuple[int, int, float, Written]] = []
    waiting = [(hidden, tokeniser.start) for hidden in range(T.shape[1])]
    for state in waiting:
        index[state] = len(index)
    while waiting:
        state = waiting.pop()
        for onward, probability, written in _read(T, tokeniser, state):
            if onward not in index:
                index[onward] = len(index)
                waiting.append(onward)
            edges.append((index[state], index[onward], probability, written))
    rows, columns, values, _ = zip(*edges, strict=True)
    law = _stationary(csr_array((values, (rows, columns)), shape=(len(index), len(index))))
    written_often = np.zeros(len(tokeniser.words))
    for i, _, probability, written in edges:
        for token in written:
            written_often[token] += law[i] * probability
    return TokenUnigram(written_often / written_often.sum(), float(1 / written_often.sum()))


def token_chain(T: Matrices, tokeniser: Transducer, most: int) -> TokenChain:
    """The chain that takes a step a token, over all that is reached with nothing pending at first.

    Args:
        T: `T[x, h, h']`, to emit symbol x and go to h', given h.
        tokeniser: It reads the symbols.
        most: The largest number of states allowed.

    Raises:
        ValueError: There are more.

    Example:
        >>> from mechmarkov.theory.transducer import greedy
        >>> coin = np.full((2, 1, 1), 0.5)  # two symbols, nothing to remember
        >>> chain = token_chain(coin, greedy([(0,), (1,), (0, 0)], 2), most=9)
        >>> chain.token.tolist(), chain.law.round(3).tolist()
        ([1, 2, 0], [0.6, 0.2, 0.2])
    """
    index: dict[tuple[int, tuple[Hashable, Written, int]], int] = {}
    rows: dict[tuple[Hashable, Written, int], dict[int, float]] = {}
    waiting: list[tuple[Hashable, Written, int]] = [(tokeniser.start, (), h) for h in range(T.shape[1])]
    while waiting:
        place = waiting.pop()
        if place in rows:
            continue
        row = rows[place] = {}
        for token, onward, probability in _next_token(T, tokeniser, place):
            state = index.setdefault((token, onward), len(index))
            if len(index) > most:
                raise ValueError(
                    f"tokeniser and source have more than {most} hidden states together, "
                    "expected fewer tokens or a source of shorter memory"
                )
            row[state] = row.get(state, 0.0) + probability
            waiting.append(onward)
    transitions = np.zeros((len(index), len(index)))
    for (_, place), i in index.items():
        transitions[i, list(rows[place])] = list(rows[place].values())
    closed = _closed(csr_array(transitions))
    recurrent = transitions[np.ix_(closed, closed)]
    recurrent /= recurrent.sum(1, keepdims=True)
    states = [list(index)[i] for i in closed]
    return TokenChain(
        recurrent,
        np.array([token for token, _ in states]),
        _stationary(csr_array(recurrent)),
        tuple(place for _, place in states),
    )


def _read(T: Matrices, tokeniser: Transducer, state: State) -> Iterator[tuple[State, float, Written]]:
    hidden, pending = state
    for symbol in range(len(T)):
        onto = np.flatnonzero(T[symbol, hidden])
        if len(onto):
            next_pending, written = tokeniser.step(pending, symbol)
            for to in onto.tolist():
                yield (to, next_pending), float(T[symbol, hidden, to]), written


def _next_token(
    T: Matrices, tokeniser: Transducer, place: tuple[Hashable, Written, int]
) -> Iterator[tuple[int, tuple[Hashable, Written, int], float]]:
    pending, queue, hidden = place
    if queue:
        yield queue[0], (pending, queue[1:], hidden), 1.0
        return
    reading: list[tuple[State, float]] = [((hidden, pending), 1.0)]
    while reading:  # ends: no tokeniser holds back more symbols than its longest word has
        state, so_far = reading.pop()
        for (to, onward), probability, written in _read(T, tokeniser, state):
            if written:
                yield written[0], (onward, written[1:], to), so_far * probability
            else:
                reading.append(((to, onward), so_far * probability))


def _closed(P: csr_array) -> Int[np.ndarray, " state"]:
    """The states of the closed class.

    Raises:
        ValueError: There are several.
    """
    n_classes, member_of = connected_components(P, connection="strong")
    start, to = P.nonzero()
    left = np.unique(member_of[start[member_of[start] != member_of[to]]])
    closed = np.setdiff1d(np.arange(n_classes), left)
    if len(closed) > 1:
        raise ValueError(
            f"tokeniser has {len(closed)} laws of tokens on this source, expected one: "
            "which one a sequence has depends on where its first token begins"
        )
    return np.flatnonzero(member_of == closed[0])


def _stationary(P: csr_array) -> Float[np.ndarray, " state"]:
    closed = _closed(P)
    inner = P[closed][:, closed]
    balance = (inner.T - eye_array(len(closed))).tocsr()[:-1]
    equations = vstack([balance, csr_array(np.ones((1, len(closed))))]).tocsc()
    law = np.zeros(P.shape[0])
    law[closed] = np.maximum(spsolve(equations, np.eye(len(closed))[-1]), 0)
    return law / law.sum()
