"""Labelled transition matrices, `T[x][i, j]`: to emit x and go to j, given i."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mechmarkov.sources.base.rows import ROW_TOLERANCE
from mechmarkov.theory.hidden import Matrices
from mechmarkov.utils.text import shown


def matrices_of(machine: Any) -> Matrices:
    """The matrices of an epsilon-machine of the package `emic`, its symbols and causal states sorted.

    Raises:
        ValueError: It is not such a machine.
    """
    try:
        edges = [(state.id, edge) for state in machine.states for edge in state.transitions]
    except (AttributeError, TypeError):
        raise ValueError(
            f"machine is {shown(machine)}, expected one of the package emic; labelled matrices are taken by "
            "mm.HiddenMarkov.from_matrices(T)"
        ) from None
    hidden = {name: i for i, name in enumerate(sorted(state.id for state in machine.states))}
    symbols = {x: i for i, x in enumerate(sorted({edge.symbol for _, edge in edges}))}
    T = np.zeros((len(symbols), len(hidden), len(hidden)))
    for name, edge in edges:
        T[symbols[edge.symbol], hidden[name], hidden[edge.target]] += edge.probability
    return T


def labelled_matrices(T: Any) -> Matrices:
    """Labelled matrices `T[symbol, state_from, state_to]` as an array, rows divided by their sums.

    Entry `[x, i, j]` is the probability to show symbol x and go to state j from state i, so that a state's
    row, over symbols and next states, sums to 1.

    Raises:
        ValueError: One line, for another shape, entries that are not probabilities, and sums that are not 1.

    Example:
        >>> labelled_matrices([[[0.5, 0.0], [1.0, 0.0]], [[0.0, 0.5], [0.0, 0.0]]]).shape
        (2, 2, 2)
    """
    if isinstance(T, Mapping):
        T = [T[symbol] for symbol in sorted(T)]
    try:
        matrices = np.array([np.asarray(one, dtype=float) for one in T])
    except (TypeError, ValueError):
        raise ValueError(
            f"matrices are {shown(T)}, expected numbers [state, hidden_from, hidden_to]"
        ) from None
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or len(matrices) < 2:
        raise ValueError(
            f"matrices have shape {list(matrices.shape)}, expected [state, hidden_from, hidden_to] with two "
            "states or more"
        )
    for x, i, j in np.argwhere(~((matrices >= 0) & (matrices <= 1 + ROW_TOLERANCE)))[:1]:
        raise ValueError(f"matrices[{x}][{i}][{j}] is {matrices[x, i, j]}, expected a probability in [0, 1]")
    total = matrices.sum((0, 2))
    for i in np.flatnonzero(np.abs(total - 1) > ROW_TOLERANCE)[:1]:
        raise ValueError(
            f"matrices sum to {total[i]:.6g} over states and hidden_to for hidden state {i}, expected 1: "
            "matrices[x][i, j] emits x and goes from i to j"
        )
    laws: Matrices = matrices / total[:, None]
    return laws
