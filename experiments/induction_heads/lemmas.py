"""Lemmas B.1 to B.4, and what follows for the weight of bigrams against that of unigrams."""

from fractions import Fraction

import numpy as np
from einops import einsum

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured
from experiments.induction_heads.expected_gradient import chains, powers, signal

LOG_2 = float(np.log(2))
ON_DIAGONAL, OFF_DIAGONAL = 5 / 12 - 2 / 3 * LOG_2, -7 / 6 + 5 / 3 * LOG_2  # as lemma B.1 has them
PREVIOUS = -7 / 2 + 5 * LOG_2  # as lemma B.2 has it
QUADRATURE = 1e-9  # of sums over 60 x 60 nodes
LAGS = 40
RATIO = Fraction(8, 5)  # of lemma B.4


@exactly
def lemmas(quick: bool) -> Measured:
    """Their values by quadrature or in rational arithmetic."""
    moments = {k: pair_moments(k) for k in range(2, 20 if quick else 1001)}
    return Measured([_uniform_chains(), _signals(), _doubly_stochastic(), *_equal_rows(moments)])


def _uniform_chains() -> Finding:
    pair, weight = chains()
    stationary, P = powers(pair, 1)
    said = einsum(P[:, 1], stationary, "c a s, c s -> c a")
    both = einsum(weight, stationary, stationary, 0.5 - said, "c, c a, c b, c a -> a b")
    off = max(abs(both[0, 0] - ON_DIAGONAL), abs(both[0, 1] - OFF_DIAGONAL))
    return Finding(
        "lemma_B1",
        f"{both[0, 0]:.6f} and {both[0, 1]:.6f}, off by at most {off:.0e}",
        holds(off < QUADRATURE),
        "two symbols, both switching probabilities uniform, by quadrature",
        "computed exactly",
        number=f"{both[0, 0]:.4f} and {both[0, 1]:.4f}",
    )


def _signals() -> Finding:
    values = np.array([signal(n) for n in range(LAGS + 1)])
    off, others = abs(values[1] - PREVIOUS), np.delete(values, 1)
    return Finding(
        "lemma_B2",
        f"the value is met to {off:.0e}; the smallest other up to n = {LAGS} is {others.min():.4f}",
        holds(off < QUADRATURE and values[1] < others.min()),
        "two symbols, both switching probabilities uniform, by quadrature; beyond that n the lemma's own "
        "bound 1 / (2 (n + 1) (n + 2)) decides",
        "computed exactly",
        number=f"{values[1]:.4f}, others from {others.min():.4f}",
    )


def _doubly_stochastic(largest: int = 20) -> Finding:
    """(1/4) E[sum_us P_us (1/2 - (P^n)_us)] for a switching probability that is uniform."""
    x, weight = np.polynomial.legendre.leggauss(60)
    switch, weight = (x + 1) / 2, weight / 2
    stay = (1 + (1 - 2 * switch)[:, None] ** np.arange(largest + 1)) / 2
    values = weight @ ((2 * switch - 1)[:, None] * (stay - 0.5) / 2)
    others = np.delete(values, 1)
    return Finding(
        "lemma_B3",
        f"n = 0 to 3: {', '.join(f'{value:.4f}' for value in values[:4])}",
        holds(values[1] < min(0, others.min())),
        f"two symbols, n up to {largest}",
        "computed exactly",
        number=f"{values[1]:.4f}, others from {others.min():.4f}",
    )


def pair_moments(n_states: int) -> tuple[Fraction, Fraction, Fraction]:
    """E[pi_a² (1/k - |pi|²)], E[pi_a pi_b (1/k - |pi|²)] for a not b, and what is printed for the second.

    For pi uniform on the simplex, so that E|pi|² = 2 / (k + 1). The first two have the ratio
    2 + 4k / (k² + 3k - 6).
    """
    k = Fraction(n_states)
    square, fourth = 2 / (k + 1), 4 * (k + 5) / ((k + 1) * (k + 2) * (k + 3))  # E|pi|², E|pi|⁴
    on_diagonal = (square / k - fourth) / k
    everywhere = 1 / k - square  # over all pairs: the entries of pi sum to 1
    return on_diagonal, (everywhere - k * on_diagonal) / (k * (k - 1)), everywhere / k**2


def _equal_rows(moments: dict[int, tuple[Fraction, Fraction, Fraction]]) -> list[Finding]:
    most = max(moments)
    ratios = {k: float(on / off) for k, (on, off, _) in moments.items()}
    by_printed = {k: on / printed for k, (on, _, printed) in moments.items()}
    from_there = min(k for k, ratio in by_printed.items() if ratio > 2)
    wrong = sum(off != printed for _, off, printed in moments.values())
    _, off_two, printed_two = moments[2]
    heavier = ON_DIAGONAL / OFF_DIAGONAL - 1
    where = f"rational arithmetic, 2 to {most} symbols"
    return [
        Finding(
            "lemma_B4",
            f"the ratio falls from {ratios[2]:g} at two symbols to {ratios[most]:.3f} at {most}",
            holds(all(on < off < 0 and on / off >= RATIO for on, off, _ in moments.values())),
            where,
            "computed exactly",
            number=f"ratio {min(ratios.values()):.3f} to {max(ratios.values()):g}",
        ),
        Finding(
            "lemma_B4_moment",
            f"at two symbols {printed_two} is printed and {off_two} is true; they differ at {wrong} of "
            f"{len(moments)} numbers of symbols",
            holds(not wrong),
            where,
            "computed exactly",
            number=f"{off_two}, not {printed_two}",
        ),
        Finding(
            "more_bigrams",
            f"bigrams weigh {heavier:.2f} times as much as unigrams on uniform chains of two symbols; in "
            f"mixtures {ratios[2] - 1:.2f} times at 2 symbols, {ratios[7] - 1:.2f} at 7, "
            f"{ratios[most] - 1:.3f} at {most}. With the printed moment more than once from {from_there} on",
            holds(heavier > 1 and min(ratios.values()) > 2),
            "W's diagonal above its rest, against the rest; doubly stochastic chains add to neither; "
            + where,
            "computed exactly",
            number=f"heavier at each of 2 to {most} symbols",
        ),
    ]
