"""Any chain whose parent sits at a lag."""

from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import ConfigDict, Field, model_validator

from mechmarkov.sources.base.lagged import Lagged
from mechmarkov.sources.base.rows import Transitions, normalised


class LaggedChain(Lagged):
    """`Pr(x_t = j | x_{t - lag} = i) = P[i][j]`: `lag` independent stationary chains, interleaved.

    Args:
        P: As in `Chain`. In Python it is `lag_law`; `P` is there the law of neighbours, as for every source,
            which is `pi` in every row unless `lag` is 1.
        lag: 1 is `Chain(P)`, to the same tokens.

    Raises:
        ValueError: naming the row, or the field, and what is wrong with it.

    Example:
        >>> source = LaggedChain([[0.9, 0.1], [0.4, 0.6]], lag=2)
        >>> source.step_law(1).round(3).tolist(), source.step_law(2).tolist()
        ([[0.8, 0.2], [0.8, 0.2]], [[0.9, 0.1], [0.4, 0.6]])
        >>> source.best().name
        'lag_2'
    """

    model_config = ConfigDict(serialize_by_alias=True)

    kind: Literal["lagged_chain"] = "lagged_chain"
    rows: Transitions = Field(alias="P")

    def __init__(self, P: Any = ..., lag: Any = ..., **data: Any) -> None:
        given = {key: value for key, value in (("P", P), ("lag", lag)) if value is not ...}
        super().__init__(**given, **data)

    def __repr_args__(self) -> Any:
        return [("P", self.rows), ("lag", self.lag)]

    @model_validator(mode="after")
    def _one_law(self) -> "LaggedChain":
        _ = self.pi  # says which classes are closed, if not one
        return self

    @property
    def n_states(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def title(self) -> str:
        """`Chain on 3 states with the parent at lag 2`."""
        return f"Chain on {self.n_states} states with the parent at lag {self.lag}"

    def transition_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        return normalised(self.rows)
