"""The three parts trained one after the other: which set, which lags, how sharp; and all at once."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import torch

from experiments.claims import Finding, holds, share
from experiments.figures import bands, titled
from experiments.harness import Measured, evaluation, first_time, over_seeds, when
from experiments.sampling_error import over_sequences
from experiments.which_parents.counter import lag_set_counter
from experiments.which_parents.kernel_model import EPS, started
from experiments.which_parents.shared import (
    CONCENTRATION,
    DEGREE,
    LENGTH,
    SEQUENCES,
    STATES,
    UNSEEN,
    WINDOW,
    away,
    pools,
    source,
)
from experiments.which_parents.training import BATCH, Stage, descend
from mechmarkov.theory.kernel import kl
from mechmarkov.theory.lag_sets import LagSet, lag_sets
from mechmarkov.utils.text import listed

FULL, QUICK = 16, 2
# By how many lags a set has at most: of the public code, and faster for more sets, whose scores are nearer.
STAGES = {
    2: [Stage({"c": 0.01}, 300), Stage({"W": 300.0}, 150), Stage({"a": 3.0}, 150)],
    3: [Stage({"c": 0.2}, 400), Stage({"W": 1000.0}, 500), Stage({"a": 3.0}, 150)],
}
SELECTED, COPIES = 0.9, 0.95  # of the shares, of a head's attention
# Parents, the first layer's window, and how many lags a set has at most: those of the public code, and wider.
CODES = ((1, 2), WINDOW, DEGREE)
CASES: list[tuple[LagSet, int, int]] = [CODES, ((1, 3), WINDOW, DEGREE), ((2, 5), 5, 2), ((1, 2, 4), 5, 3)]


def in_turn(degree: int) -> str:
    """The three stages in words."""
    names = ("shares", "heads", "scale")
    parts = zip(names, STAGES[degree], strict=True)
    rates = [f"{name} ({each.steps} steps at {next(iter(each.rates.values())):g})" for name, each in parts]
    return f"gradient descent on the {', the '.join(rates)}"


def setting(window: int, degree: int) -> str:
    """Sizes of data and model in words."""
    return (
        f"{STATES} states, {LENGTH} positions, Dirichlet({CONCENTRATION:g}), window {window}, sets of up to "
        f"{degree} lags, {SEQUENCES} sequences a seed in batches of {BATCH}, loss -log(output + {EPS:g})"
    )


def references(parents: LagSet) -> tuple[dict[str, float], torch.Tensor, np.ndarray]:
    """KL (nats) from the posterior mean to counts of tokens and to the head set by hand; and the data."""
    of = source(parents)
    tokens = evaluation(of, UNSEEN, LENGTH + 1)
    read = tokens[:, :-1]
    rules = of.predictors()
    best, unigram = (
        rules[f"in_context_{name}"].probabilities(read.numpy())[:, -1] for name in ("graph", "unigram")
    )
    ideal = lag_set_counter(STATES, LENGTH, lags=parents)(read)[:, -1].detach().double().numpy()
    limit = (ideal + EPS) / (1 + STATES * EPS)
    far = {
        "unigram": float(over_sequences(kl(best, unigram)[:, None])),
        "limit": float(over_sequences(kl(best, limit)[:, None])),
    }
    return far, tokens, best


def of_parents(parents: LagSet, window: int, degree: int, seeds: int, figure: go.Figure) -> list[Finding]:
    """The claims about one set of parents, after all three stages."""
    sets, (far, tokens, best) = lag_sets(window, degree), references(parents)
    start = started(seeds, window, len(sets))
    run = descend(pools(source(parents), seeds), start, sets, STATES, STAGES[degree])
    at = sets.index(parents)
    own = np.stack([run.heads[..., lag - 1, lag - 1] for lag in parents]).min(0)  # [step, model]
    ends = np.cumsum([0, *(stage.steps for stage in STAGES[degree])])
    after = np.searchsorted(run.steps, ends)
    chosen = run.shares[after[1], :, at]
    end = away(tokens, best, run.end, sets)
    selected, copied = int((chosen > SELECTED).sum()), int((own[after[2]] > COPIES).sum())
    before = away(tokens, best, replace(run.end, a=start.a), sets)
    nearer = int((end < np.minimum(before, far["unigram"])).sum())
    below = int((end < far["limit"]).sum())
    if (parents, window, degree) == CODES:
        curves = {"share of the parents' set": run.shares[..., at].T, "attention of their heads": own.T}
        bands(figure, run.steps, curves | {"scale / 10": run.a.T / 10})
    case = f"lags {listed([str(lag) for lag in parents])}"
    ours = f"{seeds} seeds; {in_turn(degree)}; {setting(window, degree)}"
    return [
        Finding(
            "selector",
            f"share of the parents' set {over_seeds(chosen)} after the first stage; above {SELECTED:g} in "
            f"{share(selected, seeds)}",
            holds(selected == seeds),
            ours,
            "trained at another",
            (selected, seeds),
            case=case,
        ),
        Finding(
            "copier",
            f"least attention of a parent's head on its lag {over_seeds(own[after[2]])} after the second "
            f"stage (start {own[0, 0]:.3f}); above {COPIES:g} in {share(copied, seeds)}",
            holds(copied == seeds),
            ours,
            "trained at another",
            (copied, seeds),
            case=case,
        ),
        Finding(
            "classifier",
            f"{over_seeds(end)} nats from the posterior mean after the third stage, {over_seeds(before)} "
            f"before it, {far['unigram']:.3g} for counts of tokens; nearer than both in "
            f"{share(nearer, seeds)}",
            holds(nearer == seeds),
            f"mean KL over {UNSEEN} unseen sequences, frequencies with eps added; {ours}",
            "trained at another",
            (nearer, seeds),
            case=case,
        ),
        Finding(
            "nearer_than_limit",
            f"in {share(below, seeds)}; {over_seeds(end)} nats at a scale of "
            f"{over_seeds(run.end.a.numpy())}, {far['limit']:.3g} for the limit",
            holds(below == seeds),
            f"the limit: `lag_set_counter`, frequencies after exact matches; {ours}",
            "trained at another",
            (below, seeds),
            case=case,
        ),
    ]


def stages(quick: bool) -> Measured:
    """Each set of parents."""
    seeds, figure = QUICK if quick else FULL, go.Figure()
    cases = [CODES] if quick else CASES
    claims = [finding for case in cases for finding in of_parents(*case, seeds, figure)]
    titled(figure, "Three stages, parents at lags 1 and 2", "step of gradient descent", "share, or as named")
    return Measured(claims, {"stages": figure})


def together(quick: bool) -> Measured:
    """All three parts at one learning rate: in which order do they move?"""
    seeds, steps = (QUICK, 300) if quick else (FULL, 1000)
    (parents, window, degree), figure = CODES, go.Figure()
    sets = lag_sets(window, degree)
    run = descend(
        pools(source(parents), seeds),
        started(seeds, window, len(sets)),
        sets,
        STATES,
        [Stage({"c": 1.0, "W": 1.0, "a": 1.0}, steps)],
        every=2,
    )
    own = np.stack([run.heads[..., lag - 1, lag - 1] for lag in parents]).min(0)
    half = 1 - (1 - own[0, 0]) / 2
    curves = {
        "share of the parents' set": (run.shares[..., sets.index(parents)].T, SELECTED),
        "attention of their heads": (own.T, half),
        "scale / 10": (run.a.T / 10, 0.3),
    }
    times = [
        np.array([first_time(row > level, run.steps, stays=3) for row in rows])
        for rows, level in curves.values()
    ]
    paper_order = int(((times[0] < times[1]) & (times[1] < times[2])).sum())
    first = int(((times[0] < times[1]) & (times[0] < times[2])).sum())
    bands(figure, run.steps, {name: rows for name, (rows, _) in curves.items()})
    titled(figure, "All at once, parents at lags 1 and 2", "step of gradient descent", "share, or as named")
    moments = ", ".join(
        f"{name} {when(moment)}" for name, moment in zip(("set", "heads", "scale"), times, strict=True)
    )
    ours = (
        f"set: share above {SELECTED:g}; heads: half of the attention elsewhere is gone, at {half:.3f}; "
        f"scale: above 3, where a match weighs {np.exp(3):.0f} others; {seeds} seeds, {steps} steps at 1 for "
        f"all parts; {setting(window, degree)}"
    )
    return Measured(
        [
            Finding(
                "set_first",
                f"first in {share(first, seeds)}; steps: {moments}",
                holds(first == seeds),
                ours,
                "trained at another",
                (first, seeds),
            ),
            Finding(
                "heads_before_scale",
                f"in {share(paper_order, seeds)}; steps: {moments}",
                holds(paper_order == seeds),
                ours,
                "trained at another",
                (paper_order, seeds),
            ),
        ],
        {"together": figure},
    )
