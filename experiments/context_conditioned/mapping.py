"""The attention layer as a chain, on every sequence; and which prompts tell the base chain."""

from itertools import combinations, product

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from scipy.special import softmax

from experiments.claims import Finding, holds
from experiments.context_conditioned.theory import determined
from experiments.exactness import exactly
from experiments.figures import marker, titled
from experiments.harness import Measured
from mechmarkov.models.constructions.context_conditioned import (
    TRAINED,
    context_conditioned_model,
    read_scores,
)
from mechmarkov.theory.context_conditioned import next_laws

ROUNDING = 1e-12  # of a probability, in float64


@exactly
def mapping(quick: bool) -> Measured:
    """A layer with given scores against the chain of its scores, on all sequences up to a length."""
    lengths = {2: 8 if quick else 14, 3: 6 if quick else 9}
    figure, worst = go.Figure(), 0.0
    for i, (n_states, length) in enumerate(lengths.items()):
        tokens = torch.tensor(list(product(range(n_states), repeat=length)))
        errors = np.zeros(length)
        for k in range(1, 5):
            scores = 2 * np.sin(k * np.arange(n_states**2)).reshape(n_states, n_states)
            model = context_conditioned_model(np.exp(scores), length)
            model.double()
            with torch.no_grad():
                found = model(tokens).numpy()
            base = softmax(read_scores(model.get_parameter(TRAINED)).detach().numpy(), axis=1)
            errors = np.maximum(errors, np.abs(found - next_laws(tokens.numpy(), base)).max((0, 2)))
        worst = max(worst, float(errors.max()))
        x = np.arange(1, length + 1)
        figure.add_scatter(x=x, y=errors, name=f"{n_states} states", mode="lines+markers", marker=marker(i))
    titled(figure, "One attention layer against its chain", "position", "largest error (probability)")
    of = "; ".join(f"{n} states, all {n**length:,} sequences of {length}" for n, length in lengths.items())
    finding = Finding(
        "is_a_chain",
        f"at most {worst:.0e} from it in any probability",
        holds(worst < ROUNDING),
        f"{of}; four tables of scores up to 2 each; float64",
        "computed exactly",
    )
    return Measured([finding], {"mapping": figure})


def information(prompts: Int[np.ndarray, "prompt position"], base: Float[np.ndarray, "from to"]) -> list[int]:
    """The rank of each row's Fisher information under prompts that come alike."""
    laws = next_laws(prompts, base)[:, -1]
    per_prompt = np.einsum("pi,ij->pij", laws, np.eye(len(base))) - np.einsum("pi,pj->pij", laws, laws)
    rows = [per_prompt[prompts[:, -1] == q].sum(0) for q in range(len(base))]
    return [int(np.linalg.matrix_rank(row, tol=1e-9)) for row in rows]


@exactly
def identified(quick: bool) -> Measured:
    """Every set of prompts with one last state: full information iff connected."""
    n_states = 3 if quick else 4
    base = 1.0 + (np.arange(n_states)[:, None] + 2 * np.arange(n_states)) % 4
    base /= base.sum(1, keepdims=True)
    others = [s for size in range(n_states) for s in combinations(range(1, n_states), size)]
    cases, agree = 0, 0
    for size in range(1, len(others) + 1):
        for chosen in combinations(others, size):
            prompts = np.array([_prompt(s, n_states) for s in chosen])
            connected = len(set(determined(prompts, n_states)[0])) == 1
            agree += (information(prompts, base)[0] == n_states - 1) == connected
            cases += 1
    finding = Finding(
        "consistent_iff_connected",
        f"{agree:,} of {cases:,} sets of prompts agree",
        holds(agree == cases),
        f"{n_states} states; every set of sets of states that prompts with one last state can have; the "
        "information has full rank iff the graph is connected; one base chain with entries above 0",
        "computed exactly",
    )
    return Measured([finding], {})


def _prompt(states: tuple[int, ...], n_states: int) -> list[int]:
    """A prompt that ends in state 0 and has these states besides."""
    return [*states, *[0] * (n_states - len(states))]
