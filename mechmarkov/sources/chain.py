"""Any chain, by its transition matrix."""

import math
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import ConfigDict, Field, field_validator, model_validator

from mechmarkov.sources import law
from mechmarkov.sources.base import Real
from mechmarkov.sources.fixed_chain import FixedChain

# A row in float32, or written with seven digits, is meant as a law; one that is off by more is a mistake.
ROW_TOLERANCE = 1e-6
MAX_STATES = 1 << 12


class Chain(FixedChain):
    """The chain with transition matrix `P`, `P[i][j] = Pr(next = j | current = i)`; starts are stationary.

    Args:
        P: Nested lists, a numpy array or a tensor `[state_from, state_to]`. Kept as given; the law is that
            of its rows divided by their sums, which may be off 1 by rounding (1e-6).

    Transient states are allowed (`reducible` says so) and never sampled; more than one closed class is not,
    since there would be no one stationary law.

    Raises:
        pydantic.ValidationError: naming the row and what is wrong with it.

    Example:
        >>> chain = Chain([[0.9, 0.1], [0.4, 0.6]])
        >>> chain.pi.round(3).tolist(), chain.model_dump(mode="json")
        ([0.8, 0.2], {'kind': 'chain', 'P': [[0.9, 0.1], [0.4, 0.6]]})
    """

    # In data the argument is called P; in Python `P` is the array, here as for every fixed chain.
    model_config = ConfigDict(serialize_by_alias=True)

    kind: Literal["chain"] = "chain"
    rows: tuple[tuple[Real, ...], ...] = Field(alias="P")

    def __init__(self, P: Any = ..., **data: Any) -> None:
        super().__init__(**data if P is ... else {"P": P, **data})

    def __repr_args__(self) -> Any:
        return [("P", self.rows)]

    @field_validator("rows", mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value

    @field_validator("rows")
    @classmethod
    def _laws(cls, rows: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
        if not 2 <= len(rows) <= MAX_STATES:
            raise ValueError(f"P has {len(rows)} rows, expected 2 to {MAX_STATES}")
        for i, row in enumerate(rows):
            if len(row) != len(rows):
                raise ValueError(
                    f"P has {len(rows)} rows but row {i} has {len(row)} entries, expected a square"
                )
            for j, entry in enumerate(row):
                if not 0 <= entry <= 1:
                    raise ValueError(f"P[{i}][{j}] is {entry}, expected a probability in [0, 1]")
            if abs(math.fsum(row) - 1) > ROW_TOLERANCE:
                raise ValueError(f"row {i} of P sums to {math.fsum(row):.12g}, expected 1")
        return rows

    @model_validator(mode="after")
    def _one_law(self) -> "Chain":
        law.stationary(self.P)  # says which classes are closed, if not one
        return self

    @property
    def n_states(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def title(self) -> str:
        """`Chain on 3 states`."""
        return f"Chain on {self.n_states} states"

    def _transitions(self) -> Float[np.ndarray, "state_from state_to"]:
        return np.array(self.rows) / np.array([[math.fsum(row)] for row in self.rows])
