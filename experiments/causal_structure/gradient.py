"""The first layer's gradient at the start, against the χ² information of pairs of positions; exact."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from experiments.causal_structure.shared import CONCENTRATION, POSITIONS, STATES, random_tree
from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.figures import marker, titled
from experiments.harness import Measured
from mechmarkov.theory.causal_graph import (
    chi_squared_information,
    edge_scores,
    finite_scores,
    tree_pair_laws,
)

FULL, QUICK = 1000, 50  # graphs with a chain each
LENGTHS = (20, 40, 80, 160, 320)
SEQUENCES = 10_000
KERNEL = np.array([[0.8, 0.2], [0.45, 0.55]])
ROUNDING = 1e-9


def stationary(P: Float[np.ndarray, "state_from state_to"]) -> Float[np.ndarray, " state"]:
    """The stationary law of a chain whose entries are all above zero."""
    n = len(P)
    equations = np.vstack([P.T - np.eye(n), np.ones(n)])
    found: np.ndarray = np.linalg.lstsq(equations, np.eye(n + 1)[n], rcond=None)[0]
    return found


def drawn(seed: int) -> tuple[list[list[int]], Float[np.ndarray, "state_from state_to"]]:
    """A random tree and a chain of the prior."""
    rows = np.random.default_rng(seed).dirichlet(np.full(STATES, CONCENTRATION), STATES)
    P = rows.clip(1e-6)
    return random_tree(POSITIONS - 1, seed), P / P.sum(1, keepdims=True)


def from_finite(length: int, sequences: int) -> float:
    """Mean score of a path's edges, over drawn sequences, relative to the closed form, less 1."""
    rng, pi = np.random.default_rng(length), stationary(KERNEL)
    states = np.zeros((sequences, length), dtype=int)
    u = rng.random((sequences, length))
    states[:, 0] = u[:, 0] > pi[0]
    for i in range(1, length):
        states[:, i] = u[:, i] > KERNEL[states[:, i - 1], 0]
    scores = finite_scores(states, np.full(sequences, 1 / sequences), KERNEL)
    edge = float(chi_squared_information(pi[:, None] * KERNEL))
    return float(scores[np.arange(1, length), np.arange(length - 1)].mean() / edge - 1)


def gradient(quick: bool) -> Measured:
    """Trees and chains of the prior: where the largest entries are, and how good the closed form is."""
    n = QUICK if quick else FULL
    parents, itself, edges, worst = 0, 0, 0, 0.0
    mean_self, mean_edge = [], []
    for seed in range(n):
        graph, P = drawn(seed)
        pi = stationary(P)
        scores, information = edge_scores(graph, P, pi), chi_squared_information(tree_pair_laws(graph, P, pi))
        for i, each in enumerate(graph):
            for parent in each:
                edges += 1
                worst = max(worst, abs(scores[i, parent] - information[parent, i]))
                parents += bool(scores[i, :i].max() <= scores[i, parent] + ROUNDING)
                itself += bool(scores[i, i] > scores[i, parent] + ROUNDING)
        mean_self.append(np.trace(P) - 1)
        mean_edge.append(float(chi_squared_information(pi[:, None] * P)))
    gaps = {length: from_finite(length, SEQUENCES) for length in LENGTHS[: 3 if quick else None]}
    first, last = min(gaps), max(gaps)
    setting = f"{n} random trees of {POSITIONS - 1} positions, a chain on {STATES} states each, rows from "
    setting += f"Dirichlet({CONCENTRATION:g}); float64"
    claims = [
        Finding(
            "gradient_information",
            f"differs from the χ² information of edges by at most {worst:.0e}; sampled, the mean over a "
            f"path's edges is {gaps[first]:+.0%} off it at {first} positions and {gaps[last]:+.1%} at {last}",
            holds(worst < ROUNDING),
            f"the closed form of a long input; {setting}. Sampled: {SEQUENCES} sequences on two states",
            "sampled",
            (n * (worst < ROUNDING), n),
            number=f"off by at most {worst:.0e}",
        ),
        Finding(
            "largest_is_parent",
            f"{share(parents, edges)} edges",
            holds(parents == edges),
            f"among earlier keys; ties within {ROUNDING:g}; {setting}",
            "sampled",
            (parents, edges),
        ),
    ]
    figure = go.Figure()
    figure.add_scatter(
        x=list(gaps), y=[abs(gap) for gap in gaps.values()], mode="lines+markers", marker=marker(0)
    )
    titled(
        figure, "From a finite input to the closed form", "positions", "relative difference of edge scores"
    )
    return Measured(claims, {"gradient": figure.update_xaxes(type="log").update_yaxes(type="log")})


@exactly
def itself(quick: bool) -> Measured:
    """The key that the causal mask also allows, the position itself, on two states that change alike."""
    del quick
    stays = (0.6, 0.75, 0.9)
    found = []
    for stay in stays:
        P = np.array([[stay, 1 - stay], [1 - stay, stay]])
        found.append((float(np.trace(P)) - 1, float((P**2 / 0.5).sum() * 0.5 - 1)))
    told = "; ".join(f"{own:.2f} against {parent:.2f}" for own, parent in found)
    return Measured(
        [
            Finding(
                "itself_larger",
                f"trace(P) - 1 against the χ² information of the edge: {told}",
                holds(all(own > parent for own, parent in found)),
                f"symmetric chains on two states that stay with probability {stays}: their second "
                "eigenvalue λ for "
                "the position itself, λ² for the parent",
                "computed exactly",
                number=f"{found[1][0]:.2f} against {found[1][1]:.2f}",
            )
        ]
    )
