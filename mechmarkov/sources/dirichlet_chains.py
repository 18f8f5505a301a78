"""A fresh chain for every sequence."""

from functools import partial
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from pydantic import Field
from torch import Tensor

from mechmarkov.sources import law
from mechmarkov.sources.base import Count, Predictor, Real, Source, check_request
from mechmarkov.sources.sampling import sample_paths
from mechmarkov.theory import predictors


class DirichletChains(Source):
    """Every sequence has a chain of its own, rows from Dirichlet(concentration) (Edelman et al. 2024).

    Args:
        n_states: Number of states.
        concentration: Of every entry of the Dirichlet law; 1 is uniform over laws.
        start: `"stationary"` starts each sequence in its chain's stationary law, as the paper does. The first
            state then says a little about the chain, and smoothed counts are a close approximation of the
            posterior mean. `"uniform"` starts say nothing, and smoothed counts are exact.

    Example:
        >>> source = DirichletChains(n_states=3)
        >>> source.best()
        'the stationary start tells of the chain, so the posterior mean has no closed form'
        >>> DirichletChains(n_states=3, start="uniform").best().name
        'in_context_bigram'
    """

    kind: Literal["dirichlet_chains"] = "dirichlet_chains"
    n_states: Count = Field(ge=2, le=1 << 10)
    concentration: Real = Field(default=1.0, gt=0, le=1e6)
    start: Literal["stationary", "uniform"] = "stationary"

    @property
    def redraws(self) -> bool:
        """Yes: a chain for every sequence."""
        return True

    def title(self) -> str:
        """`A fresh chain on 3 states per sequence, rows from Dirichlet(1)`."""
        start = ", uniform start" if self.start == "uniform" else ""
        rows = f"rows from Dirichlet({self.concentration:g})"
        return f"A fresh chain on {self.n_states} states per sequence, {rows}{start}"

    def sample_chains(
        self, batch: int, *, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> Float64[Tensor, "batch state_from state_to"]:
        """Draw transition matrices alone."""
        check_request(batch, 1, generator, device)
        shape = (batch, self.n_states, self.n_states)
        concentration = torch.full(shape, self.concentration, dtype=torch.float64, device=device)
        # A Gamma(a) variable is a Gamma(a + 1) variable times U^(1/a). Near a = 0 it underflows, so its
        # logarithm is drawn; torch.distributions knows no generators, and this is the sampler behind them.
        log_gamma = torch._standard_gamma(concentration + 1, generator=generator).log()
        minus_log_u = torch.empty_like(log_gamma).exponential_(generator=generator)
        minus_log_u -= minus_log_u.amin(-1, keepdim=True)  # the row's scale cancels; now no row is all 0
        P = (log_gamma - minus_log_u / concentration).softmax(-1)
        # What underflows stays just possible, so that there is one closed class.
        return P.clamp_min(torch.finfo(torch.float64).tiny)

    def sample_with_chains(
        self, batch: int, length: int, *, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> tuple[Int64[Tensor, "batch position"], Float64[Tensor, "batch state_from state_to"]]:
        """Draw sequences and the chains behind them; see `Source.sample`."""
        check_request(batch, length, generator, device)
        P = self.sample_chains(batch, generator=generator, device=device)
        if self.start == "stationary":
            start = law.eliminate(P)
        else:
            start = P.new_full((batch, self.n_states), 1 / self.n_states)
        return sample_paths(P, start, batch, length, generator), P

    def sample(
        self, batch: int, length: int, *, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> Int64[Tensor, "batch position"]:
        """Draw sequences, each from a fresh chain; see `Source.sample`."""
        return self.sample_with_chains(batch, length, generator=generator, device=device)[0]

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, and the two strategies that learn in context: smoothed counts of tokens and of pairs."""
        n, a = self.n_states, self.concentration
        exact = self.start == "uniform"
        quality = "exact posterior mean" if exact else "close to the posterior mean (stationary start)"
        rules = [
            Predictor("uniform", "uniform: every state alike", True, partial(predictors.uniform, n_states=n)),
            Predictor(
                "in_context_unigram",
                f"in-context unigram: add-{a:g} counts of tokens, a strategy and no posterior",
                False,
                partial(predictors.in_context_unigram, n_states=n, concentration=a),
            ),
            Predictor(
                "in_context_bigram",
                f"in-context bigram: add-{a:g} counts of pairs, {quality}",
                exact,
                partial(predictors.in_context_bigram, n_states=n, concentration=a),
            ),
        ]
        return {rule.name: rule for rule in rules}

    def best(self) -> Predictor | str:
        """The in-context bigram, with a uniform start; with a stationary one there is no closed form."""
        if self.start == "uniform":
            return self.predictors()["in_context_bigram"]
        return "the stationary start tells of the chain, so the posterior mean has no closed form"
