"""A fresh chain for every sequence in whose stationary law all states are alike."""

from typing import Literal

import torch
from jaxtyping import Float64
from pydantic import Field, model_validator
from torch import Tensor

from mechmarkov.sources.base.fresh_chains import Chains, FreshChains, dirichlet_rows, uniform_starts
from mechmarkov.sources.base.source import Count, Predictor, by_name, counting_rules
from mechmarkov.sources.sampling.streams import Device, Numbers, Streams, uniform
from mechmarkov.theory import predictors

# Of Sinkhorn's scaling. Two in a hundred matrices of three states are then still off by more than 1e-6, of
# larger ones fewer; the rounding sees to the rest.
ROUNDS = 30
# Of K states one proposal in 1, 8, 1031 (K = 2, 3, 4) is accepted; of five states one in four million.
MAX_REJECTION_STATES = 4


class DoublyStochastic(FreshChains):
    """Every sequence has a doubly stochastic chain of its own: unigrams tell nothing (Edelman et al. 2024).

    Rows and columns sum to 1 within 1e-12. Every chain starts in its stationary law, which is uniform. With
    two states the chain switches with a probability drawn uniformly from [0, 1], under either law.

    Args:
        n_states: Number of states.
        law: `"sinkhorn"`: K rows from Dirichlet(1) are made doubly stochastic by 30 rounds of Sinkhorn's
            scaling, columns then rows, and by the rounding of Altschuler, Weed & Rigollet 2017 (algorithm 2).
            That is not the uniform law on these matrices: its entries vary less. `"uniform"`: that law, by
            rejection, for at most 4 states. The paper's public code uses it below six states.

    Raises:
        ValueError: The uniform law for more than 4 states.

    Example:
        >>> P = DoublyStochastic(n_states=3).sample_chains(5, generator=torch.Generator().manual_seed(0))
        >>> bool((P.sum(1) - 1).abs().max() < 1e-12), bool((P.sum(2) - 1).abs().max() < 1e-12)
        (True, True)
        >>> DoublyStochastic(n_states=2).best().name
        'switching'
    """

    kind: Literal["doubly_stochastic"] = "doubly_stochastic"
    n_states: Count = Field(ge=2, le=1 << 10)
    law: Literal["sinkhorn", "uniform"] = "sinkhorn"

    @model_validator(mode="after")
    def _few_states(self) -> "DoublyStochastic":
        if self.law == "uniform" and self.n_states > MAX_REJECTION_STATES:
            raise ValueError(
                f"law is 'uniform' on {self.n_states} states, expected at most {MAX_REJECTION_STATES}"
            )
        return self

    def title(self) -> str:
        """`A fresh doubly stochastic chain on 3 states per sequence`."""
        return f"A fresh doubly stochastic chain on {self.n_states} states per sequence"

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, smoothed counts of tokens and of pairs, and with two states of switches."""
        unigram, bigram = "a strategy, not a posterior", "a strategy that ignores the columns' sums"
        rules = counting_rules(self.n_states, unigram=unigram, bigram=bigram)
        if self.n_states == 2:
            label = "switching: add-1 counts of switches and stays, exact posterior mean"
            rules |= by_name(Predictor("switching", label, True, predictors.switching))
        return rules

    def best(self) -> Predictor | str:
        """Counts of switches and stays with two states; with more there is no closed form."""
        if self.n_states == 2:
            return self.predictors()["switching"]
        return "with more than two states the mean over doubly stochastic matrices has no closed form"

    @property
    def takes_streams(self) -> bool:  # type: ignore[override]  # of the class and its law
        """Not by rejection, where a draw has no fixed length."""
        return self.law == "sinkhorn" or self.n_states == 2

    def _chains(self, batch: int, generator: Numbers, device: Device) -> Chains:
        n = self.n_states
        if n == 2:
            switch = uniform(generator, device, batch)
            return torch.stack([1 - switch, switch, switch, 1 - switch], dim=-1).reshape(batch, 2, 2)
        if self.law == "uniform":
            assert not isinstance(generator, Streams)  # it takes none
            return uniform_doubly_stochastic(batch, n, generator, device)
        return doubly_stochastic(dirichlet_rows((batch, n, n), 1.0, generator, device))

    def _starts(self, P: Chains) -> Float64[Tensor, "batch state"]:
        return uniform_starts(P)


def doubly_stochastic(A: Chains) -> Chains:
    """Positive matrices made doubly stochastic: Sinkhorn's scaling, then rounding."""
    for _ in range(ROUNDS):
        A = A / A.sum(1, keepdim=True)
        A = A / A.sum(2, keepdim=True)
    # Altschuler et al.: no column above 1, then what rows and columns lack is added as their product.
    A = A / A.sum(1, keepdim=True).clamp_min(1)
    row, column = 1 - A.sum(2), (1 - A.sum(1)).clamp_min(0)
    lacking = column.sum(1).clamp_min(torch.finfo(torch.float64).tiny)
    return A + row.clamp_min(0)[:, :, None] * (column / lacking[:, None])[:, None, :]


def uniform_doubly_stochastic(
    batch: int, n_states: int, generator: torch.Generator, device: Device
) -> Chains:
    """Doubly stochastic matrices from the uniform law on their polytope, by rejection.

    All but the last row and column are uniform in [0, 1]; what completes them must not be negative.
    """
    n, found, kept = n_states - 1, [], 0
    while kept < batch:
        inner = torch.rand((4 * batch, n, n), generator=generator, device=device, dtype=torch.float64)
        right, below = 1 - inner.sum(2), 1 - inner.sum(1)
        corner = 1 - right.sum(1)
        allowed = (right >= 0).all(1) & (below >= 0).all(1) & (corner >= 0)
        top = torch.cat([inner, right[..., None]], 2)[allowed]
        bottom = torch.cat([below, corner[:, None]], 1)[allowed]
        found.append(torch.cat([top, bottom[:, None]], 1))
        kept += len(found[-1])
    return torch.cat(found)[:batch]
