"""The score of a set of lags: the first derivative of the loss, and which set has the largest; exact."""

from itertools import product

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float

from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.figures import style, titled
from experiments.harness import Measured
from experiments.which_parents.kernel_model import Weights, agreement, outputs
from experiments.which_parents.shared import signed
from mechmarkov.theory.lag_sets import (
    Joint,
    LagSet,
    finite_scores,
    lag_sets,
    over_window,
    selection_score,
    window_law,
)

FULL, QUICK = 1000, 100  # kernels of a setting
STATES, CONCENTRATIONS = (2, 3), (0.1, 0.3, 1.0, 3.0)
PARENTS: tuple[LagSet, ...] = ((1,), (2,), (1, 2), (1, 3), (2, 3), (1, 2, 3))
WINDOW = 3
ROUNDING = 1e-9
ENUMERATED = 10  # positions, of two states
BETA, GAMMA = 0.5, 0.4


def derivative_error(seed: int) -> float:
    """Autograd through the model against the formula: the expected loss over all inputs of two states."""
    rng, sets = np.random.default_rng(seed), lag_sets(2, 2)
    kernel = rng.dirichlet(np.full(2, 0.5), (2, 2))
    tokens = np.array(list(product(range(2), repeat=ENUMERATED)))
    chance = np.full(len(tokens), 0.25)
    for i in range(2, ENUMERATED):
        chance *= kernel[tokens[:, i - 2], tokens[:, i - 1], tokens[:, i]]
    answer = kernel[tokens[:, -2], tokens[:, -1]]
    a = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    weights = Weights(
        torch.tensor(rng.normal(size=(1, 2, 2))), torch.tensor(rng.normal(size=(1, len(sets)))), a
    )
    law = outputs(torch.tensor(tokens)[None], weights, sets, 2)[0]
    expected = -(torch.tensor(chance)[:, None] * torch.tensor(answer) * (law + 0.01).log()).sum()
    (slope,) = torch.autograd.grad(expected, a)
    with torch.no_grad():
        values = agreement(torch.tensor(tokens)[None], weights, sets, 2)[0].numpy()
    scores = finite_scores(values, tokens[:, 2:], answer, chance, eps=0.01)
    return abs(float(slope) + float(weights.shares[0].numpy() @ scores))


def laws(n_states: int, parents: LagSet, concentration: float, n: int) -> Joint:
    """Window laws of kernels of the prior."""
    rng = np.random.default_rng(0)
    kernels = rng.dirichlet(np.full(n_states, concentration), (n, *len(parents) * (n_states,))).clip(1e-9)
    return window_law(over_window(kernels / kernels.sum(-1, keepdims=True), parents, WINDOW))


def binary_entropy(p: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Of a law on two states (nats)."""
    return -(p * np.log(p) + (1 - p) * np.log(1 - p))


def criterion(quick: bool) -> Measured:
    """Priors, sets of parents and numbers of states."""
    n, sets = QUICK if quick else FULL, lag_sets(WINDOW, WINDOW)
    first, supersets, above, ties, found, settings = 0, 0, 0, 0.0, {}, 0
    for states, parents, concentration in product(STATES, PARENTS, CONCENTRATIONS):
        joint = laws(states, parents, concentration, n)
        scores = {each: selection_score(joint, each) for each in sets}
        means = {each: score.mean() for each, score in scores.items()}
        settings += 1
        first += bool(max(means, key=lambda each: float(means[each])) == parents)
        best = np.stack([*scores.values()]).max(0)
        counts = found.setdefault((len(parents), concentration), [0, 0])
        counts[0] += int((scores[parents] >= best - ROUNDING).sum())
        counts[1] += n
        ordinary = selection_score(joint, parents, power=1)
        for each in sets:
            if set(each) > set(parents):
                supersets += n
                above += int((scores[each] > scores[parents] + ROUNDING).sum())
                ties = max(ties, float(np.abs(selection_score(joint, each, power=1) - ordinary).max()))
    setting = f"{settings} settings: {STATES} states, a window of {WINDOW}, parents {PARENTS}, rows from "
    setting += f"Dirichlet{CONCENTRATIONS}; {n} kernels each, float64"
    errors = [derivative_error(seed) for seed in range(2 if quick else 8)]
    near, draws = sum(error < ROUNDING for error in errors), len(errors)
    several = np.sum([counts for (size, _), counts in found.items() if size > 1], axis=0)
    said = "; ".join(
        f"{size} parents {share(*np.sum([v for (m, _), v in found.items() if m == size], axis=0))}"
        for size in (1, 2, 3)
    )
    claims = [
        Finding(
            "first_derivative",
            f"differs from autograd by at most {max(errors):.0e}",
            holds(near == draws),
            f"expected loss over all {2**ENUMERATED} inputs of {ENUMERATED} positions on two states, heads "
            "and shares at random, eps = 0.01; float64",
            "sampled",
            (near, draws),
        ),
        Finding(
            "superset_never",
            f"{above} of {supersets} larger sets are above their parents' set",
            holds(above == 0),
            f"ties within {ROUNDING:g}; {setting}",
            "sampled",
            (supersets - above, supersets),
        ),
        Finding(
            "information_ties",
            f"χ² information of larger sets differs from the parents' by at most {ties:.0e}",
            holds(ties < ROUNDING * 100),
            setting,
            "sampled",
            (supersets * (ties < ROUNDING * 100), supersets),
        ),
        Finding(
            "largest_is_parents",
            f"{share(first, settings)} settings",
            holds(first == settings),
            f"the mean score over the prior; {setting}",
            "sampled",
            (first, settings),
        ),
        Finding(
            "single_kernels",
            said,
            holds(2 * several[0] > several[1]),
            f"the kernel's own score, counted where there are two parents or three; {setting}",
            "sampled",
            (int(several[0]), int(several[1])),
        ),
    ]
    return Measured(claims, {"criterion": drawing(found)})


@exactly
def weak_parent(quick: bool) -> Measured:
    """Both parents are needed, and the score of one is larger."""
    del quick
    joint = window_law(signed(BETA, GAMMA, np.ones((1, 2))))
    one, both = (float(selection_score(joint, each)[0]) for each in ((2,), (1, 2)))
    exact = max(abs(one - BETA**2 / 2), abs(both - (BETA**2 + GAMMA**2) / 4))
    alone = binary_entropy(np.array((1 + BETA) / 2))
    with_both = binary_entropy(np.array([(1 + BETA + GAMMA) / 2, (1 + BETA - GAMMA) / 2])).mean()
    found = Finding(
        "weak_parent_left_out",
        f"score {one:.4f} for the lag 2 alone, {both:.4f} for both; without the other "
        f"{float(alone - with_both):.3f} nats are lost",
        holds(one > both and alone > with_both and exact < 1e-12),
        f"two states as ±1, P(y | x₁, x₂) = (1 + y x₂ (β + γ x₁)) / 2, β = {BETA}, γ = {GAMMA}; β² / 2 "
        "against (β² + γ²) / 4, so at any γ < β",
        "computed exactly",
        number=f"{one:.4f} against {both:.4f}",
    )
    return Measured([found])


def drawing(found: dict[tuple[int, float], list[int]]) -> go.Figure:
    """How often a kernel's own score is largest at the parents."""
    figure = go.Figure()
    for i, size in enumerate((1, 2, 3)):
        shares = [found[size, c][0] / found[size, c][1] for c in CONCENTRATIONS]
        name = f"{size} parent{'s' if size > 1 else ''}"
        figure.add_scatter(x=list(CONCENTRATIONS), y=shares, name=name, mode="lines+markers", line=style(i))
    titled(figure, "The parents have the largest score", "Dirichlet concentration", "share of single kernels")
    return figure.update_xaxes(type="log").update_yaxes(range=[0, 1.02])
