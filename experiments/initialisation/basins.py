"""The theorems on `(e, w)`: energy, basins and Gaussian starts of the flow, and of real decoders' weights."""

import numpy as np
from jaxtyping import Float

from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.harness import Measured
from experiments.initialisation import flow as flows
from experiments.initialisation import networks as nets
from experiments.initialisation import pictures
from mechmarkov.theory import canonical

CHAINS = [(0.1, 0.1), (0.9, 0.9)]  # those of the authors' figure
AGREE = 0.97  # what a border has to get right, at the low end of the interval, to be called the border


def spread(n: int, first: tuple[float, float], second: tuple[float, float]) -> Float[np.ndarray, "start 2"]:
    """Points spread evenly over a rectangle, none of them random: the R2 sequence (Roberts 2018)."""
    plastic = 1.324717957244746  # the root of x³ = x + 1
    unit = (np.arange(1, n + 1)[:, None] * np.array([1 / plastic, 1 / plastic**2])) % 1
    low, high = np.array([first, second]).T
    return low + (high - low) * unit


@exactly
def basins(quick: bool) -> Measured:
    """Energy is kept along lines of the flow, and tells with w where they end."""
    starts = 100 if quick else 250
    figure = pictures.planes(CHAINS, "Where gradient flow in (e, w) ends", (-3, 3), 3)
    drift, right, found, signs = 0.0, 0, [], []
    for column, (p, q) in enumerate(CHAINS, 1):
        at = spread(starts, (0.02, 3), (-3, 3))
        paths = [flows.flow(float(e), float(w), p, q) for e, w in at]
        drift = max([drift, *(float(np.ptp(canonical.energy(path.e, path.w))) for path in paths)])
        hits = sum(
            path.end == canonical.basin(float(e), float(w), p, q)
            for path, (e, w) in zip(paths, at, strict=True)
        )
        stuck = sum(path.end == "unigram" for path in paths)
        right += hits
        found.append(f"p = q = {p:g}: {hits} of {starts}, {stuck} of them stuck")
        for path in paths[:28]:
            pictures.add_path(figure, column, path.e, path.w)
        pictures.add_starts(figure, column, at, [path.end for path in paths])
        # The loss a step of e away from e = 0, where s = 0 whatever w.
        w = np.array([-2.5, -1.5, -0.8, -0.6, -0.2, 0.5, 2.0])
        rises = canonical.loss(canonical.slope(np.full_like(w, 0.1), w), p, q) > canonical.loss(
            np.zeros(1), p, q
        )
        signs.append(bool((rises == ((w < canonical.CANCELS) == (p + q < 1))).all()))
    how = f"{starts} starts a chain, e in (0, 3), w in (-3, 3), flow integrated in float64 (LSODA, 1e-9)"
    claims = [
        Finding(
            "energy_constant",
            f"largest change along {2 * starts} lines: {drift:.0e}",
            holds(drift < 1e-5),
            how + "; holds below 1e-5, ten thousand times the tolerance of one step",
            "computed exactly",
            number=f"changes by at most {drift:.0e}",
        ),
        Finding(
            "energy_tells",
            "; ".join(found),
            holds(right == 2 * starts),
            how + "; agreement of the predicted basin with the end of the integrated line",
            "computed exactly",
            number=f"{right} of {2 * starts} starts",
        ),
        Finding(
            "sides_at_e_0",
            f"sign of the change of the loss right at 7 of 7 w for {sum(signs)} of {len(signs)} chains",
            holds(all(signs)),
            "loss at e = 0.1 against e = 0, seven w from -2.5 to 2",
            "computed exactly",
            number=f"7 of 7 w, {sum(signs)} of {len(signs)} chains",
        ),
    ]
    return Measured(claims, {"basins": figure})


def gaussian(quick: bool) -> Measured:
    """Small Gaussian starts of the flow: the bigram for p + q < 1, the unigram for p + q > 1."""
    starts = 3 if quick else 10
    grid = (0.2, 0.6) if quick else (0.1, 0.3, 0.6, 0.85)
    rng = np.random.default_rng(1)
    ends = {True: 0, False: 0}
    total = {True: 0, False: 0}
    for p in grid:
        for q in grid:
            for e, w in rng.normal(0, 0.01, (starts, 2)):
                below = p + q < 1
                total[below] += 1
                ends[below] += flows.flow(float(e), float(w), p, q).end == "bigram"
    right = ends[True] == total[True] and ends[False] == 0
    claim = Finding(
        "gaussian_starts",
        f"at the bigram: {share(ends[True], total[True])} for p + q < 1, {share(ends[False], total[False])} "
        "for p + q > 1",
        holds(right),
        f"flow from e, w ~ N(0, 0.01^2), as in the authors' code, p and q in {grid}",
        "sampled",
        (ends[True] + total[False] - ends[False], total[True] + total[False]),
    )
    return Measured([claim])


@exactly
def networks(quick: bool) -> Measured:
    """The same starts as weights of real decoders: which border, and what an MLP bias does to the trap."""
    n, steps = (15, 800) if quick else (120, 1500)
    chains = [(0.2, 0.3), (0.5, 0.8)]
    at = spread(2 * n, (0.05, 1.5), (-1.6, 0.9))
    starts = [(float(e), float(w), *chains[i // n]) for i, (e, w) in enumerate(at)]
    stuck = nets.descend(starts, trained=nets.WEIGHTS, lr=0.2, steps=steps) > 0.5
    said = {
        stretch: np.array([canonical.basin(e / stretch**0.5, w, p, q) == "unigram" for e, w, p, q in starts])
        for stretch in (1, nets.STRETCH)
    }
    below = np.flatnonzero(said[nets.STRETCH][:n])
    biased = nets.descend(
        [starts[i] for i in below], trained=nets.WEIGHTS + nets.MLP_BIAS, lr=0.2, steps=steps
    )
    hits = {stretch: int((predicted == stuck).sum()) for stretch, predicted in said.items()}
    how = (
        f"{n} starts each at (p, q) = (0.2, 0.3) and (0.5, 0.8); 8 dimensions, 32 hidden units, attention "
        f"at zero, gradient descent on the population, {steps} steps of 0.2"
    )
    claims = [
        _invariant(quick),
        _border(hits, 2 * n, how, 0.85 if quick else AGREE),
        _trap(int(stuck[below].sum()), int((biased > 0.5).sum()), len(below), how),
    ]
    w, top = (-1.6, 0.9), 1.5
    title = "Decoders started at (e, w): the border of their weights is four times as high"
    figure = pictures.planes(chains, title, w, top, stretch=nets.STRETCH)
    for column in (1, 2):
        x, y = pictures.border(w, top)
        side = (x <= canonical.CANCELS) == (column == 1)
        pictures.add_path(figure, column, y[side], x[side], look=None, name="border of the (e, w) flow")
        own = slice((column - 1) * n, column * n)
        ends = np.where(stuck[own], "unigram", "bigram").tolist()
        pictures.add_starts(figure, column, at[own], ends)
    return Measured(claims, {"networks": figure})


def _invariant(quick: bool) -> Finding:
    """The kept quantity along one run at two step sizes: what is not conserved halves with the step."""
    start, time = (1.4, -1.2, 0.5, 0.8), 20 if quick else 150
    coarse, fine = (nets.drifts(start, lr=lr, steps=round(time / lr)) for lr in (0.1, 0.05))
    return Finding(
        "weights_invariant",
        f"change along a run {coarse[0]:.1e} at step size 0.1, {fine[0]:.1e} at 0.05; of "
        f"e^2 / 16 - w^2 - sign(w) log|w| {coarse[1]:.1e} and {fine[1]:.1e}",
        holds(fine[0] < 0.6 * coarse[0]),
        f"(p, q) = (0.5, 0.8), start at e = 1.4, w = -1.2, gradient descent in float64 for a time of {time}; "
        "what is conserved by the flow changes in proportion to the step size",
        "computed exactly",
        number=f"{coarse[0]:.1e}, and {fine[0]:.1e} at half the step",
    )


def _border(hits: dict[int, int], n: int, how: str, enough: float) -> Finding:
    stretched = hits[nets.STRETCH] > enough * n and hits[nets.STRETCH] > hits[1]
    return Finding(
        "weights_border",
        f"end as predicted: {hits[nets.STRETCH]} of {n} from (e / 4, w), {hits[1]} from (e, w)",
        holds(stretched),
        f"{how}, no biases but the unembedding's; with one embedding vector that a token switches on, as in "
        "the authors' code, the factor is sqrt 8 in place of 4",
        "computed exactly",
        number=f"{hits[nets.STRETCH]} of {n}, {hits[1]} from (e, w)",
    )


def _trap(without: int, biased: int, n: int, how: str) -> Finding:
    return Finding(
        "stuck_below",
        f"at the unigram: {without} of {n} without biases in the MLP (as the authors' models), "
        f"{biased} with an input bias that is trained",
        holds(without > n / 2),
        f"{how}; the starts at (0.2, 0.3) that the corrected border calls stuck. As e shrinks the bias "
        "falls to a negative constant, which turns the hidden units off: w is 0, and e grows again",
        "computed exactly",
        number=f"{without} of {n} at the unigram",
    )
