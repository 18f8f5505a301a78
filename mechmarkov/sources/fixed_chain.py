"""A source whose every sequence is a path of one and the same chain, started from its stationary law."""

from abc import abstractmethod
from functools import cached_property, partial

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from mechmarkov.sources import automorphisms, law
from mechmarkov.sources.base import Predictor, Source, check_request
from mechmarkov.sources.sampling import sample_paths
from mechmarkov.theory import predictors


class FixedChain(Source):
    """A fixed first-order chain with its exact law; what is derived from `P` is worked out once, on demand.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> source = Binary(p=0.5, q=0.75)
        >>> source.P.tolist(), source.pi.round(3).tolist()
        ([[0.5, 0.5], [0.75, 0.25]], [0.6, 0.4])
    """

    @abstractmethod
    def _transitions(self) -> Float[np.ndarray, "state_from state_to"]:
        """`P`, made from the arguments."""

    @property
    def redraws(self) -> bool:
        """No: one chain for all sequences."""
        return False

    @cached_property
    def P(self) -> Float[np.ndarray, "state_from state_to"]:
        """Transition probabilities, `P[i, j] = Pr(next = j | current = i)`; read-only."""
        return read_only(self._transitions())

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The stationary law, `pi P = pi`, from which sequences start; read-only."""
        return read_only(law.stationary(self.P))

    @cached_property
    def period(self) -> int:
        """The gcd of the lengths of cycles; above 1 the chain is periodic."""
        return law.period(self.P)

    @cached_property
    def reducible(self) -> bool:
        """Whether some states are transient: left for good, and so never sampled."""
        return len(law.classes(self.P)) > 1

    @property
    def entropy_rate(self) -> float:
        """Entropy of the next state given the current one: the lowest possible loss, in nats."""
        return law.entropy_rate(self.P, self.pi)

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the stationary law: the loss of the unigram predictor, in nats."""
        return law.entropy(self.pi)

    def power(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """`P^m`, the transition probabilities over m steps, m at least 0."""
        if m < 0:
            raise ValueError(f"m is {m}, expected at least 0 steps")
        return np.linalg.matrix_power(self.P, m)

    def automorphisms(self, limit: int = 10_000) -> list[tuple[int, ...]]:
        """Every permutation g of the states with `P[g i, g j] = P[i, j]`, the identity first.

        Raises:
            ValueError: There are more than `limit`; the generators are always to be had.

        Example:
            >>> from mechmarkov.sources import Circle
            >>> Circle(n_states=3, p=0.9).automorphisms()
            [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
        """
        return automorphisms.elements(self.P, limit)

    def automorphism_generators(self) -> list[tuple[int, ...]]:
        """Permutations that generate all automorphisms; none if only the identity is one."""
        return automorphisms.generators(self.P)

    def sample(
        self, batch: int, length: int, *, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> Int64[Tensor, "batch position"]:
        """Draw paths from the stationary law; see `Source.sample`.

        Example:
            >>> from mechmarkov.sources import Binary
            >>> tokens = Binary(p=1, q=1).sample(1, 4, generator=torch.Generator().manual_seed(0))
            >>> (tokens[0, 1:] - tokens[0, :-1]).abs().tolist()
            [1, 1, 1]
        """
        check_request(batch, length, generator, device)
        P = torch.tensor(self.P, device=device)
        pi = torch.tensor(self.pi, device=device)
        return sample_paths(P[None], pi[None], batch, length, generator)

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, unigram, bigram, and the predictors that see only the token at lag 2, 3 or 4."""
        rules = [
            Predictor("uniform", "uniform: every state alike", True, self._uniform),
            Predictor("unigram", "unigram: the stationary law, exact", True, self._unigram),
            Predictor("bigram", "bigram: the current token's row of P, exact", True, self._bigram),
        ]
        for k in (2, 3, 4):
            label = f"{k}-step: only the token at lag {k}, by its row of P^{k}, exact"
            rules.append(Predictor(f"step_{k}", label, True, partial(self._k_step, k=k)))
        return {rule.name: rule for rule in rules}

    def best(self) -> Predictor | str:
        """The bigram: the chain is known and first-order, so the current token says all there is to say."""
        return self.predictors()["bigram"]

    def _uniform(
        self, tokens: Int[np.ndarray, "batch position"]
    ) -> Float[np.ndarray, "batch position state"]:
        return predictors.uniform(tokens, self.n_states)

    def _unigram(
        self, tokens: Int[np.ndarray, "batch position"]
    ) -> Float[np.ndarray, "batch position state"]:
        return predictors.unigram(tokens, self.pi)

    def _bigram(self, tokens: Int[np.ndarray, "batch position"]) -> Float[np.ndarray, "batch position state"]:
        return predictors.bigram(tokens, self.P)

    def _k_step(
        self, tokens: Int[np.ndarray, "batch position"], k: int
    ) -> Float[np.ndarray, "batch position state"]:
        return predictors.k_step(tokens, self.P, self.pi, k)


def read_only(array: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The array as float64 that nobody can write to."""
    array = np.ascontiguousarray(array, dtype=np.float64)
    array.setflags(write=False)
    return array
