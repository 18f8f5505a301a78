"""Walks that end at a known node: do models follow a law that depends on how far the end is?"""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from experiments.claims import Finding, holds, share
from experiments.figures import bands, titled
from experiments.graphs_in_context.walks import SEQUENCES, apart, runs_of
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions
from mechmarkov.sources import RelabelledGraph

LAST = 4  # predictions before the end
ENDPOINT, AT = 0, 24  # the state after the last that models read


def endpoints(quick: bool) -> Measured:
    """Train on walks that end at node 0; the conditioned law against the free one."""
    runs, setting = runs_of(quick, "standard", endpoint=ENDPOINT, at=AT)
    free = RelabelledGraph(graph=runs[0].source.graph).best()
    curves: dict[str, list[Float[np.ndarray, " position"]]] = {
        "law with the endpoint": [],
        "law of a free walk": [],
    }
    for run in runs:
        tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx)
        own, model = exact(run.source, tokens)["belief_over_graphs"], predictions(run, tokens)[-1]
        curves["law with the endpoint"].append(apart(own, model))
        curves["law of a free walk"].append(apart(free.probabilities(tokens.numpy()), model))
    rows = {name: np.array(values) for name, values in curves.items()}
    ends = {name: values[:, -LAST:-1].mean(1) for name, values in rows.items()}
    follows, n = ends["law with the endpoint"] < ends["law of a free walk"], len(runs)
    figure = go.Figure()
    bands(figure, list(range(AT)), rows)
    titled(figure, f"Walks that end at node {ENDPOINT} (range over seeds)", "position", "total variation")
    finding = Finding(
        "endpoint_is_followed",
        f"{share(int(follows.sum()), n)} seeds; total variation {LAST} to 2 steps before the end from the "
        f"law with the endpoint {over_seeds(ends['law with the endpoint'])}, from that of a free walk "
        f"{over_seeds(ends['law of a free walk'])}",
        holds(follows.all()),
        f"every walk is at node {ENDPOINT} at position {AT}, the last that is predicted; {setting}",
        "trained at another",
        count=(int(follows.sum()), n),
    )
    return Measured([finding], {"endpoints": figure})
