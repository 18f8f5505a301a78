"""The parent sits further back, and how far is another matter in every sequence."""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int, Int64
from pydantic import BeforeValidator, field_validator, model_validator

from mechmarkov.sources.base.by_matrix import ByMatrix
from mechmarkov.sources.base.rows import Weights, as_lists, one_for_each, weights_or_uniform
from mechmarkov.sources.base.source import Count, Predictor, WithHidden, by_name, check_request
from mechmarkov.sources.base.stationary import Stationary, one_law, read_only
from mechmarkov.sources.lagged_chain import LaggedChain
from mechmarkov.sources.sampling import law
from mechmarkov.sources.sampling.paths import cumulative, draw, sample_paths
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, table, uniform
from mechmarkov.theory import predictors
from mechmarkov.theory.posterior import posterior
from mechmarkov.theory.predictors import NextLaws, Tokens
from mechmarkov.utils.lazy_torch import Tensor, torch

MAX_LAG = 1 << 12
MAX_LAGS = 1 << 8


class SelectiveLag(ByMatrix, WithHidden, Stationary):
    """`x_t` is drawn from the row of `x_{t - lag}`, the lag once per sequence (D'Angelo et al. 2509.08184).

    Args:
        P: Transition matrix, as in `Chain`. In Python it is `lag_law`; `P` is there the law of neighbours,
            as for every source: the mean over the lags, of which only lag 1 tells neighbours apart.
        lags: At least two different ones.
        weights: How likely each lag is; by default equally.

    A sequence of lag k is k independent stationary chains, taking turns, so every state has the stationary
    law of `P`, whatever the lag. The process is stationary but not ergodic: a sequence keeps its lag.

    Raises:
        ValueError: naming the field and what is wrong with it.

    Example:
        >>> source = SelectiveLag([[0.9, 0.1], [0.1, 0.9]], lags=[1, 2])
        >>> source.P.round(3).tolist(), source.step_law(2).round(3).tolist()
        ([[0.7, 0.3], [0.3, 0.7]], [[0.86, 0.14], [0.14, 0.86]])
        >>> source.posterior(np.array([[0, 1, 0, 1]]))[0].round(3).tolist()
        [[0.5, 0.5], [0.167, 0.833], [0.022, 0.978], [0.002, 0.998]]
    """

    takes_streams: ClassVar[bool] = True
    hidden: ClassVar[str] = "lags"
    kind: Literal["selective_lag"] = "selective_lag"
    example: ClassVar[Mapping[str, Any]] = {"P": [[0.9, 0.1], [0.1, 0.9]], "lags": [1, 2]}
    lags: Annotated[tuple[Count, ...], BeforeValidator(as_lists)]
    weights: Annotated[Weights | None, one_for_each("lag", "lags")] = None

    def __init__(self, P: Any = ..., lags: Any = ..., **data: Any) -> None:
        super().__init__(P, **data if lags is ... else {"lags": lags, **data})

    @field_validator("lags")
    @classmethod
    def _different(cls, lags: tuple[int, ...]) -> tuple[int, ...]:
        if not 2 <= len(lags) <= MAX_LAGS:
            raise ValueError(f"lags has {len(lags)} entries, expected 2 to {MAX_LAGS}")
        for i, lag in enumerate(lags):
            if not 1 <= lag <= MAX_LAG:
                raise ValueError(f"lags[{i}] is {lag}, expected 1 to {MAX_LAG}")
            if lag in lags[:i]:
                raise ValueError(f"lags[{i}] is {lag} again, expected different lags")
        return lags

    _one_law = model_validator(mode="after")(one_law)

    @cached_property
    def lag_law(self) -> Float[np.ndarray, "state_from state_to"]:
        """`Pr(x_t = j | x_{t - lag} = i)`, whatever the lag; read-only."""
        return read_only(self.transition_matrix())

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The stationary law of the chain, and of every token; read-only."""
        return read_only(law.stationary(self.lag_law))

    @cached_property
    def prior(self) -> Float[np.ndarray, " lag"]:
        """Returns how likely each lag is before any token; read-only."""
        return read_only(weights_or_uniform(self.weights, len(self.lags)))

    @cached_property
    def _lags(self) -> Int[np.ndarray, " lag"]:
        return np.array(self.lags)

    @cached_property
    def _each(self) -> tuple[LaggedChain, ...]:
        return tuple(LaggedChain(P=self.rows, lag=lag) for lag in self.lags)

    def title(self) -> str:
        """`Chain on 3 states, the parent at lag 1, 2 or 4 of each sequence`."""
        *most, last = map(str, self.lags)
        return (
            f"Chain on {self.n_states} states, the parent at lag {', '.join(most)} or {last} of each sequence"
        )

    def step_law(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """The mean of the lags' laws, since the state tells nothing of the lag; see `Stationary.step_law`."""
        laws = [chain.step_law(m) for chain in self._each]
        return np.einsum("l,lij->ij", self.prior, np.stack(laws))

    def sample_with_hidden(
        self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu"
    ) -> tuple[Sequences, Int64[Tensor, " batch"]]:
        """Draw sequences and their lags; see `Source.sample`."""
        check_request(batch, length, generator, device)
        u = uniform(generator, device, batch)[None]
        choice = draw(cumulative(table(generator, device, self.prior)[None]), u)[0]
        lags = table(generator, device, self._lags)
        # The chains of a sequence one after the other, each from its first state on: one path that now and
        # then starts anew, whose states are put in their places afterwards.
        position = torch.arange(length, device=device)
        places = (position % lags[:, None] * length + position).argsort()[choice]
        P, pi = (table(generator, device, a)[None] for a in (self.lag_law, self.pi))
        anew = places < lags[choice, None]
        path = sample_paths(P, pi, batch, length, generator, anew=anew)
        return torch.empty_like(path).scatter_(1, places, path), lags[choice]

    def posterior(self, tokens: Tokens) -> Float[np.ndarray, "batch position lag"]:
        """Returns how likely each lag is, given the tokens up to each position; lags as in `lags`.

        Tokens that no lag could have made tell nothing of it: from there on it is the prior.
        """
        predictors.check_tokens(tokens, self.n_states)
        with np.errstate(divide="ignore"):
            first, steps = np.log(self.pi), np.log(self.lag_law)
        evidence = np.broadcast_to(first[tokens], (len(self.lags), *tokens.shape)).copy()
        for i, lag in enumerate(self.lags):
            evidence[i, :, lag:] = steps[tokens[:, :-lag], tokens[:, lag:]]
        return posterior(evidence, self.prior)

    def beliefs(self, tokens: Tokens) -> Float[np.ndarray, "batch position lag"]:
        """Returns the posterior over lags: the lag is what is hidden."""
        return self.posterior(tokens)

    def laws_of_hidden(self, tokens: Tokens) -> Float[np.ndarray, "batch position lag state"]:
        """The law of the next token if each lag were known to be that of the sequence (probability)."""
        each = [predictors.k_step(tokens, self.lag_law, self.pi, lag) for lag in self.lags]
        return np.stack(each, axis=2)

    def predictors(self) -> dict[str, Predictor]:
        """Returns those of every stationary source, `lag_<k>` for every lag, and `posterior_lag`."""
        rules = super().predictors()
        for lag in self.lags:
            label = f"lag {lag}: only the token at lag {lag}, as if that were the lag, a strategy"
            rule = partial(predictors.k_step, step_law=self.lag_law, pi=self.pi, k=lag)
            rules[f"lag_{lag}"] = Predictor(f"lag_{lag}", label, False, rule)
        label = "posterior lag: the rows at all lags, weighed by the posterior over lags, exact"
        return rules | by_name(Predictor("posterior_lag", label, True, self._posterior_lag))

    def best(self) -> Predictor | str:
        """The rows at all lags, weighed by the exact posterior over lags."""
        return self.predictors()["posterior_lag"]

    def _posterior_lag(self, tokens: Tokens) -> NextLaws:
        which = self.posterior(tokens)
        each = (predictors.k_step(tokens, self.lag_law, self.pi, lag) for lag in self.lags)
        return sum(which[..., i, None] * rows for i, rows in enumerate(each))
