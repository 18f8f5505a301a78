"""The score that picks the lag in D'Angelo et al.'s construction: is the true lag's largest in the mean?"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.claims import Finding, holds, share
from experiments.harness import EVALUATION_SEED, Measured

LETTERS = "abcdefgh"
LARGEST_LAG = 6
ROUNDING = 1e-12

Chains = Float[Tensor, "chain state_from state_to"]
Joint = Float[Tensor, "chain *states"]


def stationary(P: Chains) -> Float[Tensor, "chain state"]:
    """The stationary law of each chain, with gradients."""
    balance = torch.eye(P.shape[-1], dtype=P.dtype) - P.mT
    balance = torch.cat([balance[:, :-1], torch.ones_like(balance[:, :1])], dim=1)
    right = torch.zeros_like(balance[:, :, 0])
    right[:, -1] = 1
    return torch.linalg.solve(balance, right)


def joint(P: Chains, lags: Sequence[int], true: int) -> Joint:
    """The law of the next state and of those at each lag, where the one at lag `true` is its parent.

    States whose lags differ by multiples of `true` are of one chain; the others are independent.
    """
    letter = dict(zip([0, *lags], LETTERS, strict=False))
    chains = defaultdict(list)
    for lag in sorted(letter, reverse=True):
        chains[lag % true].append(lag)
    terms, factors = [], []
    start = stationary(P)
    for members in chains.values():
        terms.append("z" + letter[members[0]])
        factors.append(start)
        for earlier, later in pairwise(members):
            terms.append("z" + letter[earlier] + letter[later])
            factors.append(torch.linalg.matrix_power(P, (earlier - later) // true))
    return torch.einsum(f"{','.join(terms)}->z{''.join(letter.values())}", *factors)


def scores(P: Chains, lags: Sequence[int], true: int, normalised: bool = True) -> Float[Tensor, "chain lag"]:
    """Mean probability of the next state given the one at each lag; `normalised`: as a share of their sum."""
    weight = joint(P, lags, true)
    shape = [len(P), P.shape[-1]]
    given = [P.mT.reshape(shape + [shape[1] if other == lag else 1 for other in lags]) for lag in lags]
    total = sum(given) if normalised else torch.ones_like(given[0])
    return torch.stack([(weight * one / total).flatten(1).sum(1) for one in given], dim=1)


def lag_scores(quick: bool) -> Measured:
    """Random chains and random sets of lags; then descents towards a counterexample."""
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    sets = [lags for size in (2, 3, 4) for lags in combinations(range(1, LARGEST_LAG + 1), size)]
    each = 2 if quick else 30
    plain, normalised = [], []
    for lags in sets:
        concentration = torch.tensor([0.05, 0.3, 1.0]).repeat(each)[:, None, None].double()
        P = torch._standard_gamma(concentration.expand(-1, 3, 3), generator=generator).clamp_min(1e-12)
        P = P / P.sum(-1, keepdim=True)
        for i, true in enumerate(lags):
            for largest_in, kind in ((normalised, True), (plain, False)):
                value = scores(P, lags, true, kind)
                largest_in.append((value[:, i : i + 1] - value).min(1).values > -ROUNDING)
    largest, largest_plain = torch.cat(normalised), torch.cat(plain)
    lowest = min(descend(lags, generator, 20 if quick else 150) for lags in sets[:: 30 if quick else 7])
    where = (
        f"exact expectations; three states, every set of two to four lags up to {LARGEST_LAG}, each as the "
        f"true one, {3 * each} chains with rows from Dirichlet(0.05), (0.3) and (1)"
    )
    return Measured(
        [
            Finding(
                "normalised_score",
                f"{share(int(largest.sum()), len(largest))} chains and lags; descents from 32 starts a lag, "
                f"for each seventh set, end at {lowest:.0e} or above",
                holds(largest.all() and lowest > -ROUNDING),
                where,
                "sampled",
                (int(largest.sum()), len(largest)),
            ),
            Finding(
                "plain_score",
                f"{share(int(largest_plain.sum()), len(largest_plain))} chains and lags",
                holds(largest_plain.all()),
                where,
                "sampled",
                (int(largest_plain.sum()), len(largest_plain)),
            ),
        ]
    )


def descend(lags: Sequence[int], generator: torch.Generator, steps: int) -> float:
    """The least by which the true lag's score is above another's, after descent on that difference."""
    least = np.inf
    for i, true in enumerate(lags):
        start = 3 * torch.randn(32, 3, 3, dtype=torch.float64, generator=generator)
        logits = start.requires_grad_()
        optimiser = torch.optim.Adam([logits], lr=0.1)
        for _ in range(steps):
            value = scores(logits.softmax(-1), lags, true)
            others = torch.cat([value[:, :i], value[:, i + 1 :]], dim=1)
            loss = (value[:, i : i + 1] - others).min(1).values
            least = min(least, float(loss.detach().min()))
            optimiser.zero_grad()
            loss.sum().backward()
            optimiser.step()
    return least
