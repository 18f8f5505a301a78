"""How many directions of a weight the bigram needs, and how many the context (truncation by SVD)."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import marker, style, titled
from experiments.harness import Measured
from experiments.where_is_the_bigram.layers import fully_trained, judged
from mechmarkov.interventions.weights import spectrum, truncate

WEIGHTS = ("L1.mlp.W_out", "L1H0.OV")
RANKS = (0, 1, 2, 4, 8, 16, 32, 64)
KEPT = 0.9  # of what the whole weight gives


def curve(run: mm.Run, weight: str) -> Float[np.ndarray, "rank measure"]:
    """KL from the bigram (nats) and in-context accuracy with a weight cut to each of `RANKS`."""
    subject, decoder = mm.Subject.of(run, sequences=128), run.model()
    found = spectrum(decoder, weight)
    values = []
    for rank in RANKS:
        with truncate(decoder, weight, rank, known=found):
            values.append(judged(subject, decoder))
    return np.array(values)


def needed(values: Float[np.ndarray, " rank"]) -> int | None:
    """The least rank that keeps 90 % of what the weight gives; None where it gives nothing."""
    gain = values - values[0]
    if abs(gain[-1]) < 0.01:
        return None
    enough = [rank for rank, share in zip(RANKS, gain / gain[-1], strict=True) if share >= KEPT]
    return enough[0]


def ranks(quick: bool) -> Measured:
    """The MLP and the head of the last layer, cut to a rank."""
    runs = fully_trained(quick)
    found = {weight: [curve(run, weight) for run in runs] for weight in WEIGHTS}
    n = len(runs)
    bigram, context = ([[needed(one[:, i]) for one in found[weight]] for weight in WEIGHTS] for i in (0, 1))
    mlp_for_bigram, mlp_for_context = bigram[0], context[0]
    more = sum(
        b is not None and (c is None or c < b) for b, c in zip(mlp_for_bigram, mlp_for_context, strict=True)
    )
    apart = sum(
        _loses(mlp, 0) > _loses(head, 0) and _loses(head, 1) > _loses(mlp, 1)
        for mlp, head in zip(*found.values(), strict=True)
    )
    how = (
        f"{n} seeds, everything trained; {', '.join(WEIGHTS)} cut to their first 0 to 64 directions, KL "
        "from the bigram where no trigger stands, accuracy behind known triggers"
    )
    claims = [
        Finding(
            "low_rank_bigram",
            f"ranks for 90 % of what the weight gives: bigram {_said(mlp_for_bigram)}; context "
            f"{_said(mlp_for_context)} seeds; more for the bigram in {share(more, n)} seeds",
            holds(more == n),
            how,
            "trained at another",
            (more, n),
        ),
        Finding(
            "mlp_holds_bigram",
            "; ".join(
                f"{weight} at rank 0: {np.mean([_loses(one, 0) for one in curves]):.2f} nats of the bigram, "
                f"{np.mean([_loses(one, 1) for one in curves]):.2f} of accuracy lost"
                for weight, curves in found.items()
            )
            + f"; so in {share(apart, n)} seeds",
            holds(apart == n),
            how,
            "trained at another",
            (apart, n),
        ),
    ]
    return Measured(claims, {"ranks": _figure(found)})


def _loses(values: Float[np.ndarray, "rank measure"], measure: int) -> float:
    """What rank 0 costs against the whole weight: more nats, less accuracy."""
    return float(abs(values[0, measure] - values[-1, measure]))


def _said(needed_ranks: Sequence[int | None]) -> str:
    """Each rank and in how many seeds."""
    seeds = Counter("none" if rank is None else str(rank) for rank in needed_ranks)
    return ", ".join(f"{rank} in {n}" for rank, n in seeds.most_common())


def _figure(found: dict[str, list[Float[np.ndarray, "rank measure"]]]) -> go.Figure:
    titles = ("KL from the bigram (nats)", "in-context accuracy")
    figure = make_subplots(rows=1, cols=2, subplot_titles=titles)
    for i, (weight, curves) in enumerate(found.items()):
        for column in (0, 1):
            figure.add_scatter(
                x=[str(rank) for rank in RANKS],
                y=np.mean(curves, axis=0)[:, column],
                name=weight,
                legendgroup=weight,
                showlegend=column == 0,
                mode="lines+markers",
                line=style(i),
                marker=marker(i),
                row=1,
                col=column + 1,
            )
    return titled(figure, "A weight of the last layer cut to a rank", "directions kept")
