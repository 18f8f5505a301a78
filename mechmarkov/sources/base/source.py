"""What every source of Markov data is and knows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Shaped
from pydantic import AfterValidator, BeforeValidator, Strict

from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences
from mechmarkov.theory import predictors
from mechmarkov.theory.predictors import NextLaws, Tokens
from mechmarkov.utils.config import Fields
from mechmarkov.utils.errors import integer_of
from mechmarkov.utils.lazy_torch import Generator, Tensor, is_tensor, torch
from mechmarkov.utils.text import fact_table, shown

MAX_LABELS_SHOWN = 12  # of the states, in a notebook


def _probability(value: float, info: Any) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{info.field_name} is {value}, expected a probability in [0, 1]")
    return float(value)  # numpy's floats are floats, but not plain data


def _plain_integer(value: Any) -> Any:
    return int(value) if isinstance(value, np.integer) else value


# Strict: "0.5" and True are not numbers.
Probability = Annotated[float, Strict(), AfterValidator(_probability)]
Real = Annotated[float, Strict()]
Count = Annotated[int, Strict(), BeforeValidator(_plain_integer)]


@dataclass(frozen=True)
class Predictor:
    """A rule that turns the tokens so far into a law of the next one.

    Attributes:
        name: The rule's key: `uniform`, `unigram`, `bigram`, `step_2`, `in_context_bigram`, ...
        label: What it is, for people; says whether it is exact.
        exact: Whether it gives the true probabilities of what its label names, or an approximation.
        probabilities: From tokens `[batch, position]`, a numpy array, to the law of the token after each
            position, `[batch, position, state]`.

    Example:
        >>> import torch
        >>> from mechmarkov.sources import Binary
        >>> source, generator = Binary(p=0.5, q=0.75), torch.Generator().manual_seed(0)
        >>> tokens = source.sample(2, 5, generator=generator)
        >>> source.predictors()["bigram"].probabilities(tokens.numpy()).shape
        (2, 5, 2)
    """

    name: str
    label: str
    exact: bool
    probabilities: Callable[[Tokens], NextLaws]


def by_name(*rules: Predictor) -> dict[str, Predictor]:
    """Predictors in a dict by their names, in the order given."""
    return {rule.name: rule for rule in rules}


def uniform_rule(n_states: int, state: str = "state") -> Predictor:
    """A predictor that gives every state equal probability.

    Example:
        >>> uniform_rule(2).probabilities(np.array([[0, 1]])).tolist()
        [[[0.5, 0.5], [0.5, 0.5]]]
    """
    rule = partial(predictors.uniform, n_states=n_states)
    return Predictor("uniform", f"uniform: every {state} equally likely", True, rule)


def counting_rules(
    n_states: int, *, unigram: str, bigram: str, exact: str | None = None, concentration: float = 1.0
) -> dict[str, Predictor]:
    """The predictors `uniform`, `in_context_unigram` and `in_context_bigram`: smoothed counts in a sequence.

    Args:
        n_states: The number of states.
        unigram: The end of the label of counts of tokens.
        bigram: The end of the label of counts of pairs.
        exact: Which of the names is exact, if one is.
        concentration: Added to every count: the Dirichlet prior's.

    Example:
        >>> rules = counting_rules(2, unigram="tokens", bigram="pairs")
        >>> rules["in_context_bigram"].probabilities(np.array([[0, 1, 0]]))[0, -1].round(2).tolist()
        [0.33, 0.67]
    """
    options: dict[str, Any] = {"n_states": n_states, "concentration": concentration}
    add = f"add-{concentration:g} counts of"
    tokens = f"in-context unigram: {add} tokens, {unigram}"
    pairs = f"in-context bigram: {add} pairs, {bigram}"
    of_tokens = partial(predictors.in_context_unigram, **options)
    of_pairs = partial(predictors.in_context_bigram, **options)
    return by_name(
        uniform_rule(n_states),
        Predictor("in_context_unigram", tokens, exact == "unigram", of_tokens),
        Predictor("in_context_bigram", pairs, exact == "bigram", of_pairs),
    )


@runtime_checkable
class Hidden(Protocol):
    """A source with something hidden behind its tokens: states, or what its attribute `hidden` says."""

    def beliefs(self, tokens: predictors.Tokens) -> Float[np.ndarray, "batch position hidden"]:
        """The law of what is hidden, given the tokens up to each position (probability)."""

    def laws_of_hidden(self, tokens: predictors.Tokens) -> Float[np.ndarray, "batch position hidden state"]:
        """The law of the next token if what is hidden were known (probability)."""


class Source(Fields, ABC):
    """A source of Markov data: frozen, comparable, and as data `{"kind": ...}` plus constructor arguments.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> Circle(n_states=6, p=0.5).model_dump(mode="json")
        {'kind': 'circle', 'n_states': 6, 'p': 0.5}
    """

    def __str__(self) -> str:
        """The title; `repr` has the fields."""
        return self.title()

    kind: str
    example: ClassVar[Mapping[str, Any]] = {}
    """Fields of a small one, which a new recipe is written with; none for what is not made without data."""
    takes_streams: ClassVar[bool] = False
    """True where `sample` draws only through `sampling.streams`, so that a GPU draws for a stack.

    It is not inherited: each class says it itself.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """A class that derives from another may draw in its own way."""
        super().__pydantic_init_subclass__(**options)
        cls.takes_streams = vars(cls).get("takes_streams", False)

    if TYPE_CHECKING:  # an argument of some sources, a property of others: pydantic takes no such override

        @property
        def n_states(self) -> int:
            """Number of states, K."""

    @property
    @abstractmethod
    def redraws(self) -> bool:
        """Returns whether every sequence has a fresh chain of its own."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The states' names, for people."""
        return tuple(str(state) for state in range(self.n_states))

    @property
    def length(self) -> int | None:
        """Returns how many states every sequence has, or None where they may be of any length."""
        return None

    @abstractmethod
    def title(self) -> str:
        """The source in one line, for people."""

    @abstractmethod
    def predictors(self) -> dict[str, Predictor]:
        """The predictors to compare a model with, by name, simplest first."""

    @abstractmethod
    def best(self) -> Predictor | str:
        """The Bayes-optimal predictor, or one line that says why it has no closed form."""

    @abstractmethod
    def sample(self, batch: int, length: int, *, generator: Generator, device: Device = "cpu") -> Sequences:
        """Draw sequences of states, `[batch, position]`.

        Args:
            batch: Number of sequences.
            length: Number of states in each.
            generator: The only source of randomness, on `device`; `Streams` where `takes_streams`.
            device: Where the sequences are made and stay.

        Raises:
            ValueError: `batch` or `length` is below 1, or the generator lives on another device.

        Example:
            >>> from mechmarkov.sources import Circle
            >>> generator = torch.Generator().manual_seed(0)
            >>> Circle(n_states=6, p=1.0).sample(1, 8, generator=generator).diff().remainder(6).tolist()
            [[1, 1, 1, 1, 1, 1, 1]]
        """

    def held_out_length(self, length: int) -> int:
        """States in a sequence to evaluate on, where that many are wanted: as many, or what there is."""
        return length

    def named_only(self, names: Collection[str]) -> "Source":
        """The source without states that never occur and are not among these labels."""
        del names
        return self

    def advice(self, n_states: int) -> str:
        """Returns how the source gets `n_states` states, as the end of a message; "" where it may not."""
        del n_states
        return ""

    def sample_held_out(
        self, batch: int, length: int, *, generator: Generator, device: Device = "cpu"
    ) -> Sequences:
        """Draw sequences to evaluate on: fresh ones or, of observed data, at most `batch` held out."""
        return self.sample(batch, length, generator=generator, device=device)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: the source, its entropies (nats) and its exact predictors."""
        entropies = {
            name.replace("_", " "): f"{getattr(self, name):.4f} nats"
            for name in ("entropy_rate", "unigram_entropy")
            if hasattr(self, name)
        }
        best = self.best()
        known = {
            "states": ", ".join(self.labels[:MAX_LABELS_SHOWN]) + ", …" * (self.n_states > MAX_LABELS_SHOWN),
            **entropies,
            "exact predictors": ", ".join(self.predictors()),
            "best possible": best if isinstance(best, str) else best.label,
        }
        return fact_table(self.title(), known)

    def __eq__(self, other: object) -> bool:
        """Returns whether both have one kind and equal arguments; pydantic's own compares derived arrays."""
        return type(self) is type(other) and self._arguments() == other._arguments()

    def __hash__(self) -> int:
        """Equal sources have equal hashes."""
        return hash((type(self), self._arguments()))

    def _arguments(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in type(self).model_fields)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Any:
        """A validated copy with some arguments changed; pydantic's own would keep the old chain's law."""
        del deep  # nothing in a frozen source can be shared by mistake
        return type(self).model_validate(self.model_dump() | dict(update or {}))


class WithHidden(Source):
    """A source that draws something for every sequence, next to its tokens: states, a chain, a lag."""

    @abstractmethod
    def sample_with_hidden(
        self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu"
    ) -> tuple[Sequences, Tensor]:
        """Draw sequences and what is hidden behind each; the arguments are those of `Source.sample`.

        Returns:
            States `[batch, position]`, and what is hidden, by number: a state at each position, or one for
            each sequence `[batch]`, such as its chain or its lag.
        """

    def sample(self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu") -> Sequences:
        """Draw sequences; see `Source.sample`."""
        return self.sample_with_hidden(batch, length, generator=generator, device=device)[0]


def check_question(tokens: Tokens, n_states: int, length: int) -> None:
    """Refuse tokens that are not states, or go beyond the place before the answer, which is the last one.

    Args:
        tokens: Sequences, or their beginnings.
        n_states: The number of states.
        length: The number of states of a whole sequence.

    Raises:
        ValueError: One line that names what was found.
    """
    predictors.check_tokens(tokens, n_states)
    if tokens.shape[1] >= length:
        raise ValueError(
            f"tokens have {tokens.shape[1]} positions, expected at most {length - 1}: "
            "nothing follows the answer"
        )


def check_drawn(states: Shaped[Tensor, "..."], source: Source) -> Shaped[Tensor, "..."]:
    """Returns the sequences that a source drew, once they are seen to hold states: a plugin may draw others.

    Raises:
        ValueError: One line that names the source and the range of what it drew.
    """
    low, high = map(int, states.aminmax()) if states.numel() else (0, 0)
    if not 0 <= low <= high < source.n_states:
        raise ValueError(
            f"source {source.kind!r} draws states from {low} to {high}, expected 0 to {source.n_states - 1}"
        )
    return states


def check_request(batch: int, length: int, generator: Numbers, device: Device) -> None:
    """Refuse what `Source.sample` cannot draw: too few sequences or states, a generator elsewhere.

    Raises:
        TypeError: `generator` is not a generator.
        ValueError: One line that names the argument and its value.
    """
    for name, value in (("batch", batch), ("length", length)):
        integer_of(name, value, least=1)
    if is_tensor(generator) or not isinstance(getattr(generator, "device", None), torch.device):
        raise TypeError(f"generator is {shown(generator)}, expected torch.Generator().manual_seed(0)")
    if generator.device.type != torch.device(device).type:
        raise ValueError(
            f"generator is on {generator.device}, expected on {device}, where sequences are made"
        )
