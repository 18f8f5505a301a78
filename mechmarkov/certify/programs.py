"""What a model is compared with: a table of the parent, one row for all, or its row times the counts.

The parent is the last state that is known; a table may have states at further lags too. A table may be read
off the model: then it is the middle of the log odds that the model gives in any context, the table whose odds
are least wrong in the worst case.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from mechmarkov.certify.contexts import cases
from mechmarkov.sources import Source
from mechmarkov.sources.base.rows import as_law, normalised
from mechmarkov.theory import context_conditioned
from mechmarkov.theory.kernel import FLOOR
from mechmarkov.theory.predictors import NextLaws, Tokens
from mechmarkov.utils.errors import list_of
from mechmarkov.utils.text import shown

READ_OFF: Final = ("constant", "parent", "row")  # in the order of their size
BY_SOURCE: Final = ("uniform", "unigram", "bigram")  # tables of the parent, where the source does not redraw

Table = Float[np.ndarray, "case state"]
Pairs = Float[np.ndarray, "*lead state_to state_against"]


@dataclass(frozen=True, eq=False)
class Program:
    """A program with its predictions.

    Attributes:
        name: `constant`, `parent`, `row`, the name of an exact predictor, or `table`.
        table: The law after each parent, or in each case of several lags; of `row` what the counts are
            multiplied with. None for a predictor that sees more than the parent.
        numbers: How many the program has, where they were read off the model; else 0.
        rule: From the known states `[batch, position]` to the law after each.
    """

    name: str
    table: Table | None
    numbers: int
    rule: Callable[[Tokens], NextLaws]

    @property
    def is_table(self) -> bool:
        """Returns whether the parent says all."""
        return self.table is not None and self.name != "row"


def of_table(name: str, table: Table, numbers: int = 0, lags: Sequence[int] = (1,)) -> Program:
    """A program that looks the case up, or with the name "row" multiplies the parent's row with the counts.

    Example:
        >>> of_table("table", np.array([[0.9, 0.1], [0.4, 0.6]])).rule(np.array([[0, 1]])).tolist()
        [[[0.9, 0.1], [0.4, 0.6]]]
    """
    look_up = partial(_look_up, table, lags)
    rule = partial(context_conditioned.next_laws, base=table) if name == "row" else look_up
    return Program(name, table, numbers, rule)


def _look_up(table: Table, lags: Sequence[int], tokens: Tokens) -> NextLaws:
    return table[cases(tokens, table.shape[1], lags)]


def middle(log_odds: Pairs) -> Float[np.ndarray, " state"] | None:
    """The law whose log odds are in the middle of the model's, over all leading axes.

    A state that may get no probability has none, as odds against it have no bound, nor has one that would
    get less than 1e-12. None where no state has any.

    Args:
        log_odds: Upper bounds of `log(q_k / q_l)`.

    Example:
        >>> middle(np.array([[0.0, 0.2], [0.2, 0.0]])).tolist()
        [0.5, 0.5]
    """
    largest = log_odds.max(tuple(range(log_odds.ndim - 2)))
    n = len(largest)
    possible = (largest < np.inf).all(0)
    among = largest[np.ix_(possible, possible)]
    if not possible.any() or not np.isfinite(among).all():
        return None
    logs = ((among - among.T) / 2).mean(1)
    law = np.zeros(n)
    law[possible] = np.exp(logs - logs.max())
    law[law < FLOOR * law.sum()] = 0.0
    return law / law.sum()


def from_rows(rows: Sequence[Sequence[Any]], n_states: int) -> Program:
    """A program that somebody gives: the law after each state.

    Raises:
        ValueError: naming the row and what is wrong with it.

    Example:
        >>> from_rows([[0.9, 0.1], [0.4, 0.5]], n_states=2)
        Traceback (most recent call last):
        ValueError: program[1] sums to 0.9, expected 1
    """
    if len(rows) != n_states:
        raise ValueError(f"program has {len(rows)} rows, expected {n_states}, one for each state")
    for i, given in enumerate(rows):
        row = list_of(f"program[{i}]", given, "a list of probabilities")
        if len(row) != n_states:
            raise ValueError(f"program[{i}] has {len(row)} entries, expected {n_states}, one for each state")
    table = normalised([as_law(row, f"program[{i}]") for i, row in enumerate(rows)])
    return of_table("table", table)


def from_source(name: str, source: Source) -> Program:
    """An exact predictor of the source, by its name: a table where it looks only at the parent.

    Raises:
        ValueError: There is none of that name; the message lists those there are.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> from_source("bigram", Circle(n_states=3, p=1.0)).table[0].tolist()
        [0.0, 1.0, 0.0]
    """
    rules, n = source.predictors(), source.n_states
    if name not in rules:
        known = ", ".join([*READ_OFF, *rules])
        raise ValueError(
            f"program is {shown(name)}, expected one of {known}, or a table with a row for each state"
        )
    if name in BY_SOURCE and not source.redraws:
        return of_table(name, rules[name].probabilities(np.arange(n)[:, None])[:, 0])
    return Program(name, None, 0, rules[name].probabilities)
