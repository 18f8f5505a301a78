"""Some fixed chains, one of them behind every sequence."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int64
from pydantic import BeforeValidator, field_validator, model_validator

from mechmarkov.sources.base.rows import (
    Rows,
    Weights,
    as_lists,
    check_transitions,
    normalised,
    one_for_each,
    weights_or_uniform,
)
from mechmarkov.sources.base.source import Predictor, WithHidden, by_name, check_request, counting_rules
from mechmarkov.sources.base.stationary import read_only
from mechmarkov.sources.sampling import law
from mechmarkov.sources.sampling.paths import cumulative, draw, sample_paths
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, table, uniform
from mechmarkov.theory import predictors
from mechmarkov.theory.posterior import posterior
from mechmarkov.theory.predictors import NextLaws, Tokens
from mechmarkov.utils.lazy_torch import Tensor

MAX_CHAINS = 1 << 12
MAX_ENTRIES = 1 << 24  # of all chains together


class ChainMixture(WithHidden):
    """Every sequence comes from one of N fixed chains, from its stationary law on (Park et al. 2412.01003).

    Args:
        chains: Transition matrices on the same states, as in `Chain`: `[chain, state_from, state_to]`.
        weights: How likely each chain is; by default equally.

    A sequence of its own chain could be predicted by finding out which it is (retrieval) or by counting, as
    if the chain were unheard of (inference), and either from tokens or from pairs of tokens: Park et al.'s
    four algorithms, the four predictors here. Retrieval from pairs, with the first token's law, is Bayes
    optimal.

    Raises:
        ValueError: naming the chain and what is wrong with it.

    Example:
        >>> source = ChainMixture(chains=[[[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]])
        >>> source.posterior(np.array([[0, 0, 0]]))[0].round(3).tolist()
        [[0.5, 0.5], [0.9, 0.1], [0.988, 0.012]]
    """

    takes_streams: ClassVar[bool] = True
    redraws: ClassVar[bool] = True
    hidden: ClassVar[str] = "chains"
    kind: Literal["chain_mixture"] = "chain_mixture"
    example: ClassVar[Mapping[str, Any]] = {"chains": [[[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]]}
    chains: Annotated[tuple[Rows, ...], BeforeValidator(as_lists)]
    weights: Annotated[Weights | None, one_for_each("chain", "chains")] = None

    @field_validator("chains")
    @classmethod
    def _all_chains(cls, chains: tuple[Any, ...]) -> tuple[Any, ...]:
        if not 2 <= len(chains) <= MAX_CHAINS:
            raise ValueError(f"chains has {len(chains)} of them, expected 2 to {MAX_CHAINS}")
        for i, rows in enumerate(chains):
            check_transitions(rows, f"chains[{i}]")
            if len(rows) != len(chains[0]):
                raise ValueError(f"chains[{i}] has {len(rows)} rows, expected {len(chains[0])} as chains[0]")
        entries = len(chains) * len(chains[0]) ** 2
        if entries > MAX_ENTRIES:
            raise ValueError(f"chains has {entries} entries together, expected at most {MAX_ENTRIES}")
        return chains

    @model_validator(mode="after")
    def _one_law_each(self) -> "ChainMixture":
        _ = self.starts  # says which classes are closed, if not one
        return self

    @property
    def n_states(self) -> int:
        """Number of rows of each chain."""
        return len(self.chains[0])

    @cached_property
    def matrices(self) -> Float[np.ndarray, "chain state_from state_to"]:
        """The transition matrices; read-only."""
        return read_only(np.stack([normalised(rows) for rows in self.chains]))

    @cached_property
    def starts(self) -> Float[np.ndarray, "chain state"]:
        """Each chain's stationary law; read-only."""
        return read_only(np.stack([law.stationary(P, f"chains[{i}]") for i, P in enumerate(self.matrices)]))

    @cached_property
    def prior(self) -> Float[np.ndarray, " chain"]:
        """Returns how likely each chain is before any token; read-only."""
        return read_only(weights_or_uniform(self.weights, len(self.chains)))

    def title(self) -> str:
        """`One of 3 fixed chains on 10 states per sequence`."""
        return f"One of {len(self.chains)} fixed chains on {self.n_states} states per sequence"

    def sample_with_hidden(
        self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu"
    ) -> tuple[Sequences, Int64[Tensor, " batch"]]:
        """Draw sequences, and which chain is behind each; see `Source.sample`."""
        check_request(batch, length, generator, device)
        P, pi, prior = (table(generator, device, a) for a in (self.matrices, self.starts, self.prior))
        u = uniform(generator, device, batch)[None]
        choice = draw(cumulative(prior[None]), u)[0]
        return sample_paths(P[choice], pi[choice], batch, length, generator), choice

    def posterior(self, tokens: Tokens) -> Float[np.ndarray, "batch position chain"]:
        """Returns how likely each chain is, given the tokens up to each position.

        Tokens that no chain could have made tell nothing of it: from there on it is the prior.
        """
        predictors.check_tokens(tokens, self.n_states)
        with np.errstate(divide="ignore"):
            first, steps = np.log(self.starts)[:, tokens[:, :1]], np.log(self.matrices)
        later = steps[:, tokens[:, :-1], tokens[:, 1:]]
        return posterior(np.concatenate([first, later], axis=-1), self.prior)

    def beliefs(self, tokens: Tokens) -> Float[np.ndarray, "batch position chain"]:
        """Returns the posterior over chains: the chain is what is hidden."""
        return self.posterior(tokens)

    def laws_of_hidden(self, tokens: Tokens) -> Float[np.ndarray, "batch position chain state"]:
        """The law of the next token if each chain were known to be behind the sequence (probability)."""
        predictors.check_tokens(tokens, self.n_states)
        return np.moveaxis(self.matrices[:, tokens], 0, 2)

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, and Park et al.'s four: unigram and bigram, by inference and by retrieval."""
        inference = "a strategy (inference), not a posterior"
        unigram = "unigram retrieval: stationary laws, weighed as if tokens were independent, a strategy"
        bigram = "bigram retrieval: the current token's rows, weighed by the posterior over chains, exact"
        return counting_rules(self.n_states, unigram=inference, bigram=inference) | by_name(
            Predictor("unigram_retrieval", unigram, False, self._unigram_retrieval),
            Predictor("bigram_retrieval", bigram, True, self._bigram_retrieval),
        )

    def best(self) -> Predictor | str:
        """Bigram retrieval: the chains are known, and which one it is has an exact posterior."""
        return self.predictors()["bigram_retrieval"]

    def _unigram_retrieval(self, tokens: Tokens) -> NextLaws:
        predictors.check_tokens(tokens, self.n_states)
        with np.errstate(divide="ignore"):
            which = posterior(np.log(self.starts)[:, tokens], self.prior)
        return which @ self.starts

    def _bigram_retrieval(self, tokens: Tokens) -> NextLaws:
        which = self.posterior(tokens)
        # One chain after the other: all rows of all chains at once would not fit.
        return sum(which[..., i, None] * P[tokens] for i, P in enumerate(self.matrices))
