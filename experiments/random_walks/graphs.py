"""Random walks on other graphs: where selection survives, and where the clean table does."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.figures import marker, titled
from experiments.harness import Measured, trained
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


def graphs(quick: bool) -> Measured:
    """Random walks on other graphs of six nodes: where selection survives, and where the clean table does."""
    names = ["path", "star"] if quick else list(GRAPHS)
    seeds, steps = range(1 if quick else 16), 50 if quick else 100
    rows = [_graph(name, seeds, steps) for name in names]
    selected = [row for row in rows if 2 * row["selects"].sum() > len(seeds)]
    cosines = [(row, *(row[key][row["selects"]].min() for key in ("to_P", "to_root"))) for row in selected]
    clean = sum(root > 0.98 and root > to_P - 0.01 for _, to_P, root in cosines)
    how = (
        f"walk-k6-half with mm.Graph, stationary start, N = 25, |p|² = 32, step size 0.3, {steps} steps, "
        f"1000 sequences, {len(seeds)} seeds"
    )
    return Measured(
        [
            Finding(
                "graphs_parent",
                "seeds with attention on the parent above 0.99, accuracy / best possible: "
                + "; ".join(
                    f"{row['name']} {row['selects'].sum()}/{len(seeds)}, {np.median(row['accuracy']):.2f}"
                    for row in rows
                ),
                holds(len(selected) == len(rows), corrected=selected),
                how
                + f". Most seeds on {', '.join(row['name'] for row in selected)}. Elsewhere attention looks "
                "at frequent states first (V's first step has pi pi^T in it), or at any lag that predicts "
                "as well",
                "trained at another",
                (len(selected), len(rows)),
            ),
            Finding(
                "graphs_table",
                "cosine of double-centred matrices, to P and to sqrt(pi P): "
                + "; ".join(f"{row['name']} {to_P:.3f}, {to_root:.3f}" for row, to_P, to_root in cosines),
                holds(clean == len(cosines)) if cosines else "untested",  # where no graph selects it
                how
                + ", the lowest of those that select the parent"
                + ". With attention on the parent V + eps = sqrt(eps² + 2 eta t pi_x P_xy): the clean table "
                "is sqrt(pi_x P_xy), and states that are rare have faint columns",
                "trained at another",
                (clean, len(cosines)) if cosines else None,
            ),
        ],
        {"graphs": _graphs_figure(rows)},
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
                "complete bipartite graph tokens tell the side alone, and an even number of them does not "
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
    attention = np.array([float(curve(run, "parent_attention")[-1]) for run in runs])
    return {
        "name": name,
        "accuracy": np.array([outcome(run).accuracy[1] for run in runs]) / float(pi @ P.max(1)),
        "attention": attention,
        "selects": attention > 0.99,
        "to_P": np.array([cosine_to(V, P) for V in tables]),
        "to_root": np.array([cosine_to(V, np.sqrt(pi[:, None] * P)) for V in tables]),
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
