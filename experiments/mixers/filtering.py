"""What moves information between positions, and how far predictions are from the exact filter."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Bool, Float
from mechmarkov.probes.belief.measure import measure as belief

import mechmarkov as mm
from experiments.claims import Finding, of_seeds
from experiments.figures import bands, marker, ranges, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

MIXERS = {
    "attention": ["model.positional_embedding_type='standard'"],
    "mamba": ["model.d_state=16", "model.d_conv=2"],
    "lstm": [],
    "mlp": [],
}
CHAINS = {
    "Mess3": mm.HiddenMarkov.mess3(),
    "RRXOR": mm.HiddenMarkov.rrxor(),
    "noisy switch": mm.HiddenMarkov(
        transitions=[[0.95, 0.05], [0.05, 0.95]], emissions=[[0.8, 0.2], [0.2, 0.8]]
    ),
}
SEQUENCES = 1000
EXACT_BITS = 1e-3  # of the paper's abstract, the larger of two
READ = 0.9  # R² of a belief that is read
PAIRS = {"symbol": "line-ew", "size": 40, "line": {"width": 2, "color": "#777"}}
Values = Mapping[tuple[str, str], Float[np.ndarray, " seed"]]
MAGNITUDE = 10  # a model fails by orders of magnitude where its error is as many times the other's


def errors(run: mm.Run) -> tuple[Float[np.ndarray, " position"], float, float]:
    """KL from the exact filter to the model at each position, and over all; the same of a bigram (bits)."""
    tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx)
    laws, model = exact(run.source, tokens), predictions(run, tokens)[-1]
    best = laws["forward_filter"]
    own, pairs = (kl(best, law) / np.log(2) for law in (model, laws["bigram"]))
    return own.mean(0), float(over_sequences(own)), float(over_sequences(pairs))


def filtering(quick: bool) -> Measured:
    """One shape, four mixers, three hidden chains."""
    steps, seeds = (100, range(2)) if quick else (1500, range(16))
    names = list(CHAINS)[:1] if quick else list(CHAINS)
    base = mm.load_recipe("mess3-lstm").with_set([f"steps={steps}", f"checkpoints=[{steps}]"])
    cells = list(product(names, MIXERS))
    recipes = [
        base.replace(source=CHAINS[name]).with_set([f"model.mixer='{mixer}'", *MIXERS[mixer]])
        for name, mixer in cells
    ]
    runs = dict(zip(cells, trained(recipes, seeds), strict=True))
    measured = {cell: [errors(run) for run in group] for cell, group in runs.items()}
    bits = {cell: np.array([one[1] for one in group]) for cell, group in measured.items()}
    pairs = {name: measured[name, "attention"][0][2] for name in names}
    read = {cell: np.array([_read(run) for run in group]) for cell, group in runs.items()}
    sizes = {mixer: sum(x.numel() for x in runs[names[0], mixer][0].model().parameters()) for mixer in MIXERS}
    setting = (
        f"{', '.join(names)}; one layer, two heads, width 32, an MLP of 64 behind the mixer, contexts of 16, "
        f"{steps} steps of AdamW on 32 sequences; parameters on {names[0]}: "
        + ", ".join(f"{mixer} {size}" for mixer, size in sizes.items())
    )

    def finding(key: str, of: Mapping[str, Bool[np.ndarray, " seed"]], values: Values, unit: str) -> Finding:
        """On every chain, with the seeds of each."""
        told = "; ".join(
            f"{name} {int(of[name].sum())}/{len(of[name])} ("
            + ", ".join(f"{mixer} {over_seeds(values[name, mixer], 2)}" for mixer in MIXERS)
            + (f", a bigram {pairs[name]:.2g})" if values is bits else ")")
            for name in names
        )
        return of_seeds(key, np.all([of[name] for name in names], 0), f"{unit}: {told}", setting)

    at = {mixer: {name: bits[name, mixer] for name in names} for mixer in MIXERS}
    findings = [
        finding("attention_is_exact", {n: at["attention"][n] <= EXACT_BITS for n in names}, bits, "bits"),
        finding("mlp_fails", {n: at["mlp"][n] > MAGNITUDE * at["attention"][n] for n in names}, bits, "bits"),
        finding("lstm_does_not_filter", {n: at["lstm"][n] > at["attention"][n] for n in names}, bits, "bits"),
        finding("mamba_filters", {n: at["mamba"][n] < pairs[n] / MAGNITUDE for n in names}, bits, "bits"),
        finding(
            "belief_is_read",
            {n: np.min([read[n, mixer] for mixer in MIXERS], 0) > READ for n in names},
            read,
            "R² of the belief",
        ),
    ]
    figure, places = go.Figure(), go.Figure()
    for i, mixer in enumerate(MIXERS):
        figure.add_scatter(
            x=names, name=mixer, mode="markers", marker=marker(i, 12), **ranges([at[mixer][n] for n in names])
        )
    figure.add_scatter(x=names, y=list(pairs.values()), name="a bigram", mode="markers", marker=PAIRS)
    figure.update_yaxes(type="log")
    titled(figure, "From the exact filter to the model (mean and range over seeds)", None, "KL (bits)")
    first = names[0]
    rows = {mixer: np.array([one[0] for one in measured[first, mixer]]) for mixer in MIXERS}
    bands(places, list(range(base.model.n_ctx)), rows)
    places.update_yaxes(type="log")
    titled(places, f"{first}, by position (median and range over seeds)", "position", "KL (bits)")
    return Measured(findings[2:3] if quick else findings, {"filtering": figure, "positions": places})


def _read(run: mm.Run) -> float:
    """The largest R² of the belief in the stream."""
    subject = mm.Subject.of(run, steps=[int(run.steps[-1])], sequences=128)
    return float(belief(subject)["r2"].isel(step=-1).max())
