"""The binary chain."""

from typing import Literal

import numpy as np
from jaxtyping import Float
from pydantic import model_validator

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.source import Probability


def check_moves(p: float, q: float) -> None:
    """Refuse a chain that would never leave its start, and so has no one stationary law."""
    if p + q == 0:
        raise ValueError("p and q are both 0, expected one above 0: the chain would never leave its start")


class Binary(FixedChain):
    """Two states: `p = Pr(1 | 0)`, `q = Pr(0 | 1)`, `pi = (q, p) / (p + q)` (Makkuva et al. 2025, section 2).

    `p + q` is the switching factor; at 1 the tokens are independent.

    Example:
        >>> Binary(p=0.5, q=0.8).entropy_rate < Binary(p=0.5, q=0.8).unigram_entropy
        True
    """

    kind: Literal["binary"] = "binary"
    p: Probability
    q: Probability

    @model_validator(mode="after")
    def _moves(self) -> "Binary":
        check_moves(self.p, self.q)
        return self

    @property
    def n_states(self) -> int:
        """Two."""
        return 2

    def title(self) -> str:
        """`Binary chain, p = 0.5, q = 0.8`."""
        return f"Binary chain, p = {self.p:g}, q = {self.q:g}"

    def transition_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        return np.array([[1 - self.p, self.p], [self.q, 1 - self.q]])
