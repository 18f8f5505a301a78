"""Independent hidden chains side by side, whose tokens are read as one."""

from collections.abc import Mapping
from functools import cached_property, reduce
from itertools import product
from math import prod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator, field_validator

from mechmarkov.sources.base.hidden_chain import HiddenChain, Parts
from mechmarkov.sources.base.rows import MAX_STATES, as_lists
from mechmarkov.sources.base.stationary import read_only
from mechmarkov.sources.hidden_markov import HiddenMarkov

MAX_FACTORS = 8


class FactoredHiddenMarkov(HiddenChain):
    """A product of hidden Markov models: a token holds a token of each (Shai et al. 2602.02385).

    Args:
        factors: The models, each with `transitions` and `emissions` as in `HiddenMarkov`. The token of the
            first is the most significant digit.

    The factors are independent, so that the belief over all hidden states is the product of beliefs of each.

    Raises:
        ValueError: naming the factor and what is wrong with it, or more tokens or states than there may be.

    Example:
        >>> one = {"transitions": [[0.9, 0.1], [0.1, 0.9]], "emissions": [[0.8, 0.2], [0.2, 0.8]]}
        >>> source = FactoredHiddenMarkov(factors=[one, one])
        >>> source.labels, source.beliefs(np.array([[3]]))[0, 0].round(3).tolist()
        (('00', '01', '10', '11'), [0.04, 0.16, 0.16, 0.64])
    """

    takes_streams: ClassVar[bool] = True
    hidden: ClassVar[str] = "states of all factors"
    parts_are_independent: ClassVar[bool] = True
    kind: Literal["factored_hidden_markov"] = "factored_hidden_markov"
    example: ClassVar[Mapping[str, Any]] = {
        "factors": [
            {"transitions": [[0.9, 0.1], [0.1, 0.9]], "emissions": [[0.9, 0.1], [0.1, 0.9]]},
            {"transitions": [[0.7, 0.3], [0.3, 0.7]], "emissions": [[0.8, 0.2], [0.2, 0.8]]},
        ]
    }
    factors: Annotated[tuple[HiddenMarkov, ...], BeforeValidator(as_lists)]

    @field_validator("factors")
    @classmethod
    def _few_enough(cls, factors: tuple[HiddenMarkov, ...]) -> tuple[HiddenMarkov, ...]:
        if not 2 <= len(factors) <= MAX_FACTORS:
            raise ValueError(f"factors has {len(factors)} of them, expected 2 to {MAX_FACTORS}")
        for what, n in (
            ("tokens", prod(factor.n_states for factor in factors)),
            ("hidden states", prod(factor.n_hidden for factor in factors)),
        ):
            if n > MAX_STATES:
                raise ValueError(f"factors have {n} {what} together, expected at most {MAX_STATES}")
        return factors

    @property
    def n_states(self) -> int:
        """Number of different tokens: the product over factors."""
        return prod(factor.n_states for factor in self.factors)

    @property
    def labels(self) -> tuple[str, ...]:
        """The factors' tokens side by side: `01`."""
        each = [factor.labels for factor in self.factors]
        between = "" if all(len(label) == 1 for labels in each for label in labels) else "."
        return tuple(map(between.join, product(*each)))

    @cached_property
    def T(self) -> Float[np.ndarray, "hidden_from hidden_to"]:
        """The product of transitions; read-only."""
        return read_only(reduce(np.kron, (factor.T for factor in self.factors)))

    @cached_property
    def E(self) -> Float[np.ndarray, "hidden state"]:
        """The product of emissions; read-only."""
        return read_only(reduce(np.kron, (factor.E for factor in self.factors)))

    @cached_property
    def hidden_law(self) -> Float[np.ndarray, " hidden"]:
        """The product of stationary laws; read-only."""
        return read_only(reduce(np.kron, (factor.hidden_law for factor in self.factors)))

    @property
    def parts(self) -> Parts:
        """The state of each factor."""
        sizes = [factor.n_hidden for factor in self.factors]
        states = np.array(list(product(*map(range, sizes))))
        return {f"factor {i}": np.eye(n)[states[:, i]] for i, n in enumerate(sizes)}

    def title(self) -> str:
        """`2 hidden chains side by side, on 4 tokens`."""
        return f"{len(self.factors)} hidden chains side by side, on {self.n_states} tokens"
