"""A chain of higher order, by its full kernel."""

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator, model_validator

from mechmarkov.sources.base.rows import as_law, as_lists, laws_of, normalised
from mechmarkov.sources.base.source import Predictor, check_request
from mechmarkov.sources.base.stationary import Stationary, check_steps, read_only
from mechmarkov.sources.sampling import law
from mechmarkov.sources.sampling.histories import sample_histories
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, table
from mechmarkov.theory import predictors
from mechmarkov.utils.text import first_of, shown

# The chain of histories is a matrix of this many rows, whose stationary law takes a second.
MAX_HISTORIES = 1 << 10
SHOWN = 4  # histories of a class, and classes, that an error names


def _nested(value: Any) -> Any:
    """Nested tuples of floats: the same number K of entries at every depth, and laws at the innermost."""
    value = as_lists(value)
    depth, inner = 0, value
    while isinstance(inner, list | tuple) and len(inner) and depth <= MAX_HISTORIES.bit_length():
        depth, inner = depth + 1, as_lists(inner[0])
    if depth < 2:
        raise ValueError(f"kernel is nested {depth} deep, expected at least 2: a law for every state")
    n_states, order = len(value), depth - 1
    if n_states < 2 or n_states**order > MAX_HISTORIES:
        raise ValueError(
            f"kernel is of order {order} on {n_states} states, expected at least 2 states and at most "
            f"{MAX_HISTORIES} histories of {order}"
        )
    return _entry(value, "kernel", n_states, depth)


def _entry(value: Any, name: str, n_states: int, depth: int) -> Any:
    value = as_lists(value)
    if not isinstance(value, list | tuple) or len(value) != n_states:
        has = f"has {len(value)} entries" if isinstance(value, list | tuple) else f"is {shown(value)}"
        raise ValueError(f"{name} {has}, expected a list of {n_states}")
    if depth == 1:
        return as_law(value, name)
    return tuple(_entry(inner, f"{name}[{i}]", n_states, depth - 1) for i, inner in enumerate(value))


def check_one_class(field_has: str, rows: Float[np.ndarray, "history state"]) -> None:
    """Refuse laws after histories that more than one stationary law fits.

    Args:
        field_has: The field that gave them and its verb, `kernel has`.
        rows: The law of the next state after each history, the oldest state the slowest.

    Raises:
        ValueError: One line that names the closed classes.
    """
    closed, n_states = law.closed_classes(_chain_of_histories(rows)), rows.shape[1]
    if len(closed) < 2:
        return
    order = round(np.log(len(rows)) / np.log(n_states))
    digits = n_states ** np.arange(order)[::-1]

    def named(members: tuple[int, ...]) -> str:
        names = [", ".join(str(member // place % n_states) for place in digits) for member in members]
        return "{" + first_of([f"({name})" for name in names], SHOWN) + "}"

    raise ValueError(
        f"{field_has} {len(closed)} closed classes of histories, {first_of([*map(named, closed)], SHOWN)}, "
        "expected one: the stationary law is not unique"
    )


def _chain_of_histories(
    rows: Float[np.ndarray, "history state"],
) -> Float[np.ndarray, "history_from history_to"]:
    S, K = rows.shape
    P = np.zeros((S, S))
    np.put_along_axis(P, np.arange(S)[:, None] * K % S + np.arange(K), rows, axis=1)
    return P


class OrderK(Stationary):
    """The next state depends on the last k: `kernel[x_{t-k}]…[x_{t-1}][j] = Pr(x_t = j | those)`.

    Args:
        kernel: k nested lists of K entries and the law of the next state in each, an array or a tensor with
            k + 1 axes of length K; the oldest state comes first. At most 1024 histories (K^k).

    Sequences start in the stationary law of the chain of histories, so that every window of them has the
    same law. Histories may be left for good; they are never sampled. More than one closed class of them is
    refused, since the stationary law would not be unique.

    Raises:
        ValueError: naming the entry and what is wrong with it, or the closed classes.

    Example:
        >>> copies_two_back = OrderK([[[0.9, 0.1], [0.9, 0.1]], [[0.1, 0.9], [0.1, 0.9]]])
        >>> copies_two_back.order, copies_two_back.P.tolist(), copies_two_back.best().name
        (2, [[0.5, 0.5], [0.5, 0.5]], 'order_2')
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["order_k"] = "order_k"
    example: ClassVar[Mapping[str, Any]] = {"kernel": [[[0.9, 0.1], [0.6, 0.4]], [[0.3, 0.7], [0.1, 0.9]]]}
    kernel: Annotated[tuple[Any, ...], BeforeValidator(_nested)]

    def __init__(self, kernel: Any = ..., **data: Any) -> None:
        super().__init__(**data if kernel is ... else {"kernel": kernel, **data})

    @model_validator(mode="after")
    def _one_law(self) -> "OrderK":
        check_one_class("kernel has", self.rows)
        return self

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.kernel)

    @property
    def order(self) -> int:
        """Returns how many states back the next one depends on, k."""
        return np.ndim(self.kernel) - 1

    def title(self) -> str:
        """`Order-2 chain on 3 states`."""
        return f"Order-{self.order} chain on {self.n_states} states"

    @cached_property
    def rows(self) -> Float[np.ndarray, "history state_to"]:
        """The kernel, a history a row, the oldest state as its most significant digit; read-only."""
        return read_only(normalised(np.reshape(self.kernel, (-1, self.n_states)).tolist()))

    @cached_property
    def history_law(self) -> Float[np.ndarray, " history"]:
        """The stationary law of k states in a row; read-only."""
        return read_only(law.stationary(_chain_of_histories(self.rows)))

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The stationary law of one state; read-only."""
        return read_only(self.history_law.reshape(-1, self.n_states).sum(0))

    def step_law(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """Returns the law by the chain of histories; see `Stationary.step_law`."""
        check_steps(m)
        return next(islice(self.step_laws(), m, None))

    def step_laws(self) -> Iterator[Float[np.ndarray, "state_from state_to"]]:
        """Yields each law from the last, a step of the chain of histories on; see `Stationary.step_laws`."""
        K, S = self.n_states, len(self.history_law)
        joint = np.zeros((K, S))  # of the state that is m steps back, and the history now
        joint[np.arange(S) % K, np.arange(S)] = self.history_law
        yield np.eye(K)
        kernel = self.rows.reshape(K, S // K, K)
        while True:
            joint = np.einsum("iar,arj->irj", joint.reshape(K, K, S // K), kernel).reshape(K, S)
            yield laws_of(joint.reshape(K, S // K, K).sum(1), self.pi)

    @cached_property
    def history_laws(self) -> tuple[Float[np.ndarray, "_ state_to"], ...]:
        """The law of the next state given the last 1, 2, …, k, exact; read-only.

        A history of probability zero has the row that the kernel gives it, if it is k long, else `pi`.
        """
        K, k = self.n_states, self.order
        joint = self.history_law[:, None] * self.rows
        shorter = (joint.reshape(-1, K**j, K).sum(0) for j in range(1, k))
        return (*(read_only(laws_of(table, self.pi)) for table in shorter), self.rows)

    @property
    def entropy_rate(self) -> float:
        """Entropy of the next state given the last k: the lowest possible loss, in nats."""
        return law.entropy_rate(self.rows, self.history_law)

    def sample(self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu") -> Sequences:
        """Draw sequences; see `Source.sample`."""
        check_request(batch, length, generator, device)
        rows, start = (table(generator, device, a) for a in (self.rows, self.history_law))
        return sample_histories(rows, start, self.order, batch, length, generator)

    def predictors(self) -> dict[str, Predictor]:
        """Returns those of every stationary source, and `order_<j>` for j = 2 … k: the last j tokens."""
        rules = super().predictors()
        for j in range(2, self.order + 1):
            label = f"order {j}: the last {j} tokens, near the start all there are, exact"
            rule = partial(predictors.histories, laws=self.history_laws[:j])
            rules[f"order_{j}"] = Predictor(f"order_{j}", label, True, rule)
        return rules

    def best(self) -> Predictor | str:
        """The order-k law; the bigram where k is 1."""
        return self.predictors()["bigram" if self.order == 1 else f"order_{self.order}"]
