"""The binary chain whose parent sits at a lag."""

from typing import Literal

import numpy as np
from jaxtyping import Float
from pydantic import model_validator

from mechmarkov.sources.base.lagged import Lagged
from mechmarkov.sources.base.source import Probability
from mechmarkov.sources.binary import Binary, check_moves


class Switch(Lagged):
    """The switch chain of Makkuva et al. 2025: the next symbol depends only on the one `lag` back.

    `p = Pr(x_t = 1 | x_{t - lag} = 0)` and `q = Pr(x_t = 0 | x_{t - lag} = 1)`, as in `Binary`, which is
    `lag = 1`.

    Example:
        >>> Switch(p=0.5, q=0.75, lag=2).lag_law.tolist()
        [[0.5, 0.5], [0.75, 0.25]]
    """

    kind: Literal["switch"] = "switch"
    p: Probability
    q: Probability

    @model_validator(mode="after")
    def _moves(self) -> "Switch":
        check_moves(self.p, self.q)
        return self

    @property
    def n_states(self) -> int:
        """Two."""
        return 2

    def title(self) -> str:
        """`Switch chain, p = 0.5, q = 0.8, lag 2`."""
        return f"Switch chain, p = {self.p:g}, q = {self.q:g}, lag {self.lag}"

    def transition_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        return Binary(p=self.p, q=self.q).P
