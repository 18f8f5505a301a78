"""Any chain, by its transition matrix."""

from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import ConfigDict, Field, model_validator

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.rows import Transitions, normalised
from mechmarkov.sources.sampling import law


class Chain(FixedChain):
    """The chain with transition matrix `P`, `P[i][j] = Pr(next = j | current = i)`; starts are stationary.

    Args:
        P: Nested lists, a numpy array or a tensor `[state_from, state_to]`. Kept as given; the law is that
            of its rows divided by their sums, which may be off 1 by rounding (1e-6).

    Transient states are allowed (`reducible` says so) and never sampled. More than one closed class is
    refused, since the stationary law would not be unique.

    Raises:
        ValueError: naming the row and what is wrong with it.

    Example:
        >>> chain = Chain([[0.9, 0.1], [0.4, 0.6]])
        >>> chain.pi.round(3).tolist(), chain.model_dump(mode="json")
        ([0.8, 0.2], {'kind': 'chain', 'P': [[0.9, 0.1], [0.4, 0.6]]})
    """

    # In data the argument is called P; in Python `P` is the array, as for every fixed chain.
    model_config = ConfigDict(serialize_by_alias=True)

    kind: Literal["chain"] = "chain"
    rows: Transitions = Field(alias="P")

    def __init__(self, P: Any = ..., **data: Any) -> None:
        super().__init__(**data if P is ... else {"P": P, **data})

    def __repr_args__(self) -> Any:
        return [("P", self.rows)]

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

    def transition_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        return normalised(self.rows)
