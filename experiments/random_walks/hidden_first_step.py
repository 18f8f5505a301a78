"""Which walks hide the first step, in fractions: circles by (K, N, p), and connected graphs by N."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, permutations

import numpy as np

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured

Matrix = list[list[Fraction]]
CIRCLES, LAST, QUICK_LAST = range(2, 13), 41, 13  # K, and the longest sequence
CHANCES = [Fraction(*p) for p in ((0, 1), (1, 100), (1, 4), (1, 3), (1, 2), (2, 3), (9, 10), (1, 1))]
NODES, GRAPHS_LAST = range(2, 7), 13
WEIGHTED = 20  # graphs of each kind, with random weights


def circle(n: int, p: Fraction) -> Matrix:
    """The walk on a circle of K nodes; of two nodes both steps lead to the other one."""
    P = [[Fraction(0)] * n for _ in range(n)]
    for i in range(n):
        P[i][(i + 1) % n] += p
        P[i][(i - 1) % n] += 1 - p
    return P


def circle_hides(n: int, p: Fraction, length: int) -> bool:
    """The rule for circles."""
    whole_turns = (length - 1) % n == 0
    return bool(
        (p in (0, 1) and whole_turns)
        or (n == 2 and length % 2)
        or (n == 4 and p == Fraction(1, 2) and length % 2)
    )


def graph_hides(weights: Matrix, length: int) -> bool:
    """The rule for graphs: the weights are products `u_i u_j`, or such between two sides and N is odd."""
    n, degrees = len(weights), [sum(row) for row in weights]
    other = [weight > 0 for weight in weights[0]]  # the side across from node 0, if there are sides

    def products(share: Fraction, linked: bool) -> bool:
        return all(
            weights[i][j] * share == (degrees[i] * degrees[j] if other[i] != other[j] or not linked else 0)
            for i in range(n)
            for j in range(n)
        )

    return products(sum(degrees), False) or (length % 2 == 1 and products(sum(degrees) / 2, True))


def hidden(P: Matrix, pi: Sequence[Fraction], last: int) -> Iterator[bool]:
    """For N = 2, …, last: whether the label is independent of a token at a random earlier position.

    The walk starts in its stationary law. The first gradient of V is, up to scale, the joint law of the two:
    `diag(pi) sum_m P^m` over m = 1 … N - 1. It is flat where `sum_m P^m = (N - 1) 1 pi^T`.
    """
    n = len(P)
    total, power = [[Fraction(0)] * n for _ in P], P
    for length in range(2, last + 1):
        total = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(total, power, strict=True)]
        yield all(row[j] == (length - 1) * pi[j] for row in total for j in range(n))
        power = [[sum(a * power[m][j] for m, a in enumerate(row) if a) for j in range(n)] for row in P]


def walk(weights: Matrix, last: int) -> Iterator[bool]:
    """The same of the walk that leaves a node by its edges in proportion to their weights."""
    degrees = [sum(row) for row in weights]
    P = [[weight / degree for weight in row] for row, degree in zip(weights, degrees, strict=True)]
    return hidden(P, [degree / sum(degrees) for degree in degrees], last)


def connected_graphs(n: int) -> Iterator[Matrix]:
    """The weights of every connected graph of n nodes, one of each shape."""
    pairs = [*combinations(range(n), 2)]
    moved = [
        [pairs.index((min(s[i], s[j]), max(s[i], s[j]))) for i, j in pairs] for s in permutations(range(n))
    ]
    seen = set()
    for code in range(1 << len(pairs)):
        if code in seen:
            continue
        bits = [b for b in range(len(pairs)) if code >> b & 1]
        seen |= {sum(1 << m[b] for b in bits) for m in moved}
        W = np.zeros((n, n), dtype=int)
        for b in bits:
            W[pairs[b]] = W[pairs[b][::-1]] = 1
        if np.linalg.matrix_power(W + np.eye(n, dtype=int), n).all():
            yield [[Fraction(int(weight)) for weight in row] for row in W]


def weighted_graphs() -> Iterator[Matrix]:
    """Weights of 5 nodes: products, products between two sides, and others; no two of the first alike."""
    node = np.arange(5)
    for n in range(WEIGHTED):
        u = 1 + (n // 5**node) % 5
        sides = node < 1 + n % 4
        any_weights = 1 + ((n + 1) * node[:, None] + (n // 3) * node**2) % 7
        for W in (np.outer(u, u), np.outer(u, u) * (sides[:, None] != sides), any_weights + any_weights.T):
            yield [[Fraction(int(weight)) for weight in row] for row in W]


@exactly
def hidden_first_step(quick: bool) -> Measured:
    """The rules for circles and graphs against exact sums, in fractions."""
    last, graphs_last = (QUICK_LAST, 7) if quick else (LAST, GRAPHS_LAST)
    circles, nodes = (CIRCLES[:5], NODES[:4]) if quick else (CIRCLES, NODES)
    of_circles = [
        (said, circle_hides(n, p, length))
        for n in circles
        for p in CHANCES
        for length, said in enumerate(hidden(circle(n, p), [Fraction(1, n)] * n, last), 2)
    ]
    simple = [weights for n in nodes for weights in connected_graphs(n)]
    of_graphs = [
        (said, graph_hides(weights, length))
        for weights in (*simple, *weighted_graphs())
        for length, said in enumerate(walk(weights, graphs_last), 2)
    ]
    settings = (
        f"K from {circles[0]} to {circles[-1]}, N from 2 to {last}, p = {', '.join(map(str, CHANCES))}; "
        "uniform start",
        f"all {len(simple)} connected graphs of {nodes[0]} to {nodes[-1]} nodes, and {3 * WEIGHTED} of 5 "
        f"nodes with weights and loops; N from 2 to {graphs_last}, stationary start",
    )
    return Measured(
        [
            Finding(
                key,
                f"{sum(said == rule for said, rule in found)} of {len(found)} walks as the rule says; "
                f"hidden in {sum(said for said, _ in found)}",
                holds(all(said == rule for said, rule in found)),
                f"{setting}; exact fractions",
                "computed exactly",
                number=f"{sum(said == rule for said, rule in found)} of {len(found)} walks",
            )
            for key, found, setting in zip(
                ("hidden_circles", "hidden_graphs"), (of_circles, of_graphs), settings, strict=True
            )
        ]
    )
