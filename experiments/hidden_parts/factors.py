"""Two hidden chains side by side: does the stream hold each belief, and not their product?"""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from mechmarkov.probes.belief.carried import held_out
from mechmarkov.probes.belief.measure import measure

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import fill, titled
from experiments.harness import Measured, evaluation, over_seeds, trained
from mechmarkov.interventions.belief import streams

SEQUENCES = 128
HELD = 0.95  # R² from which on a factor's belief is held
SUMMED = 0.9  # of the variance, that a sum over factors gives
FOLLOWED = 0.25  # of KL without a move, and of moves in random directions


def flat(values: Float[np.ndarray, "batch position value"]) -> Float[np.ndarray, "row value"]:
    """Positions of all sequences as rows."""
    return values.reshape(-1, values.shape[-1])


def linear_in(
    values: Float[np.ndarray, "row value"], by: Float[np.ndarray, "row feature"]
) -> Float[np.ndarray, "row value"]:
    """Least-squares fit of values by features and a constant."""
    rows = np.concatenate([by, np.ones_like(by[:, :1])], 1)
    return rows @ np.linalg.lstsq(rows, values, rcond=None)[0]


def against_a_sum(run: mm.Run, step: int) -> tuple[float, float]:
    """How far the last stream holds a sum over factors, and how well what the product adds is read from it.

    Returns:
        Of the variance that is linear in the whole belief, the share that a sum over factors' beliefs gives;
        and R² of a held-out linear reading of what no such sum gives of the whole belief.
    """
    source = run.source
    tokens = evaluation(source, SEQUENCES, run.config.n_ctx)
    belief = source.beliefs(tokens.numpy())
    of_each = np.concatenate([belief @ values for values in source.parts.values()], -1)
    stream = streams(run.model(step), tokens)[run.config.n_layers - 1]
    centred = [flat(x - x.mean(0)) for x in (stream, belief, of_each)]  # without what is of the position
    share_of_sum = linear_in(centred[0], centred[2]).var(0).sum() / linear_in(*centred[:2]).var(0).sum()
    added = belief - linear_in(flat(belief), flat(of_each)).reshape(belief.shape)
    off = ((held_out(stream, added) - added) ** 2).sum()
    return float(share_of_sum), float(1 - off / ((added - added.mean((0, 1))) ** 2).sum())


def factors(quick: bool) -> Measured:
    """Train on the product of a chain of three hidden states and one of two."""
    seeds, steps = range(3 if quick else 16), (400 if quick else 800)
    recipe = mm.load_recipe("factored-chains").with_set(
        [f"steps={steps}", f"checkpoints=[0, {steps}]", "data.batch=64"]
    )
    (runs,) = trained([recipe], seeds)
    found = [measure(mm.Subject.of(run, steps=[0, steps], sequences=SEQUENCES)) for run in runs]
    n, sums = len(runs), np.array([[against_a_sum(run, step) for step in (0, steps)] for run in runs])
    summed, added = sums[..., 0], sums[..., 1]
    r2 = np.array([data["part_r2"].sel(stream="L0").values for data in found])  # [seed, step, part]
    overlap = np.array([data["part_overlap"].values[:, 0] for data in found])
    forced, clean, random = (
        np.array([data[f"part_{kind}_kl"].values[-1] for data in found])
        for kind in ("forced", "clean", "random")
    )
    held = (r2[:, -1] > HELD).all(-1) & (summed[:, -1] > SUMMED)
    followed = (forced < FOLLOWED * np.minimum(clean, random)).all(-1)
    nearer = overlap[:, -1] < overlap[:, 0]
    figure = go.Figure()
    bars = {
        "R² of the factor of 3 states": r2[:, :, 0],
        "R² of the factor of 2 states": r2[:, :, 1],
        "variance that a sum over factors gives": summed,
    }
    for i, (name, values) in enumerate(bars.items()):
        figure.add_bar(x=["untrained", "trained"], y=np.median(values, 0), name=name, marker=fill(i))
    titled(figure, "Beliefs over two factors in the stream", None, "share (median over seeds)")
    setting = (
        "factors of 3 and 2 hidden states, 6 tokens; one layer of two heads, width 32, an MLP of 64, "
        f"contexts of 12, {steps} steps of AdamW on 64 sequences"
    )
    evidence = "trained at another"
    findings = [
        Finding(
            "factored",
            f"{share(int(held.sum()), n)} seeds; R² of the factors {over_seeds(r2[:, -1, 0])} "
            f"and {over_seeds(r2[:, -1, 1])}; of the variance that goes with the whole belief a sum over "
            f"factors gives {over_seeds(summed[:, -1])}, untrained {over_seeds(summed[:, 0])}; R² of what "
            f"the product adds {over_seeds(added[:, -1])}, untrained {over_seeds(added[:, 0])}",
            holds(held.all()),
            f"{setting}; after the only block both R² above {HELD:g}, the share above {SUMMED:g}",
            evidence,
            count=(int(held.sum()), n),
        ),
        Finding(
            "one_factor_alone",
            f"{share(int(followed.sum()), n)} seeds; KL {over_seeds(forced.mean(-1))} nats, without a "
            f"move {over_seeds(clean.mean(-1))}, in random directions {over_seeds(random.mean(-1))}",
            holds(followed.all()),
            f"{setting}; followed: KL below {FOLLOWED:g} of both",
            evidence,
            count=(int(followed.sum()), n),
        ),
    ]
    if not quick:  # three seeds do not decide it
        findings.append(
            Finding(
                "more_orthogonal",
                f"{share(int(nearer.sum()), n)} seeds; overlap {over_seeds(overlap[:, -1])}, untrained "
                f"{over_seeds(overlap[:, 0])}",
                holds(nearer.all()),
                f"{setting}; the mean squared cosine of principal angles",
                evidence,
                count=(int(nearer.sum()), n),
            )
        )
    return Measured(findings, {"factors": figure})
