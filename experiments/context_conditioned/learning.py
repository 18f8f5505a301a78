"""Gradient descent on prompts with exact labels: the base chain is found where the prompts determine it."""

from itertools import product

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int
from scipy.special import softmax

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.context_conditioned.theory import determined
from experiments.figures import style, titled
from experiments.harness import Measured, over_seeds, trained
from mechmarkov.models.constructions.context_conditioned import TRAINED, read_scores
from mechmarkov.theory.context_conditioned import next_laws

NEAR = 0.02  # of a probability
RATE = 4.0


def all_prompts(parts: list[list[int]], length: int) -> Int[np.ndarray, "prompt position"]:
    """Every prompt of a length whose states are all from one part."""
    return np.array([prompt for part in parts for prompt in product(part, repeat=length)])


def descend(
    prompts: Int[np.ndarray, "prompt position"], base: Float[np.ndarray, "from to"], steps: int
) -> list[Float[np.ndarray, "from to"]]:
    """The chain of an attention layer during gradient descent from zero, on the exact expected loss."""
    n = len(base)
    labels, last = next_laws(prompts, base)[:, -1], np.eye(n)[prompts[:, -1]]
    scores, chains = np.zeros((n, n)), []
    for _ in range(steps):
        chains.append(softmax(scores, axis=1))
        scores -= RATE * last.T @ (next_laws(prompts, chains[-1])[:, -1] - labels) / len(prompts)
    return chains


def within(
    parts: Int[np.ndarray, "from state"], chain: Float[np.ndarray, "from to"]
) -> Float[np.ndarray, "from to"]:
    """Each entry over the sum of its part: what the prompts determine."""
    return np.stack(
        [row / (own[:, None] == own).astype(float).dot(row) for own, row in zip(parts, chain, strict=True)]
    )


def learning(quick: bool) -> Measured:
    """Two sets of prompts on four states, exact labels; and sampled ones, by the recipe."""
    draws, steps = (3, 2000) if quick else (16, 4000)
    cases = {"all states together": [[0, 1, 2, 3]], "two pairs of states": [[0, 1], [2, 3]]}
    figure, ends = go.Figure(), {}
    for i, (name, states) in enumerate(cases.items()):
        prompts = all_prompts(states, 5)
        parts, found = determined(prompts, 4), []
        for seed in range(draws):
            base = np.random.default_rng(seed).dirichlet(2 * np.ones(4), 4)
            chains = descend(prompts, base, steps)
            whole = [float(np.abs(chain - base).max()) for chain in chains]
            inside = float(np.abs(within(parts, chains[-1]) - within(parts, base)).max())
            found.append((whole[-1], inside))
            if seed == 0:
                figure.add_scatter(y=whole, name=name, mode="lines", line=style(i))
        ends[name] = np.array(found)
    titled(figure, "Gradient descent on two sets of prompts", "step", "largest error of the base chain")
    figure.update_xaxes(type="log")
    together, pairs = ends["all states together"], ends["two pairs of states"]
    learned = int((together[:, 0] < NEAR).sum())
    lost = int(((pairs[:, 0] > NEAR) & (pairs[:, 1] < NEAR)).sum())
    seeds = range(2 if quick else 16)
    (runs,) = trained([mm.load_recipe("context-conditioned-k3")], seeds)
    errors = np.array([error(run) for run in runs])
    good = int((errors < NEAR).sum())
    setting = f"4 states, all prompts of 5, exact labels, rows from Dirichlet(2); {steps:,} steps at {RATE:g}"
    return Measured(
        [
            Finding(
                "descent_finds_it",
                f"{share(learned, draws)} base chains; error {over_seeds(together[:, 0])}",
                holds(learned == draws),
                f"{setting}; found: no entry is wrong by {NEAR:g}",
                "trained at another",
                count=(learned, draws),
            ),
            Finding(
                "pairs_leave_ratios",
                f"{share(lost, draws)} base chains; error {over_seeds(pairs[:, 0])}, within a pair "
                f"{over_seeds(pairs[:, 1])}",
                holds(lost == draws),
                f"{setting}; prompts hold states 0 and 1 or states 2 and 3 alone",
                "trained at another",
                count=(lost, draws),
            ),
            Finding(
                "recipe_finds_it",
                f"{share(good, len(runs))} seeds; error {over_seeds(errors)}",
                holds(good == len(runs)),
                "the recipe context-conditioned-k3: 3 states, prompts of 16 that the chain samples, 512 "
                f"a step, 300 steps of Adam; found: no entry is wrong by {NEAR:g}",
                "trained at another",
                count=(good, len(runs)),
            ),
        ],
        {"learning": figure},
    )


def error(run: mm.Run) -> float:
    """The largest error of the base chain that a run ends with (probability)."""
    scores = read_scores(run.states[TRAINED][-1]).double().numpy()
    return float(np.abs(softmax(scores, axis=1) - run.source.base).max())
