"""A chain that is not seen, but only what it emits."""

import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import field_validator, model_validator

from mechmarkov.sources.base.hidden_chain import HiddenChain
from mechmarkov.sources.base.rows import (
    MAX_STATES,
    ROW_TOLERANCE,
    Rows,
    Transitions,
    check_law,
    check_laws,
    normalised,
)
from mechmarkov.sources.base.stationary import one_law, read_only
from mechmarkov.sources.sampling import law
from mechmarkov.theory.hidden import Matrices, from_states
from mechmarkov.utils.text import shown


class HiddenMarkov(HiddenChain):
    """A stationary hidden chain; each token is drawn from the law that belongs to its hidden state.

    Args:
        transitions: The transitions of the hidden chain, `[hidden_from, hidden_to]`, as in `Chain`.
        emissions: The law of the token in each hidden state, `[hidden, state]`.

    What is known of the hidden state after some tokens, the belief, follows from the forward filter, and so
    does the Bayes-optimal predictor. The lowest possible loss, the entropy rate, has no closed form.

    Other forms are taken as they come: `from_matrices` (tokens on edges: epsilon-machines), `from_machine`
    (emic's), `from_parameters` (hmmlearn's, dynamax'). As data, `matrices` may stand for both arguments.

    Raises:
        ValueError: naming the row and what is wrong with it.

    Example:
        >>> source = HiddenMarkov(transitions=[[0.9, 0.1], [0.1, 0.9]], emissions=[[1, 0, 0], [0, 0.5, 0.5]])
        >>> source.pi.tolist(), source.P[1].tolist()
        ([0.5, 0.25, 0.25], [0.1, 0.45, 0.45])
        >>> source.beliefs(np.array([[0, 2]])).tolist()
        [[[1.0, 0.0], [0.0, 1.0]]]
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["hidden_markov"] = "hidden_markov"
    example: ClassVar[Mapping[str, Any]] = {
        "transitions": [[0.9, 0.1], [0.1, 0.9]],
        "emissions": [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]],
    }
    transitions: Transitions
    emissions: Rows

    @field_validator("emissions")
    @classmethod
    def _a_law_each(cls, rows: tuple[tuple[float, ...], ...], info: Any) -> tuple[tuple[float, ...], ...]:
        if "transitions" not in info.data:
            return rows
        n_hidden = len(info.data["transitions"])
        if len(rows) != n_hidden:
            raise ValueError(
                f"emissions has {len(rows)} rows, expected {n_hidden}, one for each hidden state"
            )
        if not 2 <= len(rows[0]) <= MAX_STATES:
            raise ValueError(f"row 0 of emissions has {len(rows[0])} entries, expected 2 to {MAX_STATES}")
        for i, row in enumerate(rows):
            if len(row) != len(rows[0]):
                raise ValueError(
                    f"row {i} of emissions has {len(row)} entries, expected {len(rows[0])} as row 0"
                )
        check_laws(rows, "emissions")
        return rows

    _one_law = model_validator(mode="after")(one_law)

    @model_validator(mode="before")
    @classmethod
    def _of_matrices(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "matrices" not in data:
            return data
        A, E = from_states(labelled_matrices(data["matrices"]))
        rest = {name: value for name, value in data.items() if name != "matrices"}
        return {"transitions": A.tolist(), "emissions": E.tolist(), **rest}

    @classmethod
    def from_matrices(cls, T: Any) -> "HiddenMarkov":
        """A model that emits on edges: `T[x][i, j]` emits x and goes to j, given i.

        The law of its sequences is the same; its hidden states are those of `theory.hidden.from_states`.

        Args:
            T: `[state, hidden_from, hidden_to]`, or a matrix for each symbol, `{symbol: matrix}`; the
                symbols, sorted, are the states.

        Raises:
            ValueError: One line, for another shape, entries that are not probabilities, and rows whose sum
                over symbols is not 1.

        Example:
            >>> golden_mean = {0: [[0.5, 0], [1, 0]], 1: [[0, 0.5], [0, 0]]}  # no two 1s in a row
            >>> HiddenMarkov.from_matrices(golden_mean).P.round(3).tolist()
            [[0.5, 0.5], [1.0, 0.0]]
        """
        A, E = from_states(labelled_matrices(T))
        return cls(transitions=A.tolist(), emissions=E.tolist())

    @classmethod
    def from_machine(cls, machine: Any) -> "HiddenMarkov":
        """An epsilon-machine of the package `emic`: `machine.states`, each with labelled `transitions`.

        Raises:
            ValueError: As `from_matrices`.
        """
        return cls.from_matrices(matrices_of(machine))

    @classmethod
    def from_parameters(cls, initial: Any, transition: Any, emission: Any) -> "HiddenMarkov":
        """A model that emits from states, by the parameters of hmmlearn or dynamax.

        hmmlearn: `(model.startprob_, model.transmat_, model.emissionprob_)` of a CategoricalHMM. dynamax:
        `(p.initial.probs, p.transitions.transition_matrix, p.emissions.probs)` of one with one emission.

        Args:
            initial: The law of the first hidden state, or None. A source is stationary: another than the
                stationary law is left out, with a warning.
            transition: `[hidden_from, hidden_to]`.
            emission: `[hidden, state]`, or `[hidden, 1, state]`.

        Raises:
            ValueError: As of `HiddenMarkov`.

        Example:
            >>> HiddenMarkov.from_parameters([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], np.eye(2)).pi.tolist()
            [0.5, 0.5]
        """
        A, E = np.asarray(transition, dtype=float), np.asarray(emission, dtype=float)
        if E.ndim == 3:
            if E.shape[1] != 1:
                raise ValueError(f"emission has shape {list(E.shape)}, expected [hidden, 1, state]")
            E = E[:, 0]
        source = cls(transitions=A.tolist(), emissions=E.tolist())
        if initial is not None:
            start = np.asarray(initial, dtype=float)
            if start.shape != source.hidden_law.shape:
                raise ValueError(f"initial has shape {list(start.shape)}, expected [{source.n_hidden}]")
            check_law(start.tolist(), "initial")
            apart = float(np.abs(start - source.hidden_law).sum() / 2)
            if apart > ROW_TOLERANCE:
                warnings.warn(
                    f"initial is left out: a source begins in its stationary law, "
                    f"{source.hidden_law.round(4).tolist()}, at a distance of {apart:.3g} (total variation)",
                    stacklevel=2,
                )
        return source

    @classmethod
    def mess3(cls, x: float = 0.05, a: float = 0.85) -> "HiddenMarkov":
        """Mess3: three hidden states, three tokens, beliefs on a fractal (Marzen & Crutchfield, 1702.08565).

        With `M` the transitions (`x` off the diagonal) and `E` the emissions (`a` on it, `(1 - a) / 2` off
        it), the labelled matrices of the paper are `T[token][i, j] = M[i, j] E[j, token]`.

        Args:
            x: Probability of each other hidden state (Shai et al. 2024, arXiv 2405.15943: 0.05).
            a: Probability of the token that belongs to the hidden state (Shai et al.: 0.85).

        Example:
            >>> source = HiddenMarkov.mess3()
            >>> (source.T[0, 0] * source.E[0, 0]).round(3), (source.T[0, 1] * source.E[1, 0]).round(5)
            (np.float64(0.765), np.float64(0.00375))
        """
        square = np.eye(3)
        transitions = x + (1 - 3 * x) * square
        b = (1 - a) / 2
        return cls(transitions=transitions.tolist(), emissions=(b + (a - b) * square).tolist())

    @classmethod
    def rrxor(cls, noise: float = 0.1) -> "HiddenMarkov":
        """Two random bits, then their exclusive or, and again (RRXOR; Shai et al. 2024, arXiv 2405.15943).

        Where the phase is in doubt, beliefs differ that predict the same next token.

        Args:
            noise: Probability that the third bit is flipped; 0 in the paper.

        Hidden states: 0 and 1 after a first bit, `2 + 2 * xor + bit` after a second, 6 and 7 after a third.

        Example:
            >>> laws = HiddenMarkov.rrxor().laws_of_hidden(np.array([[0]]))[0, 0]
            >>> laws[0].tolist(), laws[2].tolist(), laws[6].tolist()
            ([0.5, 0.5], [0.9, 0.1], [0.5, 0.5])
        """
        T, E = np.zeros((8, 8)), np.zeros((8, 2))
        for one in (0, 1):
            E[one, one] = E[6 + one, one] = 1
            for two in (0, 1):
                E[2 + 2 * one + two, two] = 1
                T[one, 2 + 2 * (one ^ two) + two] = T[6 + one, two] = 0.5
                T[2 + 2 * one + two, [6 + one, 7 - one]] = 1 - noise, noise
        return cls(transitions=T.tolist(), emissions=E.tolist())

    @property
    def n_states(self) -> int:
        """Number of different tokens."""
        return len(self.emissions[0])

    @cached_property
    def T(self) -> Float[np.ndarray, "hidden_from hidden_to"]:
        """Transitions of the hidden chain; read-only."""
        return read_only(normalised(self.transitions))

    @cached_property
    def E(self) -> Float[np.ndarray, "hidden state"]:
        """Emissions, `Pr(token = j | hidden = h)`; read-only."""
        return read_only(normalised(self.emissions))

    @cached_property
    def hidden_law(self) -> Float[np.ndarray, " hidden"]:
        """The stationary law of the hidden chain, from which sequences start; read-only."""
        return read_only(law.stationary(self.T, "transitions"))

    def title(self) -> str:
        """`3 tokens from a hidden Markov model of 2 states`."""
        return f"{self.n_states} tokens from a hidden Markov model of {self.n_hidden} states"


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
