"""The binary chain."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import model_validator

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.source import Probability, Source


class TwoStates(Source):
    """A base of chains on two states: `p = Pr(1 | 0)` and `q = Pr(0 | 1)`.

    Args:
        p: How likely 1 follows 0.
        q: How likely 0 follows 1.
    """

    p: Probability
    q: Probability

    @model_validator(mode="after")
    def _moves(self) -> "TwoStates":
        if self.p + self.q == 0:
            raise ValueError(
                "p and q are both 0, expected one above 0: the chain would never leave its start"
            )
        return self

    @property
    def n_states(self) -> int:
        """Two."""
        return 2

    def transition_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        """`P[i, j] = Pr(j | i)`."""
        return np.array([[1 - self.p, self.p], [self.q, 1 - self.q]])


class Binary(TwoStates, FixedChain):
    """Two states: `p = Pr(1 | 0)`, `q = Pr(0 | 1)`, `pi = (q, p) / (p + q)` (Makkuva et al. 2025, section 2).

    `p + q` is the switching factor; at 1 the tokens are independent.

    Example:
        >>> Binary(p=0.5, q=0.8).entropy_rate < Binary(p=0.5, q=0.8).unigram_entropy
        True
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["binary"] = "binary"
    example: ClassVar[Mapping[str, Any]] = {"p": 0.2, "q": 0.3}

    def title(self) -> str:
        """`Binary chain, p = 0.5, q = 0.8`."""
        return f"Binary chain, p = {self.p:g}, q = {self.q:g}"
