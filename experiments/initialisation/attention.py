"""The flow in `(e, w, a)`: the canonical model with attention that adds `a` times the mean of the context.

The model is ours, after Makkuva et al. 2024: tokens are embedded as `e (x - 1/2)` along one direction,
attention is uniform over a context of N tokens, and the MLP multiplies the stream by `1 + 2 w |w|`. With the
bias at its best the log-odds of state 1 are `s (x + a m) + c`: `s = e² (1 + 2 w |w|)`, `x` the last token,
`m` the mean of all N.

Derived:
- The loss depends on `(e, w)` through `s`, so that the flow keeps their energy whatever `a` does.
- It is convex in `(s, s a, c)`, so that critical points are the bigram (`s = s*, a = 0`) and those with
  `s = 0`.
- At `s = 0`, `dL/ds = -cov(x, y) (1 + a r)` with the next token `y` and `r = cov(m, y) / cov(x, y)`, which is
  `(1 - l^N) / (N (1 - l))`, `l = 1 - p - q`. The sides of the saddle change places at `a = -1 / r`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.harness import Measured
from experiments.initialisation import flow as flows
from experiments.initialisation import pictures
from experiments.initialisation.basins import spread
from mechmarkov.theory import canonical

CONTEXT = 8  # tokens
CHAINS = [(0.1, 0.1), (0.9, 0.9)]
ENOUGH = 1 / 20  # of the starts, for attention to count as changing the basins
STARTS_OF_A = (0.0, -4.0)  # attention off, and past where the sides change places at p = q = 0.1


@dataclass(frozen=True, eq=False)
class Contexts:
    """The law of what the model sees of a stationary chain: last token, mean of the context, next token.

    Attributes:
        x: Last token.
        m: Mean of the context.
        weight: Probability of the pair.
        y: Probability of state 1 next.
    """

    x: Float[np.ndarray, " pair"]
    m: Float[np.ndarray, " pair"]
    weight: Float[np.ndarray, " pair"]
    y: Float[np.ndarray, " pair"]


def contexts(p: float, q: float) -> Contexts:
    """All pairs of last token and number of ones, by a sum over paths that goes token by token."""
    law = np.zeros((2, CONTEXT + 1))  # last token, number of ones
    law[0, 0], law[1, 1] = q / (p + q), p / (p + q)
    for _ in range(CONTEXT - 1):
        ones = p * law[0] + (1 - q) * law[1]
        law = np.stack([(1 - p) * law[0] + q * law[1], np.roll(ones, 1)])
    last, count = np.indices(law.shape)
    x = last.ravel().astype(float)
    return Contexts(x, count.ravel() / CONTEXT, law.ravel(), np.where(x == 0, p, 1 - q))


def loss(s: float, a: float, seen: Contexts) -> tuple[float, float, float]:
    """Cross-entropy (nats) with the best bias, and its derivatives in `s` and `a`."""
    z = s * (seen.x + a * seen.m)
    low, high = -z.max() - 40, -z.min() + 40
    c = float(np.clip(-(seen.weight @ z), low, high))
    for _ in range(100):  # Newton in the convex c, within a bracket
        f = expit(z + c)
        error = float(seen.weight @ (f - seen.y))
        low, high = (low, c) if error > 0 else (c, high)
        if abs(error) < 1e-14 or high - low < 1e-13:
            break
        step = c - error / max(float(seen.weight @ (f * (1 - f))), 1e-300)
        c = step if low < step < high else (low + high) / 2
    odds = z + c
    value = float(seen.weight @ (np.logaddexp(0, odds) - seen.y * odds))
    wrong = seen.weight * (expit(odds) - seen.y)
    return value, float(wrong @ (seen.x + a * seen.m)), float(wrong @ seen.m) * s


def turning(p: float, q: float) -> float:
    """The `a` at which the sides of the saddle change places."""
    kept = 1 - p - q
    return -CONTEXT * (1 - kept) / (1 - kept**CONTEXT)


def gradient(e: float, w: float, a: float, seen: Contexts) -> Float[np.ndarray, "3"]:
    """`dL/d(e, w, a)`."""
    _, by_s, by_a = loss(flows.slope(e, w), a, seen)
    return np.array([by_s * 2 * e * (1 + 2 * w * abs(w)), by_s * 4 * e * e * abs(w), by_a])


def flow(e: float, w: float, a: float, p: float, q: float) -> flows.Path:
    """From `(e, w, a)`, the bias at its best all along."""
    seen, best = contexts(p, q), canonical.best_slope(p, q)

    def velocity(_: float, at: np.ndarray) -> Float[np.ndarray, "3"]:
        return -gradient(*map(float, at), seen)

    def missing(at: np.ndarray) -> float:
        s = flows.slope(float(at[0]), float(at[1]))
        return max(abs(s - best), abs(s * float(at[2])))

    return flows.integrate(velocity, [e, w, a], missing)


@exactly
def attention(quick: bool) -> Measured:
    """Basins of the flow with attention, by where `a` starts, and those without it."""
    starts = 8 if quick else 150
    figure = pictures.planes(CHAINS, "Starts with a = -4, on the map without attention", (-3, 3), 3)
    drift, changed, ends, signs = 0.0, dict.fromkeys(STARTS_OF_A, 0), [], []
    for column, (p, q) in enumerate(CHAINS, 1):
        at = spread(starts, (0.02, 3), (-3, 3)).tolist()
        without = [canonical.basin(e, w, p, q) for e, w in at]
        reach = [f"without {_ends(without)}"]
        for a in STARTS_OF_A:
            paths = [flow(e, w, a, p, q) for e, w in at]
            drift = max([drift, *(float(np.ptp(canonical.energy(path.e, path.w))) for path in paths)])
            changed[a] += sum(path.end != end for path, end in zip(paths, without, strict=True))
            reach.append(f"from a = {a:g} {_ends([path.end for path in paths])}")
        ends.append(f"p = q = {p:g}: {', '.join(reach)}")
        for path in paths[:20]:
            pictures.add_path(figure, column, path.e, path.w)
        pictures.add_starts(figure, column, np.array(at), [path.end for path in paths])
        signs.append(_sides(p, q))
    total = len(CHAINS) * starts
    how = (
        f"{starts} starts a chain, e in (0, 3), w in (-3, 3), context of {CONTEXT} tokens, exact law; flow "
        "integrated in float64 (LSODA, 1e-9)"
    )
    claims = [
        Finding(
            "attention_energy",
            f"largest change along {2 * total} lines: {drift:.0e}",
            holds(drift < 1e-5),
            how + "; holds below 1e-5",
            "computed exactly",
            number=f"changes by at most {drift:.0e}",
        ),
        Finding(
            "attention_sides",
            f"sign of the change of the loss right for {sum(signs)} of {len(signs)} chains, which turn at "
            + " and ".join(f"a = {turning(p, q):.3g}" for p, q in CHAINS),
            holds(all(signs)),
            "loss at e = 0.02 against e = 0, on either side of both turning points by a tenth",
            "computed exactly",
            number=f"{sum(signs)} of {len(signs)} chains",
        ),
        *(
            Finding(
                key,
                f"another end than without attention: {changed[a]} of {total}; at the bigram, the unigram "
                "and neither: " + "; ".join(ends),
                holds(changed[a] > ENOUGH * total),
                how,
                "computed exactly",
                number=f"another end for {changed[a]} of {total}",
            )
            for key, a in zip(("attention_off", "attention_on"), STARTS_OF_A, strict=True)
        ),
    ]
    return Measured(claims, {"attention": figure})


def gaussian_attention(quick: bool) -> Measured:
    """Small Gaussian starts of the flow with attention: the bigram for p + q < 1, the unigram above."""
    starts, grid = (2, (0.2, 0.6)) if quick else (10, (0.1, 0.3, 0.6, 0.85))
    rng = np.random.default_rng(2)
    ends = {True: list[str](), False: list[str]()}  # by whether p + q is below 1
    for p, q in product(grid, grid):
        for e, w, a in rng.normal(0, 0.01, (starts, 3)):
            ends[p + q < 1].append(flow(float(e), float(w), float(a), p, q).end)
    below, above = ends[True].count("bigram"), ends[False].count("unigram")
    hits, n = below + above, len(ends[True]) + len(ends[False])
    return Measured(
        [
            Finding(
                "attention_gaussian",
                f"at the bigram {share(below, len(ends[True]))} for p + q < 1, at the unigram "
                f"{share(above, len(ends[False]))} for p + q > 1",
                holds(hits == n),
                f"flow from e, w, a ~ N(0, 0.01^2), p and q in {grid}, context of {CONTEXT} tokens, exact "
                "law",
                "sampled",
                (hits, n),
            )
        ]
    )


def _ends(ends: Sequence[str]) -> str:
    return "/".join(str(ends.count(end)) for end in ("bigram", "unigram", "neither"))


def _sides(p: float, q: float) -> bool:
    """Whether the loss a step of e away from e = 0 rises on the derived side, and falls on the other."""
    seen, a0 = contexts(p, q), turning(p, q)
    right = []
    for w in (-2.5, -0.8, -0.6, 0.5):
        for a in (0.9 * a0, 1.1 * a0):
            rises = loss(flows.slope(0.02, w), a, seen)[0] > loss(0.0, a, seen)[0]
            right.append(rises == ((1 - p - q) * (w - canonical.CANCELS) * (1 - a / a0) < 0))
    return all(right)
