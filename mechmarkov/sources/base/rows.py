"""Tables of probabilities as arguments: nested lists, each innermost one a law."""

import math
import numbers
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from pydantic import AfterValidator, BeforeValidator

from mechmarkov.sources.base.source import Real
from mechmarkov.utils.errors import nested_lists
from mechmarkov.utils.lazy_torch import is_tensor
from mechmarkov.utils.text import shown

# A row in float32, or written with seven digits, is meant as a law; one that is off by more is a mistake.
ROW_TOLERANCE = 1e-6
MAX_STATES = 1 << 12


def as_lists(value: Any) -> Any:
    """Arrays, tensors and other packages' tables as nested lists; anything else as it is.

    Example:
        >>> as_lists(np.eye(2)), as_lists("uniform")
        ([[1.0, 0.0], [0.0, 1.0]], 'uniform')
    """
    if not (isinstance(value, np.ndarray) or is_tensor(value)):
        if not hasattr(value, "__array__") or isinstance(value, type):
            return value
        value = np.asarray(value)  # to go through a table of pandas would give the names of its columns
    try:
        return nested_lists("it", value, "numbers")
    except TypeError as error:  # pydantic names the field of a ValueError
        raise ValueError(str(error)) from None


# Plain data whatever it was given as; what the numbers must be is for the checks below.
Rows = Annotated[tuple[tuple[Real, ...], ...], BeforeValidator(as_lists)]
Weights = Annotated[tuple[Real, ...], BeforeValidator(as_lists)]


def check_square(rows: Sequence[Sequence[float]], name: str) -> None:
    """Refuse what is not a square of 2 to 4096 rows.

    Raises:
        ValueError: naming the table, what it has and what was expected.
    """
    if not 2 <= len(rows) <= MAX_STATES:
        raise ValueError(f"{name} has {len(rows)} rows, expected 2 to {MAX_STATES}")
    for i, row in enumerate(rows):
        if len(row) != len(rows):
            raise ValueError(
                f"{name} has {len(rows)} rows but row {i} has {len(row)} entries, expected a square"
            )


def check_law(law: Sequence[float], name: str, whole: str | None = None) -> None:
    """Refuse what is not a law: entries outside [0, 1], or a sum that is not 1 (to 1e-6).

    Args:
        law: The probabilities.
        name: The field they are in, for the message.
        whole: A name for all of them, where the field's own does not do.

    Raises:
        ValueError: naming the entry, or the whole (by its own name, if it has one), and the value.

    Example:
        >>> check_law([0.5, 0.6], "start")
        Traceback (most recent call last):
        ValueError: start sums to 1.1, expected 1
    """
    for j, entry in enumerate(law):
        if not 0 <= entry <= 1:
            raise ValueError(f"{name}[{j}] is {entry}, expected a probability in [0, 1]")
    if abs(math.fsum(law) - 1) > ROW_TOLERANCE:
        raise ValueError(f"{whole or name} sums to {math.fsum(law):.12g}, expected 1")


def as_law(values: Sequence[Any], name: str) -> tuple[float, ...]:
    """Numbers of any kind as plain floats, if they are a law; see `check_law`.

    Raises:
        ValueError: naming the entry that is not a number, or as `check_law`.
    """
    for j, entry in enumerate(values):
        if isinstance(entry, bool) or not isinstance(entry, numbers.Real):  # "1" is not a number
            raise ValueError(f"{name}[{j}] is {shown(entry)}, expected a probability in [0, 1]")
    law = tuple(map(float, values))
    check_law(law, name)
    return law


def check_laws(rows: Sequence[Sequence[float]], name: str) -> None:
    """Refuse rows that are not laws; see `check_law`."""
    for i, row in enumerate(rows):
        check_law(row, f"{name}[{i}]", f"row {i} of {name}")


def one_for_each(item: str, field: str) -> AfterValidator:
    """For weights: they are a law over the items of another field. None, or no valid items, is not judged.

    The error names the number of weights, or is that of `check_law`.
    """

    def check(weights: tuple[float, ...] | None, info: Any) -> tuple[float, ...] | None:
        items = info.data.get(field)
        if weights is not None and items is not None:
            if len(weights) != len(items):
                raise ValueError(
                    f"weights has {len(weights)} entries, expected {len(items)}, one for each {item}"
                )
            check_law(weights, "weights")
        return weights

    return AfterValidator(check)


def weights_or_uniform(weights: tuple[float, ...] | None, n: int) -> Float[np.ndarray, " item"]:
    """The law that weights are, or the uniform one over n items where none are given.

    Example:
        >>> weights_or_uniform(None, 2).tolist(), weights_or_uniform((0.2, 0.8), 2).tolist()
        ([0.5, 0.5], [0.2, 0.8])
    """
    return np.full(n, 1 / n) if weights is None else normalised([weights])[0]


def laws_of(
    counts: Float[np.ndarray, "row state"], otherwise: Float[np.ndarray, "... state"]
) -> Float[np.ndarray, "row state"]:
    """Counts, or joint probabilities, by their rows' sums; a row without any has the other law.

    Example:
        >>> laws_of(np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([0.5, 0.5])).tolist()
        [[0.25, 0.75], [0.5, 0.5]]
    """
    total = counts.sum(-1, keepdims=True)
    return np.divide(counts, total, out=np.broadcast_to(otherwise, counts.shape).copy(), where=total > 0)


def check_transitions(rows: Sequence[Sequence[float]], name: str) -> None:
    """Refuse what is not a transition matrix; see `check_square` and `check_laws`."""
    check_square(rows, name)
    check_laws(rows, name)


def _transitions(rows: tuple[tuple[float, ...], ...], info: Any) -> tuple[tuple[float, ...], ...]:
    check_transitions(rows, "P" if info.field_name == "rows" else info.field_name)
    return rows


Transitions = Annotated[Rows, AfterValidator(_transitions)]


def normalised(rows: Sequence[Sequence[float]]) -> Float[np.ndarray, "row column"]:
    """The rows divided by their sums, in float64; where a row sums to 1 not one bit is changed.

    Example:
        >>> normalised([[0.5, 0.5], [0.3, 0.7000001]])[1].sum()
        np.float64(1.0)
    """
    return np.array(rows) / np.array([[math.fsum(row)] for row in rows])
