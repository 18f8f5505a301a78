"""What moves information between positions, and how far predictions are from the exact filter."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from mechmarkov.probes.belief.measure import measure as belief

import mechmarkov as mm
from experiments.claims import of_seeds
from experiments.figures import bands, log_reference, marker, ranges, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

MIXERS = {
    "attention": ["model.positional_embedding_type='standard'"],
    "mamba": ["model.d_state=16", "model.d_conv=2"],
    "lstm": [],
    "mlp": [],
}
SEQUENCES = 1000
EXACT_BITS = 1e-3  # of the paper's abstract, the larger of two
MAGNITUDE = 10  # a model fails by orders of magnitude where its error is as many times the other's


def errors(run: mm.Run) -> tuple[Float[np.ndarray, " position"], float, float]:
    """KL from the exact filter to the model at each position, and over all; the same of a bigram (bits)."""
    tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx)
    laws, model = exact(run.source, tokens), predictions(run, tokens)[-1]
    best = laws["forward_filter"]
    own, pairs = (kl(best, law) / np.log(2) for law in (model, laws["bigram"]))
    return own.mean(0), float(over_sequences(own)), float(over_sequences(pairs))


def filtering(quick: bool) -> Measured:
    """One shape, four mixers, one hidden chain."""
    steps, seeds = (100, range(2)) if quick else (600, range(16))
    base = mm.load_recipe("mess3-lstm").with_set([f"steps={steps}", f"checkpoints=[{steps}]"])
    recipes = [base.with_set([f"model.mixer='{mixer}'", *changes]) for mixer, changes in MIXERS.items()]
    runs = dict(zip(MIXERS, trained(recipes, seeds), strict=True))
    found = {mixer: [errors(run) for run in group] for mixer, group in runs.items()}
    bits = {mixer: np.array([one[1] for one in group]) for mixer, group in found.items()}
    read = {
        mixer: [
            float(belief(mm.Subject.of(run, steps=[steps], sequences=128))["r2"].isel(step=-1).max())
            for run in group
        ]
        for mixer, group in runs.items()
    }
    pairs = found["attention"][0][2]
    sizes = {mixer: sum(x.numel() for x in group[0].model().parameters()) for mixer, group in runs.items()}
    told = "; ".join(f"{mixer} {over_seeds(bits[mixer], 2)}" for mixer in MIXERS)
    setting = (
        "Mess3; one layer, two heads, width 32, an MLP of 64 behind the mixer, contexts of 16, "
        f"{steps} steps of AdamW on 32 sequences; parameters: "
        + ", ".join(f"{mixer} {size}" for mixer, size in sizes.items())
    )
    attention = bits["attention"]
    each = {
        "attention_is_exact": (attention <= EXACT_BITS, told + f"; a bigram {pairs:.2g}"),
        "mlp_fails": (bits["mlp"] > MAGNITUDE * attention, told),
        "lstm_does_not_filter": (bits["lstm"] > attention, told),
        "mamba_filters": (bits["mamba"] < pairs / MAGNITUDE, told + f"; a bigram {pairs:.2g}"),
        "belief_is_read": (
            np.min([read[mixer] for mixer in MIXERS], 0) > 0.9,
            "R² of the belief: " + "; ".join(f"{mixer} {over_seeds(read[mixer])}" for mixer in MIXERS),
        ),
    }
    findings = [
        of_seeds(key, hits, f"{'' if key == 'belief_is_read' else 'bits: '}{text}", setting)
        for key, (hits, text) in each.items()
    ]
    figure = go.Figure()
    for i, mixer in enumerate(MIXERS):
        figure.add_scatter(
            x=[mixer], name=mixer, mode="markers", marker=marker(i, 12), **ranges([bits[mixer]])
        )
    figure.update_yaxes(type="log")
    log_reference(figure, pairs, "a bigram")
    titled(figure, "From the exact filter to the model (mean and range over seeds)", None, "KL (bits)")
    places = go.Figure()
    rows = {mixer: np.array([one[0] for one in group]) for mixer, group in found.items()}
    bands(places, list(range(base.model.n_ctx)), rows)
    places.update_yaxes(type="log")
    titled(places, "The same by position (median and range over seeds)", "position", "KL (bits)")
    return Measured(findings[2:3] if quick else findings, {"filtering": figure, "positions": places})
