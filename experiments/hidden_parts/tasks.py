"""One of three hidden chains per sequence: from which layer on is the task read, from which the state?"""

import numpy as np
import plotly.graph_objects as go
from mechmarkov.probes.belief.claims import first_stream_of
from mechmarkov.probes.belief.measure import measure

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import marker, ranges, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

SEQUENCES = 128
LEFT = 0.25  # of the excess of not inferring the task


def tasks(quick: bool) -> Measured:
    """Train on three tasks with the same emissions; the layers at which task and state are read."""
    seeds, steps = range(3 if quick else 16), 600
    recipe = mm.load_recipe("hidden-mixture").with_set(
        [f"steps={steps}", f"checkpoints=[{steps}]", "data.batch=32"]
    )
    (runs,) = trained([recipe], seeds)
    later, r2, infers, left = [], [], [], []
    for run in runs:
        data = measure(mm.Subject.of(run, steps=[steps], sequences=SEQUENCES)).isel(step=-1)
        names = data["stream"].values.tolist()
        at = {part: names.index(first_stream_of(data, part)[0]) for part in ("task", "state")}
        later.append(at["task"] > at["state"])
        r2.append(data["part_r2"].values)
        tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx)
        laws, model = exact(run.source, tokens), predictions(run, tokens)[-1]
        best = laws["forward_filter"]
        lost = [over_sequences(kl(best, q)[:, -8:]) for q in (model, laws["without_task"])]
        left.append(float(lost[0] / lost[1]))
        infers.append(left[-1] < LEFT)
    n, r2 = len(runs), np.array(r2)  # [seed, part, stream]
    figure = go.Figure()
    for i, part in enumerate(("task", "state")):
        figure.add_scatter(
            x=names, name=part, mode="lines+markers", marker=marker(i), **ranges(list(r2[:, i].T))
        )
    titled(figure, "What each stream tells of task and state", "stream", "R² of the belief")
    setting = (
        "three tasks on 3 hidden states and 3 tokens, which differ in how the state moves; two layers of two "
        f"heads, width 32, MLPs of 64, contexts of 24, {steps} steps of AdamW on 32 sequences"
    )
    ends = [over_seeds(r2[:, 0, i]) for i in range(r2.shape[-1])]
    states = [over_seeds(r2[:, 1, i]) for i in range(r2.shape[-1])]
    evidence = "trained at another"
    return Measured(
        [
            Finding(
                "task_after_state",
                f"{share(sum(later), n)} seeds; R² of the task {', '.join(ends)} at {', '.join(names)}, of "
                f"the state {', '.join(states)}",
                holds(all(later)),
                setting,
                evidence,
                count=(sum(later), n),
            ),
            Finding(
                "task_is_used",
                f"{share(sum(infers), n)} seeds; of the excess {over_seeds(left)} is left in 8 last places",
                holds(all(infers)),
                f"{setting}; used: at most {LEFT:g} of the excess of weighing tasks alike is left",
                evidence,
                count=(sum(infers), n),
            ),
        ],
        {"tasks": figure},
    )
