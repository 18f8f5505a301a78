"""The exact posterior mean, and runs with other positions, trained longer."""

import numpy as np
import torch

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.harness import Measured, evaluation, every_sequence, over_seeds, trained
from experiments.induction_heads.depths import circuit
from experiments.induction_heads.panels import over_training
from experiments.induction_heads.phases import CLOSE, in_order
from experiments.induction_heads.posterior import posterior_mean
from experiments.induction_heads.shared import BIGRAM, UNIGRAM, distances, late, nearest
from experiments.sampling_error import over_sequences
from mechmarkov.theory import predictors
from mechmarkov.theory.kernel import kl

SAME = 1e-4  # float32 rounding in a softmax moves a probability by less
CLOSE_NATS = 0.01  # as the probe `behaviour` has it
SEEDS = 16
EXACT = 1e-10  # of probabilities in float64: sums of 64 x 64 terms


@exactly
def add_one(quick: bool) -> Measured:
    """Add-one counts of pairs against the posterior mean on all sequences, from either start."""
    length = 8 if quick else 12
    tokens = every_sequence(2, length).numpy()
    counts = predictors.in_context_bigram(tokens, 2)
    off, stationary_off = (
        float(np.abs(posterior_mean(tokens, stationary=stationary) - counts).max())
        for stationary in (False, True)
    )
    first = float(posterior_mean(np.zeros((1, 1), dtype=int), stationary=True)[0, 0, 0])
    return Measured(
        [
            Finding(
                "bigram_optimal",
                f"differ by up to {stationary_off:.2g} from a stationary start: after one token the mean "
                f"probability of staying is {first:.4f}; by {off:.0e} from a uniform one",
                holds(stationary_off < EXACT, off < EXACT),
                f"two symbols, rows from Dirichlet(1); all {2**length} sequences of {length}; the posterior "
                "mean by 64 x 64 Gauss-Legendre nodes",
                "computed exactly",
                number=f"off by up to {stationary_off:.2g}",
            ),
            Finding(
                "add_one_exact",
                f"differ by at most {off:.0e} in any probability",
                holds(off < EXACT),
                f"two symbols, rows from Dirichlet(1), a uniform start; all {2**length} sequences of "
                f"{length}; the "
                "posterior mean by 64 x 64 Gauss-Legendre nodes",
                "computed exactly",
                number=f"off by at most {off:.0e}",
            ),
        ]
    )


@exactly
def equal_tokens(quick: bool) -> Measured:
    """What attention with positions in its scores alone says of one token, and of 64 of the same."""
    del quick
    run = mm.example("induction")
    length, n = run.config.n_ctx, run.source.n_states
    alike = torch.zeros(1, length, dtype=torch.long)
    with torch.no_grad():
        one = run.model()(alike)[0].double().softmax(-1)[:, 0].numpy()
    exact = predictors.in_context_bigram(alike.numpy(), n)[0, :, 0]
    return Measured(
        [
            Finding(
                "optimum_everywhere",
                f"after one token the model gives it {one[0]:.4f}, after {length} of the same "
                f"{one[-1]:.4f}; exact {exact[0]:.4f} and {exact[-1]:.4f}",
                holds(np.abs(one[-1] - one[0]) <= SAME),
                "attention only, positions in the scores alone: attention averages and does not count, so "
                "where all tokens are alike every position has the same logits, for any weights, relative "
                "positions included; the bundled run on one sequence of equal tokens",
                "computed exactly",
                number=f"{one[0]:.4f} and {one[-1]:.4f}",
            )
        ]
    )


def posterior(quick: bool) -> Measured:
    """Smoothed counts against the exact posterior mean, for two symbols and a stationary start."""
    batch, length = (60, 24) if quick else (1000, 64)
    tokens = evaluation(mm.DirichletChains(n_states=2), batch, length).numpy()
    counts = predictors.in_context_bigram(tokens, 2)
    best = posterior_mean(tokens, stationary=True)
    at = kl(best, counts)
    gap = kl(best, predictors.in_context_unigram(tokens, 2))
    above, unigram = float(over_sequences(at)), float(over_sequences(gap))
    half = 1.96 * float(at.mean(1).std(ddof=1)) / batch**0.5
    found = Finding(
        "add_one_stationary",
        f"{above:.5f} nats above the exact posterior mean (the unigram: {unigram:.3f}); at "
        f"most {at.mean(0).max():.4f} at one position",
        holds(above + half < CLOSE_NATS),
        "two symbols, rows from Dirichlet(1), the start in the stationary law, so that the first state "
        "tells of "
        "the chain: the exact mean is an integral over both rows (64 x 64 Gauss-Legendre nodes). "
        f"{batch} sequences of {length}; close: below {CLOSE_NATS:g} nats",
        "sampled",
        sample=(batch, above - half, above + half),
        number=f"{above:.4f} [{above - half:.4f}, {above + half:.4f}] nats",
    )
    steps = np.arange(1, length + 1)
    curves = {
        "add-one counts of pairs": np.stack([at.mean(0)], axis=1),
        "add-one counts of tokens": np.stack([gap.mean(0)], axis=1),
    }
    figure = over_training(
        {"two symbols, stationary start": (steps, curves)},
        "Loss above the exact posterior mean, by position",
        "KL from the posterior mean (nats)",
        x_title="tokens seen",
    )
    return Measured([found], {"posterior": figure.update_yaxes(type="log")})


def positions(quick: bool) -> Measured:
    """Runs with absolute positions in queries and keys, trained longer, as the bundled one is."""
    longer = mm.load_recipe("in-context-k3-shortformer")
    (runs,) = [[mm.example("induction")]] if quick else trained([longer], range(SEEDS))
    data = [distances(run, sequences=128 if quick else 512) for run in runs]
    labels, places = [nearest(one) for one in data], [circuit(run) for run in runs]
    ends = np.array([float(late(one)["kl"].sel(predictor=BIGRAM)[-1]) for one in data])
    gaps = np.array([float(late(one)["apart"].sel(predictor=UNIGRAM)) for one in data])
    count, ordered = len(runs), sum(map(in_order, labels))
    same = sum(in_order(one) and place == (0, 1) for one, place in zip(labels, places, strict=True))
    near = int((ends < CLOSE * gaps).sum())
    how = (
        "two layers of two heads, shortformer positions (absolute, added to queries and keys alone), length "
        f"{longer.model.n_ctx}, three symbols, {longer.steps} steps; {count} seeds"
    )
    return Measured(
        [
            Finding(
                "absolute_positions",
                f"{share(same, count)} seeds; uniform law, unigram and bigram in this order in {ordered}, "
                f"the first layer feeds the second in {places.count((0, 1))}",
                holds(same == count),
                f"nearest exact predictor late in the context, and the probe `induction`; {how}",
                "trained at another",
                (same, count),
            ),
            Finding(
                "near_optimum_longer",
                f"{share(near, count)} seeds; {over_seeds(ends)} nats above it late in the context (the "
                f"unigram {over_seeds(gaps)})",
                holds(near == count),
                "excess over the exact posterior mean (uniform start), last quarter of positions; near: "
                f"below {CLOSE:g} of the unigram's, a threshold of ours; {how}",
                "trained at another",
                (near, count),
            ),
        ]
    )
