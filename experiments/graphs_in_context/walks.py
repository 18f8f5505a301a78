"""Does a model that traces a graph hold a belief over graphs, or go on from what it has seen?"""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from mechmarkov.probes.belief.measure import measure as belief

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import bands, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained

SEQUENCES = 300
EARLY = slice(2, 10)  # positions at which few edges have been seen
RULES = ("belief_over_graphs", "neighbours", "in_context_bigram", "in_context_unigram")


def runs_of(quick: bool, positions: str = "relative", **source: int) -> tuple[list[mm.Run], str]:
    """The ring of five nodes, free or with an endpoint; both measurements of free walks share the runs."""
    steps, seeds = (800, range(2)) if quick else (2500, range(16))
    recipe = mm.load_recipe("graph-tracing").with_set(
        [f"steps={steps}", f"checkpoints=[0, {steps}]", f"model.positional_embedding_type='{positions}'"]
    )
    recipe = recipe.replace(source=recipe.source.model_dump() | source)
    (runs,) = trained([recipe], seeds)
    setting = (
        "a ring of 5 nodes, named anew in each sequence (12 graphs); two layers of two heads, width 32, MLPs "
        f"of 128, {positions} positions, contexts of 24, {steps} steps of AdamW on 32 sequences"
    )
    return runs, setting


def apart(
    a: Float[np.ndarray, "batch position state"], b: Float[np.ndarray, "batch position state"]
) -> Float[np.ndarray, " position"]:
    """Total variation between two laws, mean over sequences."""
    return np.asarray(np.abs(a - b).sum(-1).mean(0) / 2)


def walks(quick: bool) -> Measured:
    """Train on free walks; which predictor is nearest by position, and what of the graph is read."""
    runs, setting = runs_of(quick)
    curves: dict[str, list[Float[np.ndarray, " position"]]] = {rule: [] for rule in RULES}
    told_by_stream = []
    for run in runs:
        tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx)
        laws, model = exact(run.source, tokens), predictions(run, tokens)[-1]
        for rule in RULES:
            curves[rule].append(apart(laws[rule], model))
        data = belief(mm.Subject.of(run, steps=run.steps.tolist(), sequences=128))
        told_by_stream.append(
            [float(data["r2"].isel(step=at).max()) for at in (0, -1)] + [float(data["baseline_r2"])]
        )
    early = {rule: np.array(rows)[:, EARLY].mean(1) for rule, rows in curves.items()}
    late = {rule: np.array(rows)[:, -8:].mean(1) for rule, rows in curves.items()}
    nearest = early["belief_over_graphs"] < np.min([early[rule] for rule in RULES[1:]], 0)
    n, read = len(runs), np.array(told_by_stream)  # [seed, untrained, trained, baseline]
    told = "; ".join(f"{rule}: {over_seeds(early[rule], 2)}, {over_seeds(late[rule], 2)}" for rule in RULES)
    more = read[:, 1] > np.maximum(read[:, 0], read[:, 2])
    figure = go.Figure()
    bands(
        figure,
        list(range(len(curves["neighbours"][0]))),
        {rule.replace("_", " "): np.array(rows) for rule, rows in curves.items()},
    )
    titled(figure, "From each predictor to the model (range over seeds)", "position", "total variation")
    findings = [
        Finding(
            "belief_not_induction",
            f"{share(int(nearest.sum()), n)} seeds are nearest to the belief at positions {EARLY.start} to "
            f"{EARLY.stop - 1}; total variation there and at the last 8: {told}",
            holds(nearest.all()),
            setting,
            "trained at another",
            count=(int(nearest.sum()), n),
        ),
        Finding(
            "graph_is_read",
            f"{share(int(more.sum()), n)} seeds; R² of the posterior over graphs {over_seeds(read[:, 1])}, "
            f"untrained {over_seeds(read[:, 0])}, from the law of the next token and the last 8 tokens "
            f"{over_seeds(read[:, 2])}",
            holds(more.all()),
            f"best stream, held out; {setting}",
            "trained at another",
            count=(int(more.sum()), n),
        ),
    ]
    return Measured(findings[:1] if quick else findings, {"walks": figure})
