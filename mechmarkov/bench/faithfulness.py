"""CPR and CMD, as the Mechanistic Interpretability Benchmark (MIB) computes them.

Mueller et al. 2025 (arXiv 2504.13151); its code at commit b759df3 (`evaluate_area_under_curve`). A circuit of
some share of the edges keeps these clean and has all others corrupt. Its faithfulness is
(m(circuit) - m(none)) / (m(all) - m(none)) under a metric m. Areas are trapezoids over the shares.

Their code also removes edges of nodes that read nothing, or that nothing reads. Such a node writes what it
writes in the corrupt sequences, or is not read, so that this changes no number.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np

from mechmarkov.bench.case import Case, seed_of
from mechmarkov.bench.patching import corrupt_edges, losses

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LEAST = 1e-6  # between the metrics of all edges and none: less is rounding


def score_circuits(case: Case, claims: Mapping[str, float]) -> dict[str, float]:
    """`cpr` of the largest claims, `cmd` of the largest in size; nothing where none and all edges agree.

    Args:
        case: The case; faithfulness is in its metric.
        claims: By edge. Those that tie stand in an order drawn with the case: MIB leaves that open.
    """
    drawn = np.random.default_rng(seed_of(case.clean)).permutation([*case.edges])
    value = np.array([claims[name] for name in drawn])
    signed, absolute = (
        faithfulness(case, tuple(drawn[np.argsort(-x, kind="stable")].tolist()))
        for x in (value, np.abs(value))
    )
    if signed is None or absolute is None:
        return {}
    return {"cpr": area(signed), "cmd": area(tuple(abs(1 - x) for x in absolute))}


def area(values: tuple[float, ...]) -> float:
    """The trapezoidal area over `SHARES`, from the smallest share to all.

    Example:
        >>> round(area((1.0,) * 10), 3)
        0.999
    """
    points = pairwise(zip(SHARES, values, strict=True))
    return float(sum((right - left) * (low + high) / 2 for (left, low), (right, high) in points))


@lru_cache(maxsize=64)  # two methods often agree on an order
def faithfulness(case: Case, order: tuple[str, ...]) -> tuple[float, ...] | None:
    """The faithfulness of each share of edges, the first of an order."""
    sizes = [int(share * len(order)) for share in SHARES]
    value = {}
    for size in {0, *sizes}:
        with corrupt_edges(case, order[size:]):
            value[size] = float(losses(case, [case.metric]).mean())
    whole = value[len(order)] - value[0]
    if abs(whole) < LEAST:
        return None
    return tuple((value[size] - value[0]) / whole for size in sizes)
