"""Any chain, by its transition matrix."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from mechmarkov.sources.base.by_matrix import ByMatrix
from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.stationary import one_law


class Chain(ByMatrix, FixedChain):
    """The chain with transition matrix `P`, `P[i][j] = Pr(next = j | current = i)`; starts are stationary.

    Args:
        P: The transition matrix, `[state_from, state_to]`: nested lists, a numpy array or a tensor. Kept as
            given; the law is that of its rows divided by their sums, which may be off 1 by rounding (1e-6).

    Transient states are allowed (`reducible` says so) and never sampled. More than one closed class is
    refused, since the stationary law would not be unique.

    Raises:
        ValueError: naming the row and what is wrong with it.

    Example:
        >>> chain = Chain([[0.9, 0.1], [0.4, 0.6]])
        >>> chain.pi.round(3).tolist(), chain.model_dump(mode="json")
        ([0.8, 0.2], {'kind': 'chain', 'P': [[0.9, 0.1], [0.4, 0.6]]})
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["chain"] = "chain"
    example: ClassVar[Mapping[str, Any]] = {"P": [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]]}

    def __init__(self, P: Any = ..., **data: Any) -> None:  # for type checkers, which see no inherited one
        super().__init__(P, **data)

    _one_law = model_validator(mode="after")(one_law)

    def title(self) -> str:
        """`Chain on 3 states`."""
        return f"Chain on {self.n_states} states"
