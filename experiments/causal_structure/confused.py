"""Graphs with several parents: the pair of positions with the most information need not be an edge; exact."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from experiments.causal_structure.shared import CONCENTRATION
from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.figures import titled
from experiments.harness import Measured
from mechmarkov.theory.causal_graph import chi_squared_information

FULL, QUICK = 10_000, 500  # kernels
CONCENTRATIONS = (CONCENTRATION, 1.0, 10.0)
STATES = 3

Kernel = Float[np.ndarray, "parent_a parent_b state"]


def siblings(kernel: Kernel) -> tuple[float, float]:
    """χ² information of a child with its better parent, and with a sibling of the same two parents.

    The parents are uniform and independent, and both children are drawn from the same row.
    """
    n = len(kernel)
    with_parent = [kernel.mean(other) / n for other in (1, 0)]  # [parent, child]
    with_sibling = np.einsum("abc,abd->cd", kernel, kernel) / n**2
    return (
        max(float(chi_squared_information(joint)) for joint in with_parent),
        float(chi_squared_information(with_sibling)),
    )


def confused(quick: bool) -> Measured:
    """Kernels of the prior: how often a sibling tells more than the better parent."""
    n = QUICK if quick else FULL
    rng, counts, means = np.random.default_rng(0), {}, {}
    for concentration in CONCENTRATIONS:
        kernels = rng.dirichlet(np.full(STATES, concentration), (n, STATES, STATES))
        found = np.array([siblings(kernel) for kernel in kernels])
        counts[concentration] = int((found[:, 1] > found[:, 0]).sum())
        means[concentration] = found.mean(0)
    said = "; ".join(f"Dirichlet({c:g}): {share(counts[c], n)} kernels" for c in counts)
    mean = "; ".join(f"Dirichlet({c:g}): {m[0]:.2f} and {m[1]:.2f}" for c, m in means.items())
    claims = [
        Finding(
            "sibling_larger",
            f"{said}; means over kernels: {mean}",
            holds(2 * counts[CONCENTRATION] > n),
            f"{n} kernels on {STATES} states; a child with its better parent, against a sibling; float64",
            "sampled",
            (counts[CONCENTRATION], n),
        ),
    ]
    figure = go.Figure()
    for k, name in enumerate(("the better parent", "a sibling")):
        figure.add_bar(x=[f"Dirichlet({c:g})" for c in means], y=[m[k] for m in means.values()], name=name)
    titled(figure, "With two parents a sibling can tell more", "prior of the kernel", "χ² information, mean")
    return Measured(claims, {"confused": figure})


@exactly
def exclusive_or(quick: bool) -> Measured:
    """Two children that are both the exclusive or of two parents."""
    del quick
    a, b = np.indices((2, 2))
    parent, sibling = siblings(np.stack([a == b, a != b], axis=-1).astype(float))
    return Measured(
        [
            Finding(
                "parents_invisible",
                f"parent {parent:.0f}, sibling {sibling:.0f}",
                holds(parent == 0 and sibling == 1),
                "two states, uniform independent parents, two children that are both their exclusive or",
                "computed exactly",
            )
        ]
    )
