"""A fresh chain for every sequence in whose stationary law all states are alike."""

from typing import Literal

import torch
from jaxtyping import Float64
from pydantic import Field
from torch import Tensor

from mechmarkov.sources.base.fresh_chains import FreshChains, dirichlet_rows, uniform_starts
from mechmarkov.sources.base.source import Count, Predictor, counting_rules, uniform_rule
from mechmarkov.theory import predictors

# Of Sinkhorn's scaling. Two in a hundred matrices of three states are then still off by more than 1e-6, of
# larger ones fewer; the rounding sees to the rest.
ROUNDS = 30


class DoublyStochastic(FreshChains):
    """Every sequence has a doubly stochastic chain of its own: unigrams tell nothing (Edelman et al. 2024).

    With two states the chain switches with a probability drawn uniformly from [0, 1]: the uniform law on
    these matrices. With more, K rows from Dirichlet(1) are made doubly stochastic by 30 rounds of Sinkhorn's
    scaling, columns then rows, and by the rounding of Altschuler, Weed & Rigollet 2017 (algorithm 2), which
    spreads what is left over: that law is not the uniform one on the polytope. Rows and columns sum to 1
    within 1e-12. Every chain starts in its stationary law, which is uniform.

    Args:
        n_states: Number of states.

    Example:
        >>> P = DoublyStochastic(n_states=3).sample_chains(5, generator=torch.Generator().manual_seed(0))
        >>> bool((P.sum(1) - 1).abs().max() < 1e-12), bool((P.sum(2) - 1).abs().max() < 1e-12)
        (True, True)
        >>> DoublyStochastic(n_states=2).best().name
        'switching'
    """

    kind: Literal["doubly_stochastic"] = "doubly_stochastic"
    n_states: Count = Field(ge=2, le=1 << 10)

    def title(self) -> str:
        """`A fresh doubly stochastic chain on 3 states per sequence`."""
        return f"A fresh doubly stochastic chain on {self.n_states} states per sequence"

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, smoothed counts of tokens and of pairs, and with two states of switches."""
        n = self.n_states
        bigram = "a strategy that ignores the columns' sums"
        rules = [uniform_rule(n), *counting_rules(n, unigram="a strategy, not a posterior", bigram=bigram)]
        if n == 2:
            label = "switching: add-1 counts of switches and stays, exact posterior mean"
            rules.append(Predictor("switching", label, True, predictors.switching))
        return {rule.name: rule for rule in rules}

    def best(self) -> Predictor | str:
        """Counts of switches and stays with two states; with more there is no closed form."""
        if self.n_states == 2:
            return self.predictors()["switching"]
        return "with more than two states the mean over doubly stochastic matrices has no closed form"

    def _chains(
        self, batch: int, generator: torch.Generator, device: torch.device | str
    ) -> Float64[Tensor, "batch state_from state_to"]:
        n = self.n_states
        if n == 2:
            switch = torch.rand(batch, generator=generator, device=device, dtype=torch.float64)
            return torch.stack([1 - switch, switch, switch, 1 - switch], dim=-1).reshape(batch, 2, 2)
        return doubly_stochastic(dirichlet_rows((batch, n, n), 1.0, generator, device))

    def _starts(self, P: Float64[Tensor, "batch state_from state_to"]) -> Float64[Tensor, "batch state"]:
        return uniform_starts(P)


def doubly_stochastic(
    A: Float64[Tensor, "batch state_from state_to"],
) -> Float64[Tensor, "batch state_from state_to"]:
    """Positive matrices made doubly stochastic: Sinkhorn's scaling, then rounding."""
    for _ in range(ROUNDS):
        A = A / A.sum(1, keepdim=True)
        A = A / A.sum(2, keepdim=True)
    # Altschuler et al.: no column above 1, then what rows and columns lack is added as their product.
    A = A / A.sum(1, keepdim=True).clamp_min(1)
    row, column = 1 - A.sum(2), (1 - A.sum(1)).clamp_min(0)
    lacking = column.sum(1).clamp_min(torch.finfo(torch.float64).tiny)
    return A + row.clamp_min(0)[:, :, None] * (column / lacking[:, None])[:, None, :]
