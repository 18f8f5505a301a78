"""A fresh chain for every sequence, of first or higher order, or a fresh law of independent tokens."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from jaxtyping import Float64
from pydantic import Field, model_validator

from mechmarkov.sources.base.fresh_chains import Chains, FreshChains, dirichlet_rows, uniform_starts
from mechmarkov.sources.base.source import Count, Predictor, Real, by_name, counting_rules
from mechmarkov.sources.sampling.histories import sample_fresh_histories
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences
from mechmarkov.theory import predictors
from mechmarkov.utils.lazy_torch import Tensor

MAX_HISTORIES = 1 << 10


class DirichletChains(FreshChains):
    """Every sequence has a chain of its own, rows from Dirichlet(concentration) (Edelman et al. 2024).

    Args:
        n_states: Number of states.
        concentration: The concentration of every entry of the Dirichlet law; 1 is uniform over laws.
        start: `"stationary"` starts each sequence in its chain's stationary law, as the paper does. The first
            state then says a little about the chain, and smoothed counts are a close approximation of the
            posterior mean. `"uniform"` starts say nothing, and smoothed counts are exact.
        rows: `"independent"`: each row of a chain is a draw of its own. `"alike"`: they are all the same
            draw, so the tokens of a sequence, the first among them, are independent with that law, and
            smoothed counts of tokens are exact.
        order: How many states back the next one depends on, k: a chain is then a kernel with a row for each
            of the K^k histories, the oldest state first (at most 1024 of them), and the first k states are
            uniform (Rajaraman et al. 2024). Above 1 say `start="uniform"` and leave rows independent.

    Raises:
        ValueError: naming the field and what is wrong with it; with equal rows a uniform start
            would not be a token like the others.

    Example:
        >>> source = DirichletChains(n_states=3)
        >>> source.best()
        'the stationary start tells of the chain, so the posterior mean has no closed form'
        >>> DirichletChains(n_states=3, start="uniform").best().name
        'in_context_bigram'
        >>> DirichletChains(n_states=3, rows="alike").best().name
        'in_context_unigram'
        >>> import torch
        >>> second = DirichletChains(n_states=2, start="uniform", order=2)
        >>> second.sample_chains(5, generator=torch.Generator().manual_seed(0)).shape, second.best().name
        (torch.Size([5, 4, 2]), 'in_context_order_2')
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["dirichlet_chains"] = "dirichlet_chains"
    example: ClassVar[Mapping[str, Any]] = {"n_states": 3}
    n_states: Count = Field(ge=2, le=1 << 10)
    concentration: Real = Field(default=1.0, gt=0, le=1e6)
    start: Literal["stationary", "uniform"] = "stationary"
    rows: Literal["independent", "alike"] = "independent"
    order: Count = Field(default=1, ge=1, le=MAX_HISTORIES.bit_length() - 1)

    @model_validator(mode="after")
    def _one_law(self) -> "DirichletChains":
        if self.rows == "alike" and self.start == "uniform":
            raise ValueError("start is 'uniform', expected 'stationary' where rows are 'alike'")
        if self.order > 1:
            if self.start != "uniform" or self.rows != "independent":
                raise ValueError(
                    f"start is {self.start!r} and rows are {self.rows!r}, expected 'uniform' and "
                    f"'independent' where order is {self.order}"
                )
            if self.n_states**self.order > MAX_HISTORIES:
                raise ValueError(
                    f"order is {self.order} on {self.n_states} states, expected at most {MAX_HISTORIES} "
                    f"histories of {self.order}"
                )
        return self

    def title(self) -> str:
        """`A fresh chain on 3 states per sequence, rows from Dirichlet(1)`."""
        if self.rows == "alike":
            law = f"Dirichlet({self.concentration:g})"
            return f"A fresh law of independent tokens on {self.n_states} states per sequence, from {law}"
        start = ", uniform start" if self.start == "uniform" else ""
        rows = f"rows from Dirichlet({self.concentration:g})"
        chain = "chain" if self.order == 1 else f"order-{self.order} chain"
        return f"A fresh {chain} on {self.n_states} states per sequence, {rows}{start}"

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, and the strategies that learn in context: smoothed counts of tokens, of pairs, and so on.

        `in_context_order_<j>`, j = 2 … order, counts what followed the last j tokens.
        """
        n, a, alike = self.n_states, self.concentration, self.rows == "alike"
        exact = self.start == "uniform" and self.order == 1
        quality = "exact posterior mean" if exact else "close to the posterior mean (stationary start)"
        strategy = "a strategy, not a posterior"
        unigram, bigram = ("exact posterior mean", strategy) if alike else (strategy, quality)
        bigram = bigram if self.order == 1 else strategy
        which = "unigram" if alike else "bigram" if exact else None
        rules = counting_rules(n, unigram=unigram, bigram=bigram, exact=which, concentration=a)
        for j in range(2, self.order + 1):
            quality = "exact posterior mean" if j == self.order else strategy
            rule = partial(predictors.in_context_order, n_states=n, order=j, concentration=a)
            label = f"in-context order {j}: add-{a:g} counts after the last {j} tokens, {quality}"
            rules |= by_name(Predictor(f"in_context_order_{j}", label, j == self.order, rule))
        return rules

    def best(self) -> Predictor | str:
        """Smoothed counts, with a uniform start or equal rows; otherwise it has no closed form."""
        if self.order > 1:
            return self.predictors()[f"in_context_order_{self.order}"]
        if self.rows == "alike":
            return self.predictors()["in_context_unigram"]
        if self.start == "uniform":
            return self.predictors()["in_context_bigram"]
        return "the stationary start tells of the chain, so the posterior mean has no closed form"

    def _chains(self, batch: int, generator: Numbers, device: Device) -> Chains:
        n = self.n_states
        shape = (batch, 1 if self.rows == "alike" else n**self.order, n)
        return dirichlet_rows(shape, self.concentration, generator, device).expand(-1, n**self.order, -1)

    def _starts(self, P: Chains) -> Float64[Tensor, "batch state"]:
        if self.rows == "alike":
            return P[:, 0]
        return uniform_starts(P) if self.start == "uniform" else super()._starts(P)

    def _paths(self, P: Chains, length: int, generator: Numbers) -> Sequences:
        if self.order == 1:
            return super()._paths(P, length, generator)
        return sample_fresh_histories(P, self.order, length, generator)
