"""Training without samples: all sequences of a chain at their exact law, and the same with a sample."""

import numpy as np

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.harness import Measured, over_seeds, trained
from experiments.random_walks.common import FLOAT64, POPULATION, curve, value_matrix

K, N, STEPS, N_TRAIN = 3, 6, 1000, 1000
NEAR = 0.02  # largest relative difference of an entry


def off_the_root(run: mm.Run) -> float:
    """Largest relative difference of V's entries to `sqrt(eps^2 + 2 eta t pi P) - eps`."""
    pi, P = np.array(run.source.pi), np.array(run.source.P)
    root = np.sqrt(0.1**2 + 2 * run.steps[-1].item() * pi[:, None] * P) - 0.1
    return float(np.abs(value_matrix(run).T / root - 1).max())


def dense_without_noise(quick: bool) -> Measured:
    """Chains whose every transition is possible: V against the root law, on the whole law and on a sample."""
    base = mm.load_recipe("walk-k6-half").with_set(
        [f"model.n_ctx={N}", FLOAT64, f"steps={STEPS}", f"checkpoints=[{STEPS}]"]
    )
    chains = [
        (0.1 + 0.7 * np.random.default_rng(seed).dirichlet(np.ones(K), K)).tolist()
        for seed in range(2 if quick else 16)
    ]
    recipes = [base.replace(**{"source": {"kind": "chain", "P": P}}) for P in chains]
    laws = trained([recipe.with_set([POPULATION]) for recipe in recipes], [0])
    samples = trained([recipe.with_set([f"data={{n_train={N_TRAIN}}}"]) for recipe in recipes], [0])
    exact, sampled = ([off_the_root(run) for (run,) in runs] for runs in (laws, samples))
    looks = [float(curve(run, "parent_attention")[-1]) for (run,) in laws]
    hits = sum(off < NEAR for off in exact)
    finding = Finding(
        "root_without_noise",
        f"{share(hits, len(exact))} chains; largest relative difference of an entry {over_seeds(exact)} on "
        f"the whole law, {over_seeds(sampled)} on {N_TRAIN} sequences; attention on the parent "
        f"{over_seeds(looks)}",
        holds(hits == len(exact)),
        f"{len(exact)} chains on {K} states, entries of P at least 0.1, N = {N}, all {K**N} sequences at "
        f"their probabilities, zero start, step size 1, {STEPS} steps, float64; within: {NEAR:g}",
        "trained at another",
        (hits, len(exact)),
    )
    return Measured([finding])
