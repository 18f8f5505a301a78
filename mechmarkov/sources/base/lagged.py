"""The parent sits further back: as many independent chains as the lag, taking turns."""

from abc import abstractmethod
from functools import cached_property, partial

import numpy as np
from einops import rearrange
from jaxtyping import Float
from pydantic import Field

from mechmarkov.sources.base.source import Count, Predictor, by_name, check_request
from mechmarkov.sources.base.stationary import Stationary, check_steps, read_only
from mechmarkov.sources.sampling import law
from mechmarkov.sources.sampling.paths import sample_paths
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, table
from mechmarkov.theory import predictors


class Lagged(Stationary):
    """`x_t` is drawn from the row of `x_{t - lag}`: that many independent stationary chains, interleaved.

    Tokens whose distance is not a multiple of the lag are independent. So every row of `P`, the law of
    neighbours, is `pi` unless the lag is 1; the chain's own table is `lag_law`.

    Args:
        lag: How many tokens back the parent is.
    """

    lag: Count = Field(ge=1, le=1 << 12)

    @abstractmethod
    def transition_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        """`lag_law`, made from the arguments."""

    @property
    def order(self) -> int | None:
        """The lag."""
        return self.lag

    @cached_property
    def lag_law(self) -> Float[np.ndarray, "state_from state_to"]:
        """`Pr(x_t = j | x_{t - lag} = i)`; read-only."""
        return read_only(self.transition_matrix())

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The stationary law of each of the chains; read-only."""
        return read_only(law.stationary(self.lag_law))

    def step_law(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """A power of `lag_law` where m is a multiple of the lag, else `pi`; see `Stationary.step_law`."""
        check_steps(m)
        if m % self.lag:
            return np.tile(self.pi, (self.n_states, 1))
        return np.linalg.matrix_power(self.lag_law, m // self.lag)

    @property
    def entropy_rate(self) -> float:
        """Entropy of the next token given all before: the lowest possible loss, in nats."""
        return law.entropy_rate(self.lag_law, self.pi)

    def sample(self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu") -> Sequences:
        """Draw sequences; see `Source.sample`."""
        check_request(batch, length, generator, device)
        n_chains = min(self.lag, length)
        P, pi = (table(generator, device, array)[None] for array in (self.lag_law, self.pi))
        paths = sample_paths(P, pi, batch * n_chains, -(-length // n_chains), generator)
        return rearrange(paths, "(batch chain) step -> batch (step chain)", chain=n_chains)[:, :length]

    def predictors(self) -> dict[str, Predictor]:
        """Returns those of every stationary source, and `lag_<k>`: only the parent, k tokens back."""
        rules = super().predictors()
        if self.lag == 1:
            return rules
        label = f"parent: only the token at lag {self.lag}, by its row of the chain, exact"
        rule = partial(predictors.k_step, step_law=self.lag_law, pi=self.pi, k=self.lag)
        return rules | by_name(Predictor(f"lag_{self.lag}", label, True, rule))

    def best(self) -> Predictor | str:
        """The parent's row: the bigram at lag 1, else `lag_<k>`."""
        return self.predictors()["bigram" if self.lag == 1 else f"lag_{self.lag}"]
