"""The loss landscape at the two constructed points, and when the unigram is a trap at all."""

import numpy as np
import torch

import mechmarkov as mm
from experiments.claims import Measured, Verdict, wilson
from experiments.unigram_trap.fates import fates, varied
from experiments.unigram_trap.points import Loss, bigram_model, closed_form, model, population
from experiments.unigram_trap.words import COLOURS, DASHES, MARKERS, claim, drawn
from mechmarkov.theory.unigram_trap import UnigramPoint, unigram_point

EXACT = 1e-12  # float64 sums over 32 sequences; eigenvalues are of order one
GRID = ((0.2, 0.3), (0.2, 0.5), (0.5, 0.8), (0.8, 0.8), (0.9, 0.95))
START = 0.02  # standard deviation of the reference start


def points(quick: bool) -> Measured:
    """The constructed bigram and unigram points: loss, gradient and the whole spectrum of the Hessian."""
    claims, minima, slopes = [], [], []
    grid = GRID[1:3] if quick else GRID
    found: dict[tuple[bool, bool], list[tuple[float, float]]] = {}  # (tied, p + q > 1): error, smallest
    below = []
    for p, q in grid:
        source = mm.Binary(p=p, q=q)
        data = population(source)
        for tied in (True, False):
            best = Loss(bigram_model(source, tied=tied), data)
            minima.append(abs(float(best(best.theta)) - source.entropy_rate))
            unigram = Loss(model(source, tied=tied), data)
            slope, spectrum = unigram.gradient_and_spectrum()
            slopes.append(slope)
            error = float(np.abs(spectrum - closed_form(p, q, len(spectrum), tied=tied)).max())
            found.setdefault((tied, p + q > 1), []).append((error, float(spectrum[0])))
            if tied and p + q > 1:
                below.append(_lowest_nearby(unigram, 200 if quick else 2000) - source.unigram_entropy)
    where = f"{len(grid)} pairs (p, q), d_model 4, 4 positions, the exact loss over all sequences, float64"
    claims.append(
        claim(
            "points",
            "For every (p, q) some weights predict the kernel exactly, tied or not: the bigram is a global "
            "minimum",
            f"largest distance from the entropy rate {max(minima):.0e} nats",
            "holds" if max(minima) < EXACT else "does not hold",
            "the weights are written down, tied p + q > 1 with an MLP that turns the embedding round; "
            f"{where}",
            paper="exact",
        )
    )
    judged = (
        ("Tied, p + q > 1: the unigram is a local minimum that is not global", (True, True), 1),
        ("Untied: the same point is a saddle, whatever p + q", (False, True), -1),
        ("Tied, p + q < 1: the same point is a saddle", (True, False), -1),
    )
    for text, key, sign in judged:
        rows = found[key] + (found[False, False] if key == (False, True) else [])
        error, lowest = max(e for e, _ in rows), [low for _, low in rows]
        kind = min(lowest) > -EXACT if sign > 0 else max(lowest) < -0.01
        safe = sign < 0 or min(below) > -EXACT
        told = f"smallest eigenvalue {_range(lowest)}, spectrum within {error:.0e} of the closed form"
        if sign > 0:
            told += f"; of random weights near it none has a loss below it by more than {EXACT:.0e} nats"
            told += f" (lowest {min(below):+.1e})"
        how = f"dense Hessian against its closed form, gradient at most {max(slopes):.0e}; {where}"
        if sign > 0:
            how += (
                f"; most eigenvalues are exactly zero, so {200 if quick else 2000} points around it are "
                f"drawn with sd {START} too"
            )
        claims.append(
            claim(
                "points",
                text,
                told,
                "holds" if kind and safe and error < EXACT and max(slopes) < EXACT else "does not hold",
                how,
                paper="exact",
            )
        )
    return Measured(claims)


def _range(values: list[float]) -> str:
    low, high = (0.0 if abs(value) < EXACT else value for value in (min(values), max(values)))
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


@torch.no_grad()
def _lowest_nearby(loss: Loss, draws: int) -> float:
    """The lowest loss of weights drawn around a point as far as a start is from zero."""
    generator = torch.Generator().manual_seed(0)
    moves = START * torch.randn(draws, len(loss.theta), generator=generator, dtype=torch.float64)
    return min(float(loss(loss.theta + move)) for move in moves)


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
LEAVE = (0.3, 0.5, 0.85, 0.95)


def many_states(quick: bool) -> Measured:
    """The criterion of many states: against Hessians, against training, and how often it says trap."""
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(2 if quick else 8):
        source = random_chain(rng, 3)
        _, spectrum = Loss(model(source, tied=True), population(source, 2)).gradient_and_spectrum()
        point = criterion(source)
        told = np.concatenate([np.repeat(point.embedding, 4), point.bias])
        told = np.sort(np.append(told, np.zeros(len(spectrum) - len(told))))
        errors.append(float(np.abs(spectrum - told).max()))
    each = 2 if quick else 8
    chosen: dict[bool, list[mm.Chain]] = {True: [], False: []}
    while min(map(len, chosen.values())) < each:
        source = random_chain(rng, 3)
        point = criterion(source)
        # On both sides far enough from the line for the steps there are.
        if (
            len(chosen[point.trap]) < each
            and np.abs(point.embedding).min() > 0.02
            and (point.trap or point.growth > 0.1)
        ):
            chosen[point.trap].append(source)
    sources = [*chosen[True], *chosen[False], *(alike(3, p) for p in LEAVE)]
    seeds = 1 if quick else 2
    base = varied("binary-p08-q08-tied-gd", "steps=400", "model.n_ctx=32")
    ends = fates([base.with_values({"source": source.model_dump(mode="json")}) for source in sources], seeds)
    hits = total = 0
    for source, end in zip(sources, ends, strict=True):
        stays = end.excess > 0.9 * end.gap  # to leave one direction alone need not give half of the kernel
        hits += int((stays == criterion(source).trap).sum())
        total += end.n
    low, _, high = wilson(hits, total)
    claims = [
        claim(
            "many_states",
            "With tied weights the unigram of a chain with many states is a local minimum iff the "
            "symmetric part of its covariance of neighbours has no positive eigenvalue",
            f"Hessians agree to {max(errors):.0e}; trained runs stay or leave as it says in {hits}/{total} "
            f"[{low:.2f}, {high:.2f}]",
            "holds" if max(errors) < EXACT and low > 0.6 else "does not hold",
            f"{len(errors)} random chains of 3 states against dense Hessians; plain gradient descent (lr 1, "
            f"400 steps, T = 32, seeds: {seeds}) on {2 * each} random chains, half of them on each side, "
            f"and on the public code's family at p = {', '.join(map(str, LEAVE))}; a run has left when it "
            "is a tenth of the way",
            source="derived; the symmetric family is the public code's",
            paper="in the symmetric family: trapped iff p > (K - 1) / K",
        )
    ]
    states, draws = (2, 3, 4, 5, 6, 8), 200 if quick else 2000
    shares = {K: sum(criterion(random_chain(rng, K)).trap for _ in range(draws)) for K in states}
    rare = shares[8] / draws < 0.01
    common = shares[2] / draws > 0.4
    verdict: Verdict = (
        "holds with a correction" if rare and common else "holds" if common else "does not hold"
    )
    claims.append(
        claim(
            "many_states",
            "The trap is not one of binary chains alone: chains of many states have it",
            "of random chains with K = "
            + ", ".join(f"{K}: {hits / draws:.3f}" for K, hits in shares.items()),
            verdict,
            f"share of {draws} chains with uniform random rows whose unigram point is a local minimum, by "
            "the criterion. It takes a chain that avoids every pattern of staying; with many random rows "
            "there is hardly one",
        )
    )
    return Measured(claims, {"many-states": _share_figure(shares, draws)})


def _share_figure(shares: dict[int, int], draws: int):
    figure = drawn(
        "How often the unigram of a random chain is a trap (tied weights)",
        "number of states K",
        "share of chains",
    )
    low, mid, high = zip(*(wilson(hits, draws) for hits in shares.values()), strict=True)
    figure.add_scatter(
        x=list(shares),
        y=list(mid),
        error_y={
            "type": "data",
            "symmetric": False,
            "array": np.subtract(high, mid),
            "arrayminus": np.subtract(mid, low),
        },
        mode="lines+markers",
        name="rows uniform on the simplex",
        line={"color": COLOURS[0], "dash": DASHES[0]},
        marker={"symbol": MARKERS[0]},
    )
    figure.add_scatter(
        x=list(shares),
        y=[1 / K for K in shares],
        mode="lines+markers",
        name="symmetric family, p uniform in [0, 1]: 1/K, exact",
        line={"color": COLOURS[1], "dash": DASHES[1]},
        marker={"symbol": MARKERS[1]},
    )
    return figure
