"""The loss landscape at the two constructed points, and when the unigram is a trap at all."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import torch

import mechmarkov as mm
from experiments.claims import Finding, holds, share, wilson
from experiments.exactness import exactly
from experiments.figures import intervals, marker, style, titled
from experiments.harness import Measured
from experiments.unigram_trap.fates import fates, varied
from experiments.unigram_trap.points import Loss, bigram_model, closed_form, model, population
from mechmarkov.theory.unigram_trap import UnigramPoint, unigram_point

EXACT = 1e-12  # float64 sums over 32 sequences; eigenvalues are of order one
GRID = ((0.2, 0.3), (0.2, 0.5), (0.5, 0.8), (0.8, 0.8), (0.9, 0.95))
START = 0.02  # standard deviation of the reference start


@dataclass(frozen=True)
class Point:
    """The two constructed points of one chain.

    Attributes:
        tied: Whether the weights are.
        above: Whether p + q > 1.
        best: How far the bigram point's loss is from the entropy rate (nats).
        slope: The largest entry of the gradient at the unigram point.
        error: How far the Hessian's spectrum there is from its closed form.
        smallest: Its smallest eigenvalue.
        below: The lowest loss around the unigram point, above the unigram's (nats); 0 where none was drawn.
    """

    tied: bool
    above: bool
    best: float
    slope: float
    error: float
    smallest: float


def _point(p: float, q: float, tied: bool) -> Point:
    source = mm.Binary(p=p, q=q)
    data, above = population(source), p + q > 1
    best, unigram = Loss(bigram_model(source, tied=tied), data), Loss(model(source, tied=tied), data)
    slope, spectrum = unigram.gradient_and_spectrum()
    return Point(
        tied,
        above,
        best=abs(float(best(best.theta)) - source.entropy_rate),
        slope=slope,
        error=float(np.abs(spectrum - closed_form(p, q, len(spectrum), tied=tied)).max()),
        smallest=float(spectrum[0]),
    )


@exactly
def points(quick: bool) -> Measured:
    """The constructed bigram and unigram points: loss, gradient and the whole spectrum of the Hessian."""
    grid = GRID[1:3] if quick else GRID
    found = [_point(p, q, tied) for p, q in grid for tied in (True, False)]
    where = f"{len(grid)} pairs (p, q), d_model 4, 4 positions, the exact loss over all sequences, float64"
    best, slope = max(point.best for point in found), max(point.slope for point in found)
    claims = [
        Finding(
            "bigram_point",
            f"largest distance from the entropy rate {best:.0e} nats",
            holds(best < EXACT),
            "the weights are written down, tied p + q > 1 with an MLP that turns the embedding round; "
            f"{where}",
            "computed exactly",
        )
    ]
    how = f"dense Hessian against its closed form, gradient at most {slope:.0e}; {where}"
    minimum = [point for point in found if point.tied and point.above]
    claims.append(
        Finding(
            "unigram_minimum",
            _spectrum(minimum),
            holds(_exact(minimum, slope) and min(p.smallest for p in minimum) > -EXACT),
            f"{how}; most eigenvalues are exactly zero, on which the other row about it draws",
            "computed exactly",
            case="its Hessian",
        )
    )
    saddles = {
        "untied_saddle": [p for p in found if not p.tied],
        "tied_saddle_below": [p for p in found if p.tied and not p.above],
    }
    for key, chosen in saddles.items():
        saddle = _exact(chosen, slope) and max(point.smallest for point in chosen) < -0.01
        claims.append(
            Finding(
                key,
                _spectrum(chosen),
                holds(saddle),
                how,
                "computed exactly",
            )
        )
    return Measured(claims)


def _exact(found: list[Point], slope: float) -> bool:
    return max(point.error for point in found) < EXACT and slope < EXACT


def _spectrum(found: list[Point]) -> str:
    error = max(point.error for point in found)
    lowest = _range([point.smallest for point in found])
    return f"smallest eigenvalue {lowest}, spectrum within {error:.0e} of the closed form"


def _range(values: list[float]) -> str:
    low, high = (0.0 if abs(value) < EXACT else value for value in (min(values), max(values)))
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def near_unigram(quick: bool) -> Measured:
    """The loss of weights drawn around the tied unigram point, p + q > 1."""
    grid, draws = (GRID[1:3], 50) if quick else (GRID, 2000)
    lowest, above, total = 0.0, 0, 0
    for p, q in grid:
        if p + q <= 1:
            continue
        source = mm.Binary(p=p, q=q)
        losses = _losses_nearby(Loss(model(source, tied=True), population(source)), draws)
        higher = losses - source.unigram_entropy
        lowest, above = min(lowest, float(higher.min())), above + int((higher > -EXACT).sum())
        total += draws
    return Measured(
        [
            Finding(
                "unigram_minimum",
                f"{share(above, total)} of random weights near it have no lower loss (lowest "
                f"{lowest:+.1e} nats)",
                holds(above == total),
                f"{draws} points around it with sd {START}, d_model 4, 4 positions, the exact loss over all "
                f"sequences, float64; lower: by more than {EXACT:.0e} nats",
                "sampled",
                (above, total),
                case="weights around it",
            )
        ]
    )


@torch.no_grad()
def _losses_nearby(loss: Loss, draws: int) -> np.ndarray:
    """The losses of weights drawn around a point as far as a start is from zero."""
    generator = torch.Generator().manual_seed(0)
    moves = START * torch.randn(draws, len(loss.theta), generator=generator, dtype=torch.float64)
    return np.array([float(loss(loss.theta + move)) for move in moves])


def criterion(source: mm.Chain) -> UnigramPoint:
    """The Hessian along embeddings at the unigram point of a tied model of this chain."""
    return unigram_point(np.array(source.P), np.array(source.pi), tied=True)


def random_chain(rng: np.random.Generator, n_states: int) -> mm.Chain:
    """A chain whose rows are uniform on the simplex."""
    return mm.Chain(rng.dirichlet(np.ones(n_states), n_states).tolist())


def alike(n_states: int, p: float) -> mm.Chain:
    """The public code's chain of many states: leave with probability p, to any other state alike."""
    P = np.full((n_states, n_states), p / (n_states - 1))
    np.fill_diagonal(P, 1 - p)
    return mm.Chain(P.tolist())


# In this family the unigram is a trap iff p > (K - 1) / K; 2/3 here.
LEAVE_PROBABILITIES = (0.3, 0.5, 0.85, 0.95)


def many_states(quick: bool) -> Measured:
    """The criterion of many states: against Hessians, against training, and how often it says trap."""
    rng = np.random.default_rng(0)
    errors = [_hessian_error(random_chain(rng, 3)) for _ in range(2 if quick else 8)]
    claims = [_criterion_claim(errors, _both_sides(rng, 2 if quick else 8), seeds=1 if quick else 2)]
    states, draws = (2, 3, 4, 5, 6, 8), 200 if quick else 2000
    traps = {K: sum(criterion(random_chain(rng, K)).trap for _ in range(draws)) for K in states}
    claims.append(
        Finding(
            "traps_beyond_two",
            "of random chains with K = " + ", ".join(f"{K}: {hits / draws:.3f}" for K, hits in traps.items()),
            holds(traps[8] > draws / 2),
            f"share of {draws} chains with uniform random rows whose unigram point is a local minimum, by "
            "the criterion. It takes a chain that avoids every pattern of staying; with many random rows "
            "there is hardly one",
            "sampled",
            (traps[8], draws),
        )
    )
    return Measured(claims, {"many-states": _share_figure(traps, draws)})


def _hessian_error(source: mm.Chain) -> float:
    """How far the whole Hessian's spectrum at the unigram point is from the criterion's."""
    _, spectrum = Loss(model(source, tied=True), population(source, 2)).gradient_and_spectrum()
    point = criterion(source)
    told = np.concatenate([np.repeat(point.embedding, 4), point.bias])
    told = np.sort(np.append(told, np.zeros(len(spectrum) - len(told))))
    return float(np.abs(spectrum - told).max())


def _both_sides(rng: np.random.Generator, each: int) -> list[mm.Chain]:
    """Random chains, half of them traps, on both sides far enough from the line for the steps there are."""
    chosen: dict[bool, list[mm.Chain]] = {True: [], False: []}
    while min(map(len, chosen.values())) < each:
        source = random_chain(rng, 3)
        point = criterion(source)
        far = np.abs(point.embedding).min() > 0.02 and (point.trap or point.growth > 0.1)
        if far and len(chosen[point.trap]) < each:
            chosen[point.trap].append(source)
    return [*chosen[True], *chosen[False]]


def _criterion_claim(errors: list[float], chains: list[mm.Chain], seeds: int) -> Finding:
    """Whether trained runs stay where the criterion says trap."""
    sources = [*chains, *(alike(3, p) for p in LEAVE_PROBABILITIES)]
    base = varied("binary-p08-q08-tied-gd", "steps=400", "model.n_ctx=32")
    ends = fates([base.replace(**{"source": source.model_dump(mode="json")}) for source in sources], seeds)
    hits = total = 0
    for source, end in zip(sources, ends, strict=True):
        stays = end.excess > 0.9 * end.gap  # to leave one direction alone need not give half of the kernel
        hits += int((stays == criterion(source).trap).sum())
        total += end.n
    return Finding(
        "many_states",
        f"Hessians agree to {max(errors):.0e}; trained runs stay or leave as it says in {share(hits, total)}",
        holds(max(errors) < EXACT and wilson(hits, total)[0] > 0.6),
        f"{len(errors)} random chains of 3 states against dense Hessians; plain gradient descent (lr 1, 400 "
        f"steps, T = 32, seeds: {seeds}) on {len(chains)} random chains, half of them on each side, and on "
        f"the public code's family at p = {', '.join(map(str, LEAVE_PROBABILITIES))}; a run has left when it "
        "is a tenth of the way",
        "trained at another",
        (hits, total),
    )


def _share_figure(shares: dict[int, int], draws: int) -> go.Figure:
    figure = titled(
        go.Figure(),
        "How often the unigram of a random chain is a trap (tied weights)",
        "number of states K",
        "share of chains",
    )
    figure.add_scatter(
        x=list(shares),
        **intervals([wilson(hits, draws) for hits in shares.values()]),
        mode="lines+markers",
        name="rows uniform on the simplex",
        line=style(0),
        marker=marker(0),
    )
    figure.add_scatter(
        x=list(shares),
        y=[1 / K for K in shares],
        mode="lines+markers",
        name="symmetric family, p uniform in [0, 1]: 1/K, exact",
        line=style(1),
        marker=marker(1),
    )
    return figure
