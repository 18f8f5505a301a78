"""A fresh chain for every sequence in whose stationary law all states are equal."""

from collections.abc import Mapping
from functools import cache
from itertools import permutations
from typing import Any, ClassVar, Literal

import numpy as np
from einops import einsum
from jaxtyping import Float64
from pydantic import Field, model_validator

from mechmarkov.sources.base.fresh_chains import Chains, FreshChains, dirichlet_rows, uniform_starts
from mechmarkov.sources.base.source import Count, Predictor, by_name, counting_rules
from mechmarkov.sources.sampling.streams import Device, Numbers, integers, table, uniform
from mechmarkov.theory import predictors
from mechmarkov.utils.lazy_torch import Tensor, torch

# Of Sinkhorn's scaling. Two in a hundred matrices of three states are then still off by more than 1e-6, of
# larger ones fewer; the rounding sees to the rest.
ROUNDS = 30
MAX_UNIFORM_STATES = 4  # of five states there are 4 718 075 simplices
Face = tuple[tuple[int, ...], ...]  # its vertices, permutations


class DoublyStochastic(FreshChains):
    """Every sequence has a doubly stochastic chain of its own: unigrams tell nothing (Edelman et al. 2024).

    Rows and columns sum to 1 within 1e-12. Every chain starts in its stationary law, which is uniform. With
    two states the chain switches with a probability drawn uniformly from [0, 1], under either law.

    Args:
        n_states: Number of states.
        law: `"sinkhorn"`: K rows from Dirichlet(1) are made doubly stochastic by 30 rounds of Sinkhorn's
            scaling, columns then rows, and by the rounding of Altschuler, Weed & Rigollet 2017 (algorithm 2).
            That is not the uniform law on these matrices: its entries vary less. `"uniform"`: that law, for
            at most 4 states. The paper's public code draws from it, by rejection, below six states.

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
    example: ClassVar[Mapping[str, Any]] = {"n_states": 3}
    takes_streams: ClassVar[bool] = True
    n_states: Count = Field(ge=2, le=1 << 10)
    law: Literal["sinkhorn", "uniform"] = "sinkhorn"

    @model_validator(mode="after")
    def _few_states(self) -> "DoublyStochastic":
        if self.law == "uniform" and self.n_states > MAX_UNIFORM_STATES:
            raise ValueError(
                f"law is 'uniform' on {self.n_states} states, expected at most {MAX_UNIFORM_STATES}"
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

    def _chains(self, batch: int, generator: Numbers, device: Device) -> Chains:
        n = self.n_states
        if n == 2:
            switch = uniform(generator, device, batch)
            return torch.stack([1 - switch, switch, switch, 1 - switch], dim=-1).reshape(batch, 2, 2)
        if self.law == "uniform":
            vertices = table(generator, device, simplices(n))  # a simplex of the polytope, a point in it
            own = vertices[integers(generator, device, len(vertices), batch)]
            weights = dirichlet_rows((batch, own.shape[1]), 1.0, generator, device)
            return einsum(weights, own, "b vertex, b vertex state_from state_to -> b state_from state_to")
        return doubly_stochastic(dirichlet_rows((batch, n, n), 1.0, generator, device))

    def _starts(self, P: Chains) -> Float64[Tensor, "batch state"]:
        return uniform_starts(P)


def doubly_stochastic(A: Chains) -> Chains:
    """Positive matrices made doubly stochastic: Sinkhorn's scaling, then rounding.

    Example:
        >>> P = doubly_stochastic(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]], dtype=torch.float64))
        >>> P.sum(1).tolist(), P.sum(2).tolist()
        ([[1.0, 1.0]], [[1.0, 1.0]])
    """
    for _ in range(ROUNDS):
        A = A / A.sum(1, keepdim=True)
        A = A / A.sum(2, keepdim=True)
    # Altschuler et al.: no column above 1, then what rows and columns lack is added as their product.
    A = A / A.sum(1, keepdim=True).clamp_min(1)
    row, column = 1 - A.sum(2), (1 - A.sum(1)).clamp_min(0)
    lacking = column.sum(1).clamp_min(torch.finfo(torch.float64).tiny)
    return A + row.clamp_min(0)[:, :, None] * (column / lacking[:, None])[:, None, :]


@cache
def simplices(n_states: int) -> Float64[np.ndarray, "simplex vertex state_from state_to"]:
    """Simplices of permutation matrices that fill the polytope of doubly stochastic ones, all of one volume.

    A pulling triangulation: a vertex with the simplices of each facet that it is not in. All have the same
    volume, as the polytope is compressed (Stanley 1980, "Decompositions of rational convex polytopes").

    Example:
        >>> [len(simplices(n)) for n in (2, 3, 4)]  # volumes: Chan & Robbins 1999 (math/9806076)
        [1, 3, 352]
    """
    return np.eye(n_states)[_pulled(tuple(permutations(range(n_states))))]


def _pulled(face: Face) -> list[Face]:
    first = face[0]
    if len(face) == 1:
        return [face]
    without = {tuple(p for p in face if p[i] != j) for i, j in enumerate(first)} - {()}
    facets = [one for one in sorted(without) if not any(set(one) < set(other) for other in without)]
    return [(first, *rest) for facet in facets for rest in _pulled(facet)]
