"""A source whose sequences are stretches of one stationary process, the same for every sequence."""

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import count
from typing import ClassVar, TypeVar

import numpy as np
from jaxtyping import Float

from mechmarkov.sources.base.source import Predictor, Source, by_name, uniform_rule
from mechmarkov.sources.sampling import law
from mechmarkov.theory import predictors
from mechmarkov.theory.predictors import NextLaws, Tokens

S = TypeVar("S", bound="Stationary")
STEPS = (2, 3, 4)  # lags of the `step_k` predictors; lag 1 is the bigram


class Stationary(Source):
    """One stationary process behind all sequences, with the exact laws of a state and of any two of them.

    A subclass defines `pi`, `step_law`, `best` and `sample`. The predictors of this class see one token at
    most, and are exact at every position.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> source = Binary(p=0.5, q=0.75)
        >>> source.pi.round(3).tolist(), source.step_law(2).tolist()
        ([0.6, 0.4], [[0.625, 0.375], [0.5625, 0.4375]])
        >>> list(source.predictors())
        ['uniform', 'unigram', 'bigram', 'step_2', 'step_3', 'step_4']
    """

    redraws: ClassVar[bool] = False

    @property
    def order(self) -> int | None:
        """Returns how many tokens back the next one depends on, or None where there is no such bound."""
        return None

    @cached_property
    @abstractmethod
    def pi(self) -> Float[np.ndarray, " state"]:
        """The law of one state, at every position; float64, read-only."""

    @abstractmethod
    def step_law(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """`Pr(x_{t+m} = j | x_t = i)` under stationarity, m at least 0.

        The row of a state of probability zero, which nothing defines, is some law: what the arguments say
        of it where they do, else `pi`; at m = 0 it is the state itself.

        Raises:
            ValueError: m is below 0.
        """

    def step_laws(self) -> Iterator[Float[np.ndarray, "state_from state_to"]]:
        """`step_law(m)` for m = 0, 1, 2, … without end; cheaper, where one follows from the last."""
        return map(self.step_law, count())

    @cached_property
    def P(self) -> Float[np.ndarray, "state_from state_to"]:
        """The pair law, `P[i, j] = Pr(next = j | current = i)`: what the bigram predicts; read-only."""
        return read_only(self.step_law(1))

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the law of one state: the loss of the unigram predictor, in nats."""
        return law.entropy(self.pi)

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, unigram, bigram, and the predictors that see only the token at lag 2, 3 or 4."""
        label = "{k}-step: only the token at lag {k}, by its row of the {k}-step law, exact"
        return by_name(
            uniform_rule(self.n_states),
            Predictor("unigram", "unigram: the stationary law, exact", True, self._unigram),
            Predictor("bigram", "bigram: the current token's row of P, exact", True, self._bigram),
            *(Predictor(f"step_{k}", label.format(k=k), True, partial(self._k_step, k=k)) for k in STEPS),
        )

    def _unigram(self, tokens: Tokens) -> NextLaws:
        return predictors.unigram(tokens, self.pi)

    def _bigram(self, tokens: Tokens) -> NextLaws:
        return predictors.bigram(tokens, self.P)

    def _k_step(self, tokens: Tokens, k: int) -> NextLaws:
        return predictors.k_step(tokens, self.step_law(k), self.pi, k)


def one_law(source: S) -> S:
    """Returns the source, once its `pi` is seen to exist: a `model_validator` of chains given by matrices.

    Raises:
        ValueError: More than one closed class leaves the stationary law open.
    """
    _ = source.pi  # says which classes are closed, if not one
    return source


def check_steps(m: int) -> None:
    """Refuse a negative number of steps.

    Raises:
        ValueError: One line that names it.
    """
    if m < 0:
        raise ValueError(f"m is {m}, expected at least 0 steps")


def read_only(array: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The array as float64 that nobody can write to.

    Example:
        >>> read_only(np.array([1, 2])).flags.writeable
        False
    """
    array = np.ascontiguousarray(array, dtype=np.float64)
    array.setflags(write=False)
    return array
