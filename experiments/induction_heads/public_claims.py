"""Phases and heads at the settings of the public code."""

from functools import partial

import numpy as np

import mechmarkov as mm
from experiments.claims import Finding
from experiments.harness import Measured, kept
from experiments.induction_heads import public
from experiments.induction_heads.holes import look, previous_claim
from experiments.induction_heads.panels import over_training
from experiments.induction_heads.phases import LOWEST, SYMBOLS, phase_claims
from experiments.induction_heads.shared import distances, gained

SEEDS = {2: 16}
EVERY = 50


def public_settings(quick: bool) -> Measured:
    """Two symbols as in the public code: length 100, dropout, 2000 steps. There is no quick run of it."""
    findings: list[Finding] = []
    panels = {}
    for n, seeds in ({} if quick else SEEDS).items():
        runs = [_run(n, seed) for seed in range(seeds)]
        data = [distances(run) for run in runs]
        name = f"{SYMBOLS[n]}, public settings"
        how = (
            f"the public code's model and settings: length {public.LENGTH}, batch {public.BATCH}, learning "
            f"rate {public.LEARNING_RATE:g}, dropout {public.DROPOUT} of embeddings, lag vectors, patterns "
            f"and outputs, weight decay on matrices alone, {public.STEPS} steps; {seeds} seeds, on a CPU"
        )
        findings += phase_claims(name, data, how, "trained at the paper's setting")
        findings.append(
            previous_claim(name, [look(run) for run in runs], how, "trained at the paper's setting")
        )
        gains = np.stack([gained(one).clip(LOWEST) for one in data], axis=1)
        panels[SYMBOLS[n]] = (data[0]["step"].values, {"share of the bigram's gain": gains})
    figures = {"public": over_training(panels, "At the public settings", "share")} if panels else {}
    return Measured(findings, figures)


def _run(n: int, seed: int) -> mm.Run:
    source = mm.DirichletChains(n_states=n, start="uniform")
    train = partial(public.train, source, seed, public.STEPS, EVERY)
    return kept(f"public {n} {seed} {public.STEPS} {EVERY}", train)
