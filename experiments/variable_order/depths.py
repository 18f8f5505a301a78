"""A context tree per sequence: how far from context-tree weighting, by layers, with an MLP and without."""

from itertools import product

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int
from torch import Tensor

import mechmarkov as mm
from experiments.claims import of_seeds
from experiments.figures import bands, log_reference, marker, ranges, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained
from experiments.sampling_error import over_sequences
from experiments.variable_order.shared import KINDS, recipe_of
from mechmarkov.theory.kernel import kl

SEQUENCES = 2000
N_CTX = 24
LATE = 8  # positions at the end of a context
EXACT = "context_tree_weighting"
NAMES = {
    "in_context_unigram": "unigram in context",
    "in_context_bigram": "order 1 in context",
    "in_context_order_2": "order 2 in context",
}


def excess(
    run: mm.Run, tokens: Int[Tensor, "batch position"], best: Float[np.ndarray, "batch position state"]
) -> tuple[float, Float[np.ndarray, " position"]]:
    """KL from context-tree weighting to the model (nats): over all, and at each position."""
    own = kl(best, predictions(run, tokens)[-1])
    return float(over_sequences(own)), own.mean(0)


def depths(quick: bool) -> Measured:
    """One to three layers, attention only and with an MLP, on a fresh tree for every sequence."""
    layers, steps, seeds = ((1,), 200, range(2)) if quick else ((1, 2, 3), 1500, range(16))
    shapes = list(product(layers, KINDS))
    runs = trained([recipe_of(n, KINDS[kind], steps, N_CTX) for n, kind in shapes], seeds)
    source = runs[0][0].source
    tokens = evaluation(source, SEQUENCES, N_CTX)
    laws = exact(source, tokens)
    best = laws[EXACT]
    of_rules = {text: float(over_sequences(kl(best, laws[name]))) for name, text in NAMES.items()}
    found = {
        shape: [excess(run, tokens, best) for run in group] for shape, group in zip(shapes, runs, strict=True)
    }
    nats = {shape: np.array([one[0] for one in group]) for shape, group in found.items()}
    least = min(of_rules.values())
    rules = ", ".join(f"{text} {value:.3g}" for text, value in of_rules.items())

    def told(*kinds: str) -> str:
        each = [
            f"{n_layers} layer{'s' * (n_layers > 1)} {over_seeds(nats[n_layers, kind])}{of(kind, kinds)}"
            for kind in kinds
            for n_layers in layers
        ]
        return f"excess in nats: {'; '.join(each)}; {rules}"

    with_mlp, attention = "with an MLP", "attention only"
    fails = nats[1, with_mlp] > least
    hits = {"one_layer_fails": (fails, told(with_mlp))}
    if not quick:
        late = {text: float(over_sequences(kl(best, laws[name])[:, -LATE:])) for name, text in NAMES.items()}
        deep = np.array([one[1][-LATE:].mean() for one in found[2, with_mlp]])
        in_last = ", ".join(f"{text} {value:.3g}" for text, value in late.items())
        hits |= {
            "late_in_a_context": (
                deep < min(late.values()),
                f"excess in nats at the last {LATE} positions: two layers with an MLP {over_seeds(deep)}; "
                f"{in_last}",
            ),
            "two_layers_succeed": (nats[2, with_mlp] < least, told(with_mlp)),
            "more_layers_help": (nats[3, with_mlp] < nats[2, with_mlp], told(with_mlp)),
            "attention_is_not_enough": (nats[2, attention] > least, told(attention)),
            "mlp_helps": (nats[2, with_mlp] < nats[2, attention], told(attention, with_mlp)),
        }
    setting = (
        "2 symbols, trees of depth 2 at most, each node split with probability 1/2, laws from "
        f"Dirichlet(1/2); two heads a layer, width 16, an MLP of 32 or none, contexts of {N_CTX}, "
        f"{steps} steps of AdamW on 32 sequences"
    )
    findings = [of_seeds(key, true, text, setting) for key, (true, text) in hits.items()]
    return Measured(
        findings, {"depths": by_layers(layers, nats, of_rules), "positions": places(found, best, laws)}
    )


def of(kind: str, kinds: tuple[str, ...]) -> str:
    """Which kind of model, where there are two."""
    return f" ({kind})" if len(kinds) > 1 else ""


def by_layers(
    layers: tuple[int, ...],
    nats: dict[tuple[int, str], Float[np.ndarray, " seed"]],
    of_rules: dict[str, float],
) -> go.Figure:
    """Excess by layers, next to that of the rules of one order."""
    figure = go.Figure()
    for i, kind in enumerate(KINDS):
        figure.add_scatter(
            x=[str(n) for n in layers],
            name=kind,
            mode="lines+markers",
            marker=marker(i),
            **ranges([nats[n, kind] for n in layers]),
        )
    figure.update_yaxes(type="log")
    for text, value in of_rules.items():
        log_reference(figure, value, text)
    title = "From context-tree weighting to the model (mean and range over seeds)"
    return titled(figure, title, "layers", "KL (nats)")


def places(
    found: dict[tuple[int, str], list[tuple[float, Float[np.ndarray, " position"]]]],
    best: Float[np.ndarray, "batch position state"],
    laws: dict[str, Float[np.ndarray, "batch position state"]],
) -> go.Figure:
    """The same at each position."""
    figure = go.Figure()
    rows = {
        f"{n} layer{'s' * (n > 1)}, {kind}": np.array([one[1] for one in group])
        for (n, kind), group in found.items()
        if n < 3
    }
    rows |= {text: kl(best, laws[name]).mean(0)[None] for name, text in list(NAMES.items())[1:]}
    bands(figure, list(range(N_CTX)), rows)
    return titled(figure, "The same by position (median and range over seeds)", "position", "KL (nats)")
