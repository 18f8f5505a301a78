"""Random walks on other graphs: where selection survives, and where the clean table does."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.figures import marker, titled
from experiments.harness import Measured, over_seeds, trained
from experiments.random_walks.common import NO_INFORMATION, cosine_to, curve, outcome, value_matrix
from mechmarkov.theory.walk.first_step import first_step_information

GRAPHS: dict[str, dict[str, object]] = {
    "circle": {"edges": [[i, (i + 1) % 6] for i in range(6)]},
    "path": {"edges": [[i, i + 1] for i in range(5)]},
    "star": {"edges": [[0, i] for i in range(1, 6)]},
    "complete": {"edges": [[i, j] for i in range(6) for j in range(i)]},
    "K(3,3)": {"edges": [[i, j] for i in range(3) for j in range(3, 6)]},
    "prism": {"edges": [[0, 1], [1, 2], [2, 0], [3, 4], [4, 5], [5, 3], [0, 3], [1, 4], [2, 5]]},
    "lollipop": {"edges": [[0, 1], [1, 2], [2, 0], [2, 3], [3, 4], [4, 5]]},
    "two triangles": {"edges": [[0, 1], [1, 2], [2, 0], [2, 3], [3, 4], [4, 5], [5, 3]]},
    "weighted circle": {"edges": [[i, (i + 1) % 6, float(1 + 3 * (i % 2) + i)] for i in range(6)]},
}
CLEAN = 0.98  # cosine of a table that is the claimed one


def graphs(quick: bool) -> Measured:
    """Random walks on other graphs of six nodes: where selection survives, and where the clean table does."""
    names = ["path", "star"] if quick else list(GRAPHS)
    seeds, steps = range(1 if quick else 16), 50 if quick else 100
    rows = [_graph(name, seeds, steps) for name in names]
    how = (
        f"walk-k6-half with mm.Graph, stationary start, N = 25, |p|² = 32, step size 0.3, {steps} steps, "
        f"1000 sequences, {len(seeds)} seeds"
    )
    findings = [_parent(row, how) for row in rows]
    findings += [_table(row, how) for row in rows if 2 * row["selects"].sum() > len(seeds)]
    return Measured(findings, {"graphs": _graphs_figure(rows)})


def _parent(row: dict[str, Any], how: str) -> Finding:
    """In how many seeds the walk on a graph selects the parent."""
    n, count = len(row["selects"]), int(row["selects"].sum())
    return Finding(
        "graphs_parent",
        f"{share(count, n)} seeds with attention on the parent above 0.99; median attention "
        f"{np.median(row['attention']):.3g}, accuracy by the best possible {np.median(row['accuracy']):.2f}",
        holds(2 * count > n),
        f"{how}. Where it is not the parent, attention looks at frequent states first (V's first step has "
        "pi pi^T in it), or at any lag that predicts as well",
        "trained at another",
        (count, n),
        case=row["name"],
    )


def _table(row: dict[str, Any], how: str) -> Finding:
    """Which table V goes to, in the seeds that select the parent."""
    to_P, to_root = row["to_P"][row["selects"]], row["to_root"][row["selects"]]
    hits = (to_root > CLEAN) & (row["one_direction"] | (to_root > to_P))
    which = "one direction on this graph" if row["one_direction"] else f"to P {over_seeds(to_P)}"
    return Finding(
        "graphs_table",
        f"{share(int(hits.sum()), len(hits))} of the seeds that select the parent; cosine of double-centred "
        f"matrices, to sqrt(pi P) {over_seeds(to_root)}, {which}",
        holds(hits.all()),
        f"{how}. With attention on the parent V + eps = sqrt(eps² + 2 eta t pi_x P_xy): the clean table is "
        f"sqrt(pi_x P_xy), and states that are rare have faint columns. Clean: above {CLEAN}, and above the "
        "cosine to P where the two differ",
        "trained at another",
        (int(hits.sum()), len(hits)),
        case=row["name"],
    )


@exactly
def graph_information(quick: bool) -> Measured:
    """What the first step tells on each graph, in closed form."""
    names = ["path", "star"] if quick else list(GRAPHS)
    found = {name: _information(mm.Graph(n_states=6, **GRAPHS[name])) for name in names}
    trapped = [name for name, information in found.items() if information < NO_INFORMATION]
    return Measured(
        [
            Finding(
                "only_deterministic",
                "first-step information: " + "; ".join(f"{name} {x:.0e}" for name, x in found.items()),
                holds(not trapped),
                f"closed form, float64, N - 1 = 24. It is nothing on {', '.join(trapped) or 'none'}: on a "
                "complete bipartite graph tokens tell only the side, and an even number of them does not "
                "even tell that; so it is with the circle of 4, which theorem 3.1 leaves out",
                "computed exactly",
                number=f"none on {', '.join(trapped) or 'none'}",
            )
        ]
    )


def _information(source: mm.Graph) -> float:
    gradient = sum(source.step_law(m).T * np.array(source.pi) for m in range(1, 25))
    return first_step_information(np.asarray(gradient))


def _graph(name: str, seeds: range, steps: int) -> dict[str, Any]:
    """One row: what becomes of the walk on a graph, by seed."""
    changes = {"source": {"kind": "graph", "n_states": 6, **GRAPHS[name]}, "model.n_ctx": 25, "steps": steps}
    more = {"model.n_positions": 63, "optimiser.lr": 0.3, "checkpoints": [steps]}
    runs = trained([mm.load_recipe("walk-k6-half").replace(**changes | more)], seeds)[0]
    source, tables = runs[0].source, [value_matrix(run) for run in runs]
    P, pi = np.array(source.P), np.array(source.pi)
    root = np.sqrt(pi[:, None] * P)
    attention = np.array([float(curve(run, "parent_attention")[-1]) for run in runs])
    return {
        "name": name,
        "accuracy": np.array([outcome(run).accuracy[1] for run in runs]) / float(pi @ P.max(1)),
        "attention": attention,
        "selects": attention > 0.99,
        "to_P": np.array([cosine_to(V, P) for V in tables]),
        "to_root": np.array([cosine_to(V, root) for V in tables]),
        "one_direction": cosine_to(root.T, P) > 0.999,
    }


def _graphs_figure(rows: list[dict[str, Any]]) -> go.Figure:
    figure = go.Figure()
    names = [row["name"] for row in rows]
    for i, (key, label) in enumerate(
        [
            ("accuracy", "accuracy / best possible"),
            ("attention", "attention on the parent"),
            ("to_P", "cosine of V^T to P"),
            ("to_root", "cosine of V^T to sqrt(pi P)"),
        ]
    ):
        figure.add_scatter(
            x=names,
            y=[np.median(row[key]) for row in rows],
            name=label,
            mode="markers",
            marker=marker(i, 11),
        )
    title = "Random walks on other graphs of 6 nodes, after training (N = 25; medians over seeds)"
    return titled(figure, title, "graph", "share, probability or cosine", yaxis_range=[-1.05, 1.1])
