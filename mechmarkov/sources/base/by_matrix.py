"""What sources that are given by one transition matrix have in common."""

from typing import Any

import numpy as np
from jaxtyping import Float
from pydantic import ConfigDict, Field

from mechmarkov.sources.base.rows import Transitions, normalised
from mechmarkov.sources.base.source import Source


class ByMatrix(Source):
    """`P` in data and as the first argument; in Python it is kept as `rows`, since `P` is the pair law."""

    model_config = ConfigDict(serialize_by_alias=True)

    rows: Transitions = Field(alias="P")

    def __init__(self, P: Any = ..., **data: Any) -> None:
        super().__init__(**data if P is ... else {"P": P, **data})

    def __repr_args__(self) -> Any:
        yield "P", self.rows
        others = (name for name in type(self).model_fields if name not in ("kind", "rows"))
        yield from ((name, getattr(self, name)) for name in others)

    @property
    def n_states(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def transition_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        """The rows divided by their sums, which may be off 1 by rounding (1e-6)."""
        return normalised(self.rows)
