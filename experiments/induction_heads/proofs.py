"""Proposition 3.1: two steps of gradient descent on the minimal model, two symbols, in expectation."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.figures import marker, titled
from experiments.harness import Measured
from experiments.induction_heads.expected_gradient import expected, signal
from experiments.induction_heads.lemmas import OFF_DIAGONAL, ON_DIAGONAL, PREVIOUS

LAGS = 40
SHOWN = 12
SECOND_STEP = 4000.0  # in units of T: the softmax over lags needs a v_1 of several log T
WHERE = "two symbols, both switching probabilities uniform, exact expectations by quadrature"

Gradients = dict[int, tuple[Float[np.ndarray, "state key_state"], Float[np.ndarray, " lag"]]]


@exactly
def proofs(quick: bool) -> Measured:
    """Both steps at several lengths T, and what each lag gets of the second."""
    gradients = {length: expected(length) for length in ((16, 32) if quick else (64, 256, 1024))}
    pulls = -np.array([signal(n) for n in range(LAGS + 1)])
    figure = go.Figure()
    figure.add_scatter(
        x=np.arange(SHOWN), y=pulls[:SHOWN], mode="lines+markers", marker=marker(0, 8), showlegend=False
    )
    titled(figure, "What the second step gives each lag", "lag", "change of v, in units of log T")
    findings = [_first_step(gradients), *_second_step(gradients), _even_odd(pulls)]
    return Measured(findings, {"lags": figure})


def _first_step(gradients: Gradients) -> Finding:
    rest = []
    for length, (W, _) in gradients.items():
        expansion = np.array([[ON_DIAGONAL, OFF_DIAGONAL], [OFF_DIAGONAL, ON_DIAGONAL]]) * (length + 1)
        rest.append(float(np.abs(W - expansion).max() / np.log(length)))
    identity, ones = OFF_DIAGONAL - ON_DIAGONAL, -OFF_DIAGONAL
    return Finding(
        "first_step_minimal",
        f"W = step (T ({identity:.4f} I + {ones:.4f} 1 1ᵀ) + E), E at most {max(rest):.3f} log T at "
        f"T = {', '.join(map(str, gradients))}",
        holds(max(rest) < identity + ones),  # so that log T is small next to T
        WHERE,
        "computed exactly",
        number=f"T ({identity:.4f} I + {ones:.4f} 1 1ᵀ)",
    )


def _second_step(gradients: Gradients) -> list[Finding]:
    """After a first step of 1/T², as the proposition has it."""
    lengths = np.array([*gradients])
    moved = [-v * (W[0, 1] - W[0, 0]) / length**2 for length, (W, v) in gradients.items()]
    rate = np.array([v[1] for v in moved]) / np.log(lengths)  # of a second step of 1
    scaled = rate * lengths
    others = np.array([np.delete(v, 1).max() / v[1] for v in moved])
    weight = np.array(
        [_softmax(SECOND_STEP * length * v)[1] for length, v in zip(lengths, moved, strict=True)]
    )
    limit = (ON_DIAGONAL - OFF_DIAGONAL) * PREVIOUS  # of T v_1 / log T
    steady, grows = (scaled > limit / 2).all() and (scaled < limit).all(), rate[-1] > rate[0] / 2
    where = f"T = {', '.join(map(str, lengths))}; {WHERE}, to leading order in W"
    return [
        Finding(
            "second_step_rate",
            f"v_1 / (step log T) is {_three(rate)}, which falls as 1/T; times T it is {_three(scaled)} and "
            f"tends to {limit:.2g}",
            holds(grows, steady),
            f"a first step of 1/T²; {where}",
            "computed exactly",
            number=f"T v_1 / (step log T): {_three(scaled)}",
        ),
        Finding(
            "second_step_largest",
            f"the largest other entry of v is {_three(others)} of v_1",
            holds(others.max() < 1),
            where,
            "computed exactly",
            number=f"at most {others.max():.2f} of v_1",
        ),
        Finding(
            "two_steps",
            f"layer 1 gives the previous token at least {weight.min():.4f}",
            holds(weight.min() > 0.9),
            f"a first step of 1/T² and a second of {SECOND_STEP:g} T; {where}",
            "computed exactly",
            number=f"at least {weight.min():.4f} on the previous token",
        ),
    ]


def _softmax(scores: Float[np.ndarray, " lag"]) -> Float[np.ndarray, " lag"]:
    weight = np.exp(scores - scores.max())
    return np.asarray(weight / weight.sum())


def _even_odd(pulls: Float[np.ndarray, " lag"]) -> Finding:
    even = np.arange(2, LAGS, 2)
    below = (pulls[even] < np.minimum(pulls[even - 1], pulls[even + 1])).all()
    shown = ", ".join(f"{pull:.4f}" for pull in pulls[:6])
    return Finding(
        "even_odd",
        f"lags 0 to 5 get {shown} log T; up to lag {LAGS} each even one gets less than its neighbours",
        holds(below and pulls[0] < pulls[1]),
        "lag n gets the mean of a term times the n-th power of the second eigenvalue, and odd powers have "
        f"the other sign; {WHERE}",
        "computed exactly",
        number=f"lags 0 to 5: {shown}",
    )


def _three(values: Float[np.ndarray, " length"]) -> str:
    return ", ".join(f"{value:.2g}" for value in values)
