"""Sub-n-grams: the stages a run goes through, and the gradient at each of them."""

from functools import partial

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.figures import intervals, style, titled
from experiments.harness import Measured
from experiments.order_and_lag.orders import NAMES, by_order, distances
from experiments.order_and_lag.simplified import Simplified, gradient_norm, limit, sub_n_gram

SHARP = 30.0  # the logits of the constructed heads: the rest of the attention is e^-30
CHAIN = {"n_states": 2, "start": "uniform", "order": 2}
VANISHED = 0.1  # of the same prediction with the next head in place


Norm = tuple[float, float, float]  # with a low and a high end


def everything(by_position: Tensor, by_token: Tensor) -> list[Tensor]:
    """All logits are parameters, as in the authors' code: keys hold their own token too."""
    return [by_position, by_token]


def carried_keys(by_position: Tensor, by_token: Tensor) -> list[Tensor]:
    """Keys hold what the heads carry, and not their own token."""
    return [by_position, by_token[:, :, 1:]]


def stages(quick: bool) -> Measured:
    """Which k-gram is nearest over training, for the chains of the highest order."""
    found = by_order(quick)
    order = max(order for order, layers in found if layers == 2)
    runs = found[order, 2]
    passed = [nearest(run) for run in runs]
    expected = list(NAMES)[1 : order + 2]
    ok = all(in_turn(one, expected) for one in passed)
    claim = Finding(
        "stages_in_turn",
        "; ".join(
            f"seed {run.seed}: " + ", ".join(f"{NAMES[name]} from step {step}" for name, step in one)
            for run, one in zip(runs, passed, strict=True)
        ),
        holds(ok),
        f"chains of order {order}, two layers of one head: the predictor that is nearest by KL at each of "
        f"{runs[0].n_steps} checkpoints; holds where unigram, bigram and so on come first nearest in that "
        "order, none left out",
        "trained at another",
        (sum(in_turn(one, expected) for one in passed), len(passed)),
    )
    return Measured([claim], {"stages": over_training(runs[0])})


def nearest(run: mm.Run) -> list[tuple[str, int]]:
    """The nearest predictor over training, with the step from which it is, once for each change."""
    table = distances(run)
    found: list[tuple[str, int]] = []
    for i, step in enumerate(run.steps.tolist()):
        name = min(table, key=lambda name: table[name][i])
        if not found or found[-1][0] != name:
            found.append((name, step))
    return found


def in_turn(passed: list[tuple[str, int]], expected: list[str]) -> bool:
    """Whether the expected predictors are first nearest in that order, and the last of them at the end."""
    first = dict(reversed(passed))
    steps = [first.get(name, -1) for name in expected]
    return -1 not in steps and steps == sorted(steps) and passed[-1][0] == expected[-1]


def gradients(quick: bool) -> Measured:
    """The gradient at constructed sub-n-grams of the simplified transformer, over the sequence's length."""
    source = mm.DirichletChains(**CHAIN)
    lengths, sequences = ((16, 64), 12_000) if quick else ((16, 64, 256), 40_000)
    measure = partial(norms, source, lengths, sequences)
    names = ("unigram", "bigram")
    keys = {name: measure(looks_back, carried_keys) for looks_back, name in enumerate(names)}
    own = {name: measure(looks_back, everything) for looks_back, name in enumerate(names)}
    ready = {name: measure(looks_back, carried_keys, ready=True) for looks_back, name in enumerate(names)}
    limits = dict(zip(names, limit(source, 20_000 if quick else 200_000), strict=True))
    vanish = all(vanishing(keys[name], ready[name]) for name in names)
    left = all(value > 5 * error for value, error in limits.values())
    claims = [
        Finding(
            "sub_n_gram_gradient",
            described(keys, lengths) + "; for comparison " + described(ready, lengths),
            holds(vanish),
            "their simplified transformer, attention logits of 30, chains of order 2 on two symbols: norm "
            f"of the population gradient from {sequences} sequences by products of independent parts, with "
            "two sampling errors. Heads that are not in use are uniform, and keys hold what heads carry. "
            "The comparison is the same prediction with the unused head already in its later place: that is "
            "no stationary point. Holds where the norm at the longest T is below a tenth of that",
            "sampled",
            sample=(sequences, *keys["unigram"][-1][1:]),
            number=_norm(keys["unigram"][-1]),
        ),
        Finding(
            "own_token_keys",
            described(own, lengths)
            + "; limits "
            + ", ".join(f"{name} {value:.4f} ± {error:.4f}" for name, (value, error) in limits.items()),
            holds(not left),
            "as above; the limits are exact in the sequence, a mean over kernels: E[1(x_t = a)(P(b | x_t) - "
            "pi_b)] at the unigram, E[1(x_{t-1} = a)(P(b | x_{t-1}, x_t) - P(b | x_t))] at the bigram. Each "
            "is a covariance of tokens with a mean over random kernels that is not zero, since chains that "
            "switch visit their states evenly and weigh more than those that stay: the point is left",
            "sampled",
            sample=(sequences, *own["unigram"][-1][1:]),
            number=_norm(own["unigram"][-1]),
        ),
    ]
    return Measured(claims, {"gradients": over_length(lengths, keys, own, ready, limits)})


def _norm(found: Norm) -> str:
    """A norm with its interval, as text."""
    value, low, high = found
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


def norms(
    source: mm.DirichletChains,
    lengths: tuple[int, ...],
    sequences: int,
    looks_back: int,
    keep: object,
    ready: bool = False,
) -> list[Norm]:
    """The gradient's norm at each length; `ready` puts the next head in its later place."""
    found = []
    for length in lengths:
        model: Simplified = sub_n_gram(source.n_states, length, source.order, looks_back, SHARP)
        if ready:
            model.by_position[looks_back].diagonal(-looks_back - 1).fill_(SHARP)
        generator = torch.Generator().manual_seed(0)
        found.append(gradient_norm(model, source, length, sequences, generator, keep))
    return found


def vanishing(values: list[Norm], comparison: list[Norm]) -> bool:
    """Whether the norm at the longest length, at its high end, is below a tenth of the comparison's."""
    return values[-1][2] < VANISHED * comparison[-1][0]


def described(values: dict[str, list[Norm]], lengths: tuple[int, ...]) -> str:
    """The norms at the shortest and the longest length."""
    return ", ".join(
        f"{name} "
        + ", ".join(
            f"{n:.4f} [{low:.4f}, {high:.4f}] at T = {t}" for t, (n, low, high) in ends(lengths, found)
        )
        for name, found in values.items()
    )


def ends(lengths: tuple[int, ...], values: list[Norm]) -> list[tuple[int, Norm]]:
    """The shortest and the longest length."""
    return [(lengths[i], values[i]) for i in (0, -1)]


def over_training(run: mm.Run) -> go.Figure:
    """KL to each k-gram over training."""
    figure = go.Figure()
    for i, (name, values) in enumerate(distances(run).items()):
        figure.add_scatter(
            x=run.steps[1:].tolist(),
            y=np.round(values[1:], 5).tolist(),
            name=NAMES[name],
            mode="lines+markers",
            line=style(i),
        )
    figure.update_xaxes(type="log").update_yaxes(rangemode="tozero")
    title = "One run on chains of order 2: the nearest in-context k-gram changes in turn"
    return titled(figure, title, "training step", "KL to the model (nats)")


def over_length(
    lengths: tuple[int, ...],
    keys: dict[str, list[Norm]],
    own: dict[str, list[Norm]],
    ready: dict[str, list[Norm]],
    limits: dict[str, tuple[float, float]],
) -> go.Figure:
    """The gradient's norm over the sequence's length."""
    figure = go.Figure()
    kinds = {"carried keys": (keys, "solid"), "own token too": (own, "dash"), "head in place": (ready, "dot")}
    for i, name in enumerate(keys):
        for label, (values, dash) in kinds.items():
            triples = [(low, value, high) for value, low, high in values[name]]
            figure.add_scatter(
                x=list(lengths),
                **intervals(triples),
                name=f"{name}, {label}",
                mode="lines+markers",
                line=style(i, dash=dash),
            )
        figure.add_hline(y=limits[name][0], line=style(i, width=1, dash="longdashdot"))
    figure.update_xaxes(type="log", tickvals=list(lengths)).update_yaxes(rangemode="tozero")
    title = "Gradient at constructed sub-n-grams (thin lines: the limit with own tokens in the keys)"
    return titled(figure, title, "sequence length T", "norm of the population gradient (nats)")
