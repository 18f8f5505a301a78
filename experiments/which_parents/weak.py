"""A parent too weak to be selected: what training by stages does, and training of all parts at once."""

import numpy as np
import plotly.graph_objects as go
import torch

from experiments.claims import Finding, holds, share
from experiments.figures import bands, style, titled
from experiments.harness import EVALUATION_SEED, Measured, over_seeds
from experiments.which_parents.criterion import BETA, GAMMA
from experiments.which_parents.kernel_model import EPS, Weights, agreement, started
from experiments.which_parents.shared import LENGTH, SEQUENCES, UNSEEN, away, signed_sequences
from experiments.which_parents.stages import SELECTED
from experiments.which_parents.training import BATCH, Stage, Trained, descend
from mechmarkov.theory.lag_sets import LagSet, finite_scores, lag_sets, selection_shares

FULL, QUICK = 16, 2
SETS = lag_sets(2, 2)
BOTH: LagSet = (1, 2)
ALONE: LagSet = (2,)
CASES = {"weak": (BETA, GAMMA), "strong": (GAMMA, BETA)}
RATE = 0.01
STAGES = [Stage({"c": RATE}, 400), Stage({"W": 300.0}, 100), Stage({"a": 3.0}, 100)]
AT_ONCE = [Stage({"c": 1.0, "W": 1.0, "a": 1.0}, 300)]
SETTING = (
    f"two states, {LENGTH} positions, P(y | x₁, x₂) = (1 ± y x₂ (β ± γ x₁)) / 2 with signs drawn for each "
    f"sequence, {SEQUENCES} sequences a seed in batches of {BATCH}, loss -log(output + {EPS:g})"
)


def run(case: str, seeds: int, stages: list[Stage]) -> Trained:
    """Training on one of the kernels."""
    tokens = torch.stack([signed_sequences(*CASES[case], SEQUENCES, seed)[0] for seed in range(seeds)])
    return descend(tokens, started(seeds, 2, len(SETS)), SETS, 2, stages)


def predicted(case: str, steps: np.ndarray) -> np.ndarray:
    """The first stage's shares `[step, set]` by the closed form, from scores at the start's own heads."""
    tokens, laws = signed_sequences(*CASES[case], SEQUENCES, EVALUATION_SEED)
    start = started(1, 2, len(SETS))
    with torch.no_grad():
        values = agreement(tokens[None, :, :-1], start, SETS, 2)[0].double().numpy()
    even = np.full(SEQUENCES, 1 / SEQUENCES)
    scores = finite_scores(values, tokens[:, 2:-1].numpy(), laws, even, eps=EPS)
    pace = RATE * float(start.a) / float((start.c**2).sum())
    return np.stack([selection_shares(scores, start.shares[0].numpy(), pace * step) for step in steps])


def weak(quick: bool) -> Measured:
    """β above γ, where one parent is left out, and γ above β, where none is."""
    seeds, figure, claims = QUICK if quick else FULL, go.Figure(), []
    for case, (beta, gamma) in CASES.items():
        wanted = ALONE if beta > gamma else BOTH
        trained = run(case, seeds, STAGES)
        first = trained.steps <= STAGES[0].steps
        shares = trained.shares[first][..., SETS.index(wanted)]
        closed = predicted(case, trained.steps[first])[:, SETS.index(wanted)]
        chosen = int((shares[-1] > SELECTED).sum())
        gap = float(np.abs(shares.mean(1) - closed).max())
        names = [f"β = {b}, γ = {g}" for b, g in CASES.values()]
        named = f"β = {beta}, γ = {gamma}"
        bands(figure, trained.steps[first], {named: shares.T}, names)
        line = style(names.index(named)) | {"dash": "dot", "width": 1}
        figure.add_scatter(
            x=trained.steps[first], y=closed, name=f"{named}, closed form", mode="lines", line=line
        )
        end = excess(case, trained.end)
        claims.append(
            Finding(
                "score_decides",
                f"lag{'s 1 and' if wanted == BOTH else ''} 2{' alone' if wanted == ALONE else ''} in "
                f"{share(chosen, seeds)}, share {over_seeds(shares[-1])}; the closed form is at most "
                f"{gap:.2f} from the mean share; {over_seeds(end)} nats from the law after all stages",
                holds(chosen == seeds),
                f"{seeds} seeds; β = {beta}, γ = {gamma}; shares (400 steps at {RATE:g}), heads (100 at "
                f"300), scale (100 at 3); {SETTING}",
                "trained at another",
                (chosen, seeds),
                case=f"β = {beta}, γ = {gamma}",
            )
        )
    claims.append(at_once(seeds))
    titled(figure, "The first stage, shares of the set of largest score", "step", "share")
    return Measured(claims, {"weak": figure})


def excess(case: str, end: Weights) -> np.ndarray:
    """KL (nats) from the answer's law to each model's, on unseen sequences."""
    return away(*signed_sequences(*CASES[case], UNSEEN, EVALUATION_SEED), end, SETS)


def at_once(seeds: int) -> Finding:
    """The weak parent again, all parts trained from the start."""
    end = run("weak", seeds, AT_ONCE)
    both = end.shares[-1, :, SETS.index(BOTH)]
    found = int((both > SELECTED).sum())
    return Finding(
        "at_once_finds_both",
        f"share of both {over_seeds(both)}; above {SELECTED:g} in {share(found, seeds)}; "
        f"{over_seeds(excess('weak', end.end))} nats from the law",
        holds(found == seeds),
        f"{seeds} seeds; β = {BETA}, γ = {GAMMA}; {AT_ONCE[0].steps} steps at 1 for all parts; {SETTING}",
        "trained at another",
        (found, seeds),
    )
