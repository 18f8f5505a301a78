"""What each part is for: the bigram and the context apart, by taking parts away (Chen, Bruna & Bietti)."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import plotly.graph_objects as go
import torch

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import PALETTE, REFERENCE, titled
from experiments.harness import Measured, trained
from experiments.sampling_error import over_sequences
from experiments.where_is_the_bigram.births import fleet
from experiments.where_is_the_bigram.shared import recipe
from mechmarkov.models.components import layer_components
from mechmarkov.theory.kernel import kl

ALL, SOME = "everything trained", "embeddings frozen"


def judged(subject: mm.Subject, decoder: mm.HookedDecoder) -> tuple[float, float]:
    """KL from the bigram where no trigger stands (nats), and accuracy behind known triggers."""
    source, history = subject.source, subject.batch.history.numpy()
    free, known = ~source.trigger_mask(history), source.in_context_mask(history)
    with torch.no_grad():
        predicted = decoder(subject.batch.tokens).double().softmax(-1).numpy()
    hits = predicted[known].argmax(-1) == subject.batch.following.numpy()[known]
    return float(over_sequences(kl(subject.exact["bigram"], predicted), free)), float(hits.mean())


def fully_trained(quick: bool) -> list[mm.Run]:
    """Runs in which every parameter is trained."""
    # One seed is trained as long as the others: cut short, its ranks turn with the rounding of a sum.
    whole = recipe("triggers", init__zero=[], steps=400, checkpoints=[400], data__batch=32)
    return trained([whole], range(1 if quick else 8))[0]


def damage(run: mm.Run) -> dict[str, tuple[float, float]]:
    """For each part, with its mean in its place: what the bigram costs more (nats), what accuracy is lost."""
    subject, decoder = mm.Subject.of(run, sequences=128), run.model()
    judge = partial(judged, subject, decoder)
    nats, accuracy = judge()
    found = {}
    for part in [*layer_components(decoder.config), "direct"]:
        with mm.ablate(decoder, part, kind="mean", reference=subject.batch.tokens):
            worse = judge()
        found[part] = (worse[0] - nats, accuracy - worse[1])
    return found


def layers(quick: bool) -> Measured:
    """Which part does the bigram need most, and which the in-context predictions?"""
    runs = fully_trained(quick)
    seeds = len(runs)
    found = {
        ALL: [damage(run) for run in runs],
        SOME: [damage(run) for run in fleet(quick)[:seeds]],
    }
    how = (
        f"{seeds} seeds each; every head and MLP in turn, and the embedding straight to the unembedding, at "
        "its mean over sequences; KL from the bigram where no trigger stands, accuracy behind known triggers"
    )
    claims = []
    for name, runs in found.items():
        for index, wanted, key, unit in (
            (0, ".mlp", "mlp_bigram", "nats"),
            (1, "H", "attention_context", "accuracy"),
        ):
            most = [max(run, key=lambda part: run[part][index]) for run in runs]
            hits = sum(wanted in part for part in most)
            claims.append(
                Finding(
                    key,
                    f"largest loss without {'/'.join(sorted(set(most)))}, as claimed in "
                    f"{share(hits, len(runs))} seeds; " + _means(runs, index, unit),
                    holds(hits == len(runs)),
                    how,
                    "trained at another",
                    (hits, len(runs)),
                    case=name,
                )
            )
    return Measured(claims, {"layers": _figure(found)})


def _means(runs: Sequence[dict[str, tuple[float, float]]], index: int, unit: str) -> str:
    means = {part: np.mean([run[part][index] for run in runs]) for part in runs[0]}
    return f"mean {unit} lost: " + ", ".join(f"{part} {value:.2f}" for part, value in means.items())


def _figure(found: dict[str, list[dict[str, tuple[float, float]]]]) -> go.Figure:
    figure = go.Figure()
    for i, (name, runs) in enumerate(found.items()):
        for part in runs[0]:
            nats, lost = np.array([run[part] for run in runs]).T
            figure.add_scatter(
                x=nats,
                y=lost,
                mode="markers",
                name=f"{part}, {name}",
                marker={
                    "color": PALETTE[[*runs[0]].index(part) % len(PALETTE)],
                    "symbol": "circle" if i == 0 else "diamond-open",
                    "size": 10,
                },
            )
    figure.add_hline(y=0, line=REFERENCE)
    figure.add_vline(x=0, line=REFERENCE)
    title = "What is lost without a part: the bigram across, the context upwards"
    x, y = "bigram lost (nats from it, more than with the part)", "in-context accuracy lost"
    return titled(figure, title, x, y)
