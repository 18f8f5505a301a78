"""The weights set by hand, on every sequence: exact where the paper proves it, and at higher orders."""

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.figures import marker, titled
from experiments.harness import Measured, every_sequence
from mechmarkov.models.constructions.counting_mamba import counting_mamba

ROUNDING = 1e-6  # of a probability, in float32
FULL, QUICK = 12, 6  # states of a sequence
BETA = 1.0


def error(n_states: int, order: int, length: int) -> Float[np.ndarray, " position"]:
    """The largest difference of a probability from the add-beta estimator, by position."""
    tokens = every_sequence(n_states, length)
    source = mm.DirichletChains(n_states=n_states, order=order, start="uniform", concentration=BETA)
    model = counting_mamba(n_states, length, order=order, concentration=BETA)
    with torch.no_grad():
        scores = model(tokens).double().numpy()
    law = source.best().probabilities(tokens.numpy())
    return np.abs(scores / scores.sum(-1, keepdims=True) - law).max((0, 2))


@exactly
def construction(quick: bool) -> Measured:
    """Hand-set scores, over their sum, against the exact predictor."""
    length = QUICK if quick else FULL
    cases = {"order 1, 2 states": (2, 1, length), "order 1, 3 states": (3, 1, min(length, 8))}
    cases |= {f"order {k}, 2 states": (2, k, length) for k in (2, 3, 4)}
    found = {name: error(*case) for name, case in cases.items()}
    claims = []
    for key, first in (("zero_represents", True), ("higher_represents", False)):
        of = {name: errors for name, errors in found.items() if ("order 1" in name) == first}
        worst = max(float(errors.max()) for errors in of.values())
        claims.append(
            Finding(
                key,
                f"at most {worst:.0e} from it in any probability",
                holds(worst < ROUNDING),
                f"{'; '.join(f'{name}, all sequences of {len(e)}' for name, e in of.items())}; β = {BETA:g}; "
                "float32, scores divided by their sum, window k + 1, "
                + ("channels S, d = 2S, a state of S" if first else "a ReLU behind it, a state of 2^k"),
                "computed exactly",
                number=f"off by at most {worst:.0e}",
            )
        )
    figure = go.Figure()
    for i, (name, errors) in enumerate(found.items()):
        x = np.arange(1, len(errors) + 1)
        figure.add_scatter(x=x, y=errors, name=name, mode="lines+markers", marker=marker(i))
    titled(figure, "Hand-set weights against the add-β estimator", "position", "largest error (probability)")
    return Measured(claims, {"construction": figure})
