"""Any chain, and the binary chain, whose parent sits at a lag."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from mechmarkov.sources.base.by_matrix import ByMatrix
from mechmarkov.sources.base.lagged import Lagged
from mechmarkov.sources.base.stationary import one_law
from mechmarkov.sources.binary import TwoStates


class LaggedChain(ByMatrix, Lagged):
    """`Pr(x_t = j | x_{t - lag} = i) = P[i][j]`: `lag` independent stationary chains, interleaved.

    Args:
        P: The matrix, as in `Chain`; in Python `lag_law`. There `P` is the law of neighbours, as everywhere,
            which is `pi` in every row unless `lag` is 1.
        lag: How many tokens back the parent is; 1 is `Chain(P)`, to the same tokens.

    Raises:
        ValueError: naming the row, or the field, and what is wrong with it.

    Example:
        >>> source = LaggedChain([[0.9, 0.1], [0.4, 0.6]], lag=2)
        >>> source.step_law(1).round(3).tolist(), source.step_law(2).tolist()
        ([[0.8, 0.2], [0.8, 0.2]], [[0.9, 0.1], [0.4, 0.6]])
        >>> source.best().name
        'lag_2'
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["lagged_chain"] = "lagged_chain"
    example: ClassVar[Mapping[str, Any]] = {"P": [[0.9, 0.1], [0.4, 0.6]], "lag": 2}

    def __init__(self, P: Any = ..., lag: Any = ..., **data: Any) -> None:
        super().__init__(P, **data if lag is ... else {"lag": lag, **data})

    _one_law = model_validator(mode="after")(one_law)

    def title(self) -> str:
        """`Chain on 3 states with the parent at lag 2`."""
        return f"Chain on {self.n_states} states with the parent at lag {self.lag}"


class Switch(TwoStates, Lagged):
    """The switch chain of Makkuva et al. 2025: the next symbol depends only on the one `lag` back.

    `p = Pr(x_t = 1 | x_{t - lag} = 0)` and `q = Pr(x_t = 0 | x_{t - lag} = 1)`, as in `Binary`, which is
    `lag = 1`.

    Example:
        >>> Switch(p=0.5, q=0.75, lag=2).lag_law.tolist()
        [[0.5, 0.5], [0.75, 0.25]]
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["switch"] = "switch"
    example: ClassVar[Mapping[str, Any]] = {"p": 0.2, "q": 0.3, "lag": 2}

    def title(self) -> str:
        """`Switch chain, p = 0.5, q = 0.8, lag 2`."""
        return f"Switch chain, p = {self.p:g}, q = {self.q:g}, lag {self.lag}"
