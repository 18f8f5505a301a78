"""Sources whose symbols a tokeniser may read, as hidden chains that emit on edges."""

from functools import singledispatch
from itertools import product

import numpy as np
from jaxtyping import Float

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.lagged import Lagged
from mechmarkov.sources.base.source import Source
from mechmarkov.sources.context_tree import ContextTree
from mechmarkov.sources.hidden_markov import HiddenMarkov
from mechmarkov.sources.order_k import MAX_HISTORIES, OrderK
from mechmarkov.theory.hidden import Matrices


@singledispatch
def symbol_chain(source: Source) -> Matrices:
    """`T[x, h, h']`: to emit symbol x and go to h', given h, which is what the source remembers.

    Raises:
        ValueError: A source that is not known to be a finite hidden chain.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> symbol_chain(Binary(p=0.2, q=0.3)).tolist()
        [[[0.8, 0.0], [0.3, 0.0]], [[0.0, 0.2], [0.0, 0.7]]]
    """
    raise ValueError(
        f"source is of kind {source.kind!r}, expected one fixed law with a finite memory: a chain, "
        "'order_k', 'context_tree', 'lagged_chain', 'switch' or 'hidden_markov'"
    )


@symbol_chain.register
def _(source: FixedChain) -> Matrices:
    return _of_histories(source.P, source.n_states)


@symbol_chain.register
def _(source: OrderK) -> Matrices:
    return _of_histories(source.rows, source.n_states)


@symbol_chain.register
def _(source: ContextTree) -> Matrices:
    return _of_histories(source.chain.rows, source.n_states)


@symbol_chain.register
def _(source: Lagged) -> Matrices:
    n_states, lag = source.n_states, source.lag
    if n_states**lag > MAX_HISTORIES:
        raise ValueError(
            f"source remembers {lag} of {n_states} states, expected at most {MAX_HISTORIES} histories"
        )
    oldest = [history[0] for history in product(range(n_states), repeat=lag)]
    return _of_histories(source.lag_law[oldest], n_states)


@symbol_chain.register
def _(source: HiddenMarkov) -> Matrices:
    return source.T * source.E.T[:, None, :]


def _of_histories(rows: Float[np.ndarray, "history state_to"], n_states: int) -> Matrices:
    n = len(rows)
    T = np.zeros((n_states, n, n))
    history = np.arange(n)
    for symbol in range(n_states):
        T[symbol, history, (history * n_states + symbol) % n] = rows[:, symbol]
    return T
