"""A source whose every sequence is a path of one and the same chain, started from its stationary law."""

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from jaxtyping import Float

from mechmarkov.sources.base.rows import ROW_TOLERANCE, check_law
from mechmarkov.sources.base.source import Predictor, check_request
from mechmarkov.sources.base.stationary import Stationary, check_steps, read_only
from mechmarkov.sources.sampling import law
from mechmarkov.sources.sampling import symmetries as automorphisms
from mechmarkov.sources.sampling.paths import sample_paths
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, table


class FixedChain(Stationary):
    """A fixed first-order chain with its exact law; what is derived from `P` is worked out once, on demand.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> source = Binary(p=0.5, q=0.75)
        >>> source.P.tolist(), source.pi.round(3).tolist()
        ([[0.5, 0.5], [0.75, 0.25]], [0.6, 0.4])
    """

    @abstractmethod
    def transition_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        """`P`, made from the arguments."""

    @property
    def order(self) -> int | None:
        """One: the next state depends only on the current one."""
        return 1

    @cached_property
    def P(self) -> Float[np.ndarray, "state_from state_to"]:
        """Transition probabilities, `P[i, j] = Pr(next = j | current = i)`; read-only.

        Raises:
            ValueError: `transition_matrix` is not a square of laws.
        """
        P, K = np.asarray(self.transition_matrix()), self.n_states
        if P.shape != (K, K):
            raise ValueError(f"transition_matrix has shape {list(P.shape)}, expected {[K, K]}")
        wrong = ~((P >= 0).all(1) & (abs(P.sum(1) - 1) <= ROW_TOLERANCE))
        for i in np.flatnonzero(wrong):  # a loop over entries is slow, so only the wrong rows
            check_law(P[i].tolist(), f"transition_matrix[{i}]", f"row {i} of transition_matrix")
        return read_only(P)

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The stationary law, `pi P = pi`, from which sequences start; read-only."""
        return read_only(law.stationary(self.P))

    def step_law(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """`P^m`, the transition probabilities over m steps, m at least 0; see `Stationary.step_law`."""
        check_steps(m)
        return np.linalg.matrix_power(self.P, m)

    def step_laws(self) -> Iterator[Float[np.ndarray, "state_from state_to"]]:
        """The powers of `P`, each from the last; see `Stationary.step_laws`."""
        power = np.eye(self.n_states)
        while True:
            yield power
            power = power @ self.P

    @cached_property
    def period(self) -> int:
        """The gcd of the lengths of cycles; above 1 the chain is periodic."""
        return law.period(self.P)

    @cached_property
    def reducible(self) -> bool:
        """Returns whether some states are transient: left for good, and so never sampled."""
        return len(law.classes(self.P)) > 1

    @property
    def entropy_rate(self) -> float:
        """Entropy of the next state given the current one: the lowest possible loss, in nats."""
        return law.entropy_rate(self.P, self.pi)

    def automorphisms(self, limit: int = 10_000) -> list[tuple[int, ...]]:
        """Every permutation g of the states with `P[g i, g j] = P[i, j]`, the identity first.

        Raises:
            ValueError: There are more than `limit`; the generators may still be had.
            SymmetriesUnknownError: Too many states, or the search took too long.

        Example:
            >>> from mechmarkov.sources import Circle
            >>> Circle(n_states=3, p=0.9).automorphisms()
            [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
        """
        return automorphisms.elements(self.P, limit)

    def automorphism_generators(self) -> list[tuple[int, ...]]:
        """Permutations that generate all automorphisms; none if only the identity is one.

        Raises:
            SymmetriesUnknownError: Too many states, or the search took too long.
        """
        return automorphisms.generators(self.P)

    def sample(self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu") -> Sequences:
        """Draw paths from the stationary law; see `Source.sample`.

        Example:
            >>> import torch
            >>> from mechmarkov.sources import Binary
            >>> tokens = Binary(p=1, q=1).sample(1, 4, generator=torch.Generator().manual_seed(0))
            >>> (tokens[0, 1:] - tokens[0, :-1]).abs().tolist()
            [1, 1, 1]
        """
        check_request(batch, length, generator, device)
        P, pi = (table(generator, device, array) for array in (self.P, self.pi))
        return sample_paths(P[None], pi[None], batch, length, generator)

    def best(self) -> Predictor | str:
        """The bigram: the chain is known and first-order, so the current token says all there is to say."""
        return self.predictors()["bigram"]
