"""A chain of variable order, by its context tree."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator, field_validator, model_validator

from mechmarkov.sources.base.rows import Weights, as_lists, check_law
from mechmarkov.sources.base.source import Count, Predictor
from mechmarkov.sources.base.stationary import Stationary
from mechmarkov.sources.order_k import MAX_HISTORIES, OrderK, check_one_class
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences
from mechmarkov.utils.config import Fields

Context = tuple[int, ...]


class Leaf(Fields):
    """A context, and the law of the next state after it.

    Args:
        context: The last states, the oldest first; none for a law whatever came before.
        law: The law of the next state.
    """

    context: Annotated[tuple[Count, ...], BeforeValidator(as_lists)]
    law: Weights


class ContextTree(Stationary):
    """The next state depends on the one leaf of a tree that the past ends with: a tree source.

    Args:
        leaves: The contexts with their laws, such that every past ends with exactly one; at most 1024
            histories of the longest context's length.

    It is a chain of the order of its longest context (`chain`), which has its laws, draws and predictors.

    Raises:
        ValueError: A tree that is not complete, or two leaves for one past, which are named.

    Example:
        >>> leaves = [([1], [0.3, 0.7]), ([0, 0], [0.9, 0.1]), ([1, 0], [0.5, 0.5])]
        >>> source = ContextTree(leaves=[{"context": context, "law": law} for context, law in leaves])
        >>> source.order, source.chain.rows.tolist()
        (2, [[0.9, 0.1], [0.3, 0.7], [0.5, 0.5], [0.3, 0.7]])
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["context_tree"] = "context_tree"
    example: ClassVar[Mapping[str, Any]] = {
        "leaves": [
            {"context": [1], "law": [0.3, 0.7]},
            {"context": [0, 0], "law": [0.9, 0.1]},
            {"context": [1, 0], "law": [0.5, 0.5]},
        ]
    }
    leaves: Annotated[tuple[Leaf, ...], BeforeValidator(as_lists)]

    @field_validator("leaves")
    @classmethod
    def _complete(cls, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        if not leaves:
            raise ValueError("leaves are none, expected one for every past")
        n, order = len(leaves[0].law), max(len(leaf.context) for leaf in leaves)
        if n < 2 or n**order > MAX_HISTORIES:
            raise ValueError(
                f"leaves have {n} states and contexts of {order}, expected at least 2 states and at most "
                f"{MAX_HISTORIES} histories"
            )
        for i, leaf in enumerate(leaves):
            if len(leaf.law) != n:
                raise ValueError(
                    f"leaves[{i}].law has {len(leaf.law)} entries, expected {n} as leaves[0].law"
                )
            check_law(leaf.law, f"leaves[{i}].law")
            if wrong := [state for state in leaf.context if not 0 <= state < n]:
                raise ValueError(f"leaves[{i}].context has state {wrong[0]}, expected 0 to {n - 1}")
        for history in product(range(n), repeat=order):
            fitting = [i for i, leaf in enumerate(leaves) if _ends_with(history, leaf.context)]
            if len(fitting) != 1:
                have = f"{fitting[0]} and {fitting[1]}" if fitting else "none"
                raise ValueError(
                    f"leaves for a past that ends in {list(history)} are {have}, expected exactly one: the "
                    "tree is not " + ("one" if fitting else "complete")
                )
        return leaves

    @model_validator(mode="after")
    def _one_law(self) -> "ContextTree":
        check_one_class("leaves have", self._rows)
        return self

    @cached_property
    def chain(self) -> OrderK:
        """The chain of the longest context's order, 1 at least."""
        order = max(1, *(len(leaf.context) for leaf in self.leaves))
        return OrderK(self._rows.reshape((self.n_states,) * (order + 1)))

    @property
    def _rows(self) -> Float[np.ndarray, "history state"]:
        order = max(1, *(len(leaf.context) for leaf in self.leaves))
        histories = product(range(self.n_states), repeat=order)
        return np.array(
            [next(leaf.law for leaf in self.leaves if _ends_with(past, leaf.context)) for past in histories]
        )

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.leaves[0].law)

    @property
    def order(self) -> int:
        """Returns how many states back the next one depends on at most."""
        return self.chain.order

    def title(self) -> str:
        """`Context tree of 3 leaves on 2 states, depth 2`."""
        depth = max(len(leaf.context) for leaf in self.leaves)
        return f"Context tree of {len(self.leaves)} leaves on {self.n_states} states, depth {depth}"

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The stationary law of one state; read-only."""
        return self.chain.pi

    @property
    def entropy_rate(self) -> float:
        """Entropy of the next state given its context: the lowest possible loss, in nats."""
        return self.chain.entropy_rate

    def step_law(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """Returns the law by the chain; see `Stationary.step_law`."""
        return self.chain.step_law(m)

    def step_laws(self) -> Iterator[Float[np.ndarray, "state_from state_to"]]:
        """Yields the laws by the chain; see `Stationary.step_laws`."""
        return self.chain.step_laws()

    def sample(self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu") -> Sequences:
        """Draw sequences; see `Source.sample`."""
        return self.chain.sample(batch, length, generator=generator, device=device)

    def predictors(self) -> dict[str, Predictor]:
        """Returns those of the chain."""
        return self.chain.predictors()

    def best(self) -> Predictor | str:
        """The law of the order of the longest context."""
        return self.chain.best()


def _ends_with(history: Context, context: Context) -> bool:
    return not context or history[-len(context) :] == context
