"""Who takes all: two states, exactly by their counts; and what one trajectory tells of the base chain."""

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from scipy.special import expit

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.context_conditioned.theory import invades, two_state_counts
from experiments.exactness import exactly
from experiments.figures import marker, style, titled
from experiments.harness import Measured, over_seeds

FILLED = 0.95  # of the context by one state: past where both prefer themselves and the rarer may still grow
WEAK = (0.1, 0.2, 0.3)  # the base chain's probability of the weak state, in both rows
TOLERANCE = 0.1  # of an exponent
GROUPS, SLOW = 16, -0.4  # of trajectories; an exponent, where independent prompts have -0.5
PRIOR = 100.0  # variance of a log-odds, so that a row without a choice has an estimate


def base_of(stays: tuple[float, float]) -> Float[np.ndarray, "2 2"]:
    """The base chain of two states with these probabilities of staying."""
    return np.array([[stays[0], 1 - stays[0]], [1 - stays[1], stays[1]]])


def filled(base: Float[np.ndarray, "2 2"], length: int) -> Float[np.ndarray, "position state"]:
    """The probability that a state is so much of the context, exactly, from the second token on."""
    law = two_state_counts(base, length).sum(-1)
    share = np.arange(length + 1) / np.arange(2, length + 1)[:, None]
    return np.stack([(law * (share <= 1 - FILLED)).sum(1), (law * (share >= FILLED)).sum(1)], axis=1)


@exactly
def winners(quick: bool) -> Measured:
    """A grid of base chains: a state fills the context more and more often iff it prefers itself."""
    length = 200 if quick else 1000
    stays = (0.2, 0.8) if quick else (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
    ends = np.zeros((len(stays), len(stays), 2))
    agree = 0
    for i, j in np.ndindex(ends.shape[:2]):
        base = base_of((stays[i], stays[j]))
        found = filled(base, length)
        ends[i, j] = found[-1]
        stable = ~np.array([invades(base)[0, 1], invades(base)[1, 0]])
        rises = found[-1] > found[length // 4]
        agree += bool((rises == stable).all())
    cells = len(stays) ** 2
    figure = go.Figure(
        go.Heatmap(x=stays, y=stays, z=ends.sum(-1), zmin=0, zmax=1, colorbar={"title": "probability"})
    )
    axes = "Pr(0 after 0) in the base chain", "Pr(1 after 1) in the base chain"
    titled(figure, f"That one state is {FILLED:.0%} of {length} tokens", axes[1], axes[0])
    exponents, predicted = growth(length), np.array([p / (1 - p) for p in WEAK])
    off, before = (np.abs(row - predicted) for row in (exponents[-1], exponents[0]))
    weak = two_state_counts(base_of((1 - WEAK[2], WEAK[2])), length).sum(-1)
    means = weak @ np.arange(length + 1) / np.arange(2, length + 1)
    grown = ", ".join(f"{e:.2f} ({p:.2f})" for e, p in zip(exponents[-1], predicted, strict=True))
    return Measured(
        [
            Finding(
                "winner_takes_all",
                f"the weak state is {means[8]:.1%} of 10 tokens, {means[98]:.1%} of 100, "
                f"{means[-1]:.1%} of {length}",
                holds(means[-1] < means[98] < means[8]),
                f"two states, each row of the base chain gives the weak one {WEAK[2]:g}; exact law of counts",
                "computed exactly",
                number=f"{means[8]:.1%}, {means[98]:.1%}, {means[-1]:.1%}",
            ),
            Finding(
                "who_wins",
                f"{agree} of {cells} base chains agree",
                holds(agree == cells),
                f"two states; a state is {FILLED:.0%} of the context more often after {length} tokens than "
                f"after {length // 4 + 2} iff its row of the base chain has it above the other; exact law",
                "computed exactly",
            ),
            Finding(
                "how_fast",
                f"exponents at {length} tokens (predicted): {grown}",
                holds((off < TOLERANCE).all() and (off < before).all()),
                f"slope of the logarithm of its expected count over the last doubling; within {TOLERANCE:g}, "
                f"and nearer than at {length // 4}; weak state {', '.join(f'{p:g}' for p in WEAK)}",
                "computed exactly",
                number=grown,
            ),
        ],
        {"winners": figure},
    )


def growth(length: int) -> Float[np.ndarray, "when weak"]:
    """The exponent of the weak state's expected count over the last doubling, at a quarter and at the end."""
    found = []
    for p in WEAK:
        mean = two_state_counts(base_of((1 - p, p)), length).sum(-1) @ np.arange(length + 1)
        found.append([np.log2(mean[t - 2] / mean[t // 2 - 2]) for t in (length // 4, length)])
    return np.array(found).T


def log_odds(tokens: Int[np.ndarray, "trajectory position"], last: int) -> Float[np.ndarray, " trajectory"]:
    """The likeliest log-odds of state 1 in a row of the base chain, from each trajectory alone (Newton)."""
    ones = tokens.cumsum(1)[:, 1:-1]
    offset = np.log(ones) - np.log(np.arange(2, tokens.shape[1]) - ones)
    asked, chosen = tokens[:, 1:-1] == last, tokens[:, 2:]
    found = np.zeros(len(tokens))
    for _ in range(30):
        p = expit(offset + found[:, None])
        slope = (asked * (chosen - p)).sum(1) - found / PRIOR
        found += np.clip(slope / ((asked * p * (1 - p)).sum(1) + 1 / PRIOR), -1, 1)
    return found


def trajectories(quick: bool) -> Measured:
    """The error of a base chain estimated from one trajectory, over its length."""
    p, runs = 0.3, 320 if quick else 3200
    lengths = np.array([64, 1024] if quick else [64, 256, 1024, 4096])
    source = mm.sources.ContextConditionedChain(base_of((1 - p, p)))
    tokens = source.sample(runs, int(lengths[-1]), generator=torch.Generator().manual_seed(0)).numpy()
    squared = np.array(
        [[(expit(log_odds(tokens[:, :n], last)) - p) ** 2 for n in lengths] for last in (0, 1)]
    )
    figure = go.Figure()
    for last in (0, 1):
        rms = np.sqrt(squared[last].mean(1))
        look = {"mode": "lines+markers", "line": style(last), "marker": marker(last)}
        figure.add_scatter(x=lengths, y=rms, name=f"after state {last}", **look)
    rows = np.sqrt(squared[0].mean(1))
    figure.add_scatter(x=lengths, y=rows[0] * np.sqrt(lengths[0] / lengths), name="T^(-1/2)", line=style(2))
    titled(figure, "A base chain from one trajectory", "tokens", "error of Pr(1), root mean square")
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1)
    groups = np.array_split(np.arange(runs), GROUPS)
    slopes = np.array([[slope(squared[last][:, own], lengths) for own in groups] for last in (0, 1)])
    slower = int((slopes > SLOW).all(0).sum())
    said = " and ".join(f"{over_seeds(row)} after state {last}" for last, row in enumerate(slopes))
    finding = Finding(
        "one_trajectory",
        f"the error falls with exponent {said}; slower than {SLOW:g} in {share(slower, GROUPS)} groups",
        holds(slower == GROUPS),
        f"{GROUPS} groups of {runs // GROUPS} trajectories of {lengths[-1]:,} tokens, each row of the base "
        f"chain ({1 - p:g}, {p:g}); root mean square error of Pr(1); by the counts {-p / (1 - p) / 2:.2f} "
        "after state 0 and 0 after state 1",
        "trained at another",
        count=(slower, GROUPS),
    )
    return Measured([finding], {"trajectories": figure})


def slope(squared: Float[np.ndarray, "length trajectory"], lengths: Int[np.ndarray, " length"]) -> float:
    """The exponent of the root mean square error over the length."""
    return float(np.polyfit(np.log(lengths), np.log(squared.mean(1)) / 2, 1)[0])
