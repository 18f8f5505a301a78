"""Trained models: the guideline, why AdamW leaves the unigram, and how the rank of weights changes."""

from collections.abc import Mapping, Sequence

import numpy as np

import mechmarkov as mm
from experiments.claims import Claim, Measured, Verdict
from experiments.initialisation import pictures, trained
from experiments.initialisation.basins import PAPER, command, shares
from mechmarkov.theory import canonical

HALF = 0.5  # of the way from the bigram to the unigram
REDUCED = "d = 8 as in the paper, T = 32 for 1024, float32 on a CPU"
ONE = 0.99  # of the squared singular values: what is called rank one
TRAP, FREE = (0.5, 0.8), (0.2, 0.3)


def guideline(quick: bool) -> Measured:
    """MLP weights of 1 and -1 against a standard start, with attention and with attention frozen."""
    seeds = 2 if quick else 16
    schemes = [f"init.scheme={scheme}" for scheme in ("gpt2", "guideline")]
    reference = [trained.recipe(trained.REFERENCE, *pq, scheme) for pq in (TRAP, FREE) for scheme in schemes]
    frozen = [trained.recipe(trained.FROZEN, *TRAP, scheme) for scheme in schemes]
    standard, guided, _, below = trained.train([*reference[:2], *reference[2:]], seeds)
    lost = {
        ("standard", "trained"): trained.missing(standard),
        ("guideline", "trained"): trained.missing(guided),
    }
    for name, runs in zip(("standard", "guideline"), trained.train(frozen, seeds), strict=True):
        lost[name, "frozen"] = trained.missing(runs)
    claims = [_helps(lost, kind, seeds) for kind in ("trained", "frozen")]
    claims += [_where_it_starts(guided), _not_a_trap(below), _attention(guided)]
    figure = pictures.courses(
        standard[0].steps.tolist(),
        {f"{name}, attention {kind}": rows for (name, kind), rows in lost.items()},
        "Standard start and guideline at p = 0.5, q = 0.8",
        "E KL(bigram ‖ model), the unigram's is 1",
        {"unigram": 1.0, "bigram": 0.0},
    )
    return Measured(claims, {"guideline": figure})


def _helps(lost: Mapping[tuple[str, str], np.ndarray], kind: str, seeds: int) -> Claim:
    learned = {name: int((lost[name, kind][:, -1] < HALF).sum()) for name in ("standard", "guideline")}
    good = learned["guideline"] >= 0.75 * seeds and learned["standard"] <= 0.25 * seeds
    return Claim(
        "guideline",
        "The guideline reaches the bigram where a standard start reaches the unigram, "
        + ("with attention" if kind == "trained" else "with attention frozen at its small start"),
        f"{PAPER}, figure 4 (p = 0.5, q = 0.8)",
        "one curve at the unigram, one at the bigram",
        f"at the bigram: {shares(learned['standard'], seeds)} standard, "
        f"{shares(learned['guideline'], seeds)} guideline",
        "holds" if good else "does not hold",
        f"{seeds} seeds, 400 steps of AdamW, {REDUCED}. At the bigram: nearer to its loss than to the "
        "unigram's. Holds if three of four with the guideline are, and at most one of four without",
        command("guideline"),
    )


def _where_it_starts(guided: Sequence[mm.Run]) -> Claim:
    w = np.concatenate([trained.coordinates(run, [0]).w for run in guided])
    near = np.abs(w + 1) < 0.3
    return Claim(
        "guideline",
        "The guideline starts at w of about -1",
        "read into the constants 1 and -1 of the authors' code",
        "-1",
        f"w from {w.min():.1f} to {w.max():.1f}, median {np.median(w):.1f}; "
        f"{int((w < canonical.CANCELS).sum())} of {len(w)} below -1/sqrt 2",
        "holds" if near.mean() > 0.5 else "does not hold",
        "w read off the models' slopes at step 0. All 32 hidden units are alike: the MLP takes 32 times the "
        "sum of the stream from each coordinate where that sum is positive, and is off where it is not",
        command("guideline"),
    )


def _not_a_trap(below: Sequence[mm.Run]) -> Claim:
    lost = trained.missing(below)[:, -1]
    stuck, n = int((lost > HALF).sum()), len(below)
    w = np.concatenate([trained.coordinates(run, [int(run.steps[-1])]).w for run in below])
    off, above = int((np.abs(w) < 0.1).sum()), int((w >= 0.1).sum())
    return Claim(
        "guideline",
        "For p + q < 1 the guideline starts in the basin of the unigram (small e, w < -1/sqrt 2)",
        f"{PAPER}, figure 1 with the guideline's start",
        "stuck, by the map of the flow",
        f"at the unigram after 400 steps: {shares(stuck, n)}; w ends within 0.1 of 0 in {off}, "
        f"above in {above}, below in {n - off - above} of {n}",
        "holds" if stuck > n / 2 else "does not hold",
        f"{n} seeds at (0.2, 0.3), AdamW, {REDUCED}. On the map half of the hidden units read one sign of "
        "the stream and half the other; the guideline has all read one, and a shift of the stream, which "
        "positions can give, turns them off",
        command("guideline"),
    )


def _attention(runs: Sequence[mm.Run]) -> Claim:
    share = float(np.mean([trained.attention_share(run) for run in runs]))
    return Claim(
        "guideline",
        "Attention adds next to nothing to the stream, so that the reduction to (e, w) may leave it out",
        f"{PAPER}, reduction to (e, w); the authors' code logs the same ratio",
        "no number given",
        f"its output has {share:.4f} of the stream's size",
        "holds" if share < 0.1 else "does not hold",
        f"mean over tokens and {len(runs)} seeds, after training from the guideline; holds below 0.1",
        command("guideline"),
    )


def adamw(quick: bool) -> Measured:
    """Standard starts for p + q > 1, trained longer: do they stay, and if not, which way do they leave?"""
    seeds, longer = (3, 400) if quick else (8, 1600)
    recipe = trained.recipe(trained.REFERENCE, *TRAP, "steps=1600", "checkpoints={every=100}")
    plain = recipe.with_set(["optimiser={kind='gd', lr=1.0}", f"steps={longer}", "checkpoints={every=400}"])
    runs, descended = trained.train([recipe], seeds)[0], trained.train([plain], seeds)[0]
    lost, stayed = trained.missing(runs), trained.missing(descended)[:, -1] > HALF
    fits = [trained.coordinates(run) for run in runs]
    left = lost[:, -1] < HALF
    through = 0
    title = "Standard starts under AdamW, p = 0.5, q = 0.8: w walks through 0 out of the basin"
    figure = pictures.planes([TRAP], title, (-2.2, 1.2), 1.0, stretch=16)
    for index, (fit, rows, gone) in enumerate(zip(fits, lost, left, strict=True)):
        pictures.add_path(figure, 1, fit.e, fit.w, look=index, name=f"seed {index}")
        before = fit.w[: int((rows < HALF).argmax())]
        through += bool(gone and (before > 0).any() and (before < canonical.CANCELS).any())
    n_left, n_stayed = int(left.sum()), int(stayed.sum())
    claims = [
        Claim(
            "adamw",
            "For p + q > 1 a standard start converges to the unigram",
            f"{PAPER}, figure 4 (p = 0.5, q = 0.8)",
            "at the unigram at the end of training",
            f"at the bigram after 1600 steps of AdamW: {shares(n_left, seeds)}; "
            f"at the unigram after {longer} steps of plain gradient descent: {shares(n_stayed, seeds)}",
            _converges(n_left, n_stayed, seeds),
            f"{seeds} seeds, {REDUCED}; AdamW as in the authors' code, one cycle over all steps; gradient "
            "descent with step size 1. Batches are 32 times smaller than the paper's, gradients noisier",
            command("adamw"),
        ),
        Claim(
            "adamw",
            "For p + q > 1 a start with w > 0 stays in w > 0",
            f"{PAPER}, theorem on p + q > 1",
            "exact, for gradient flow",
            f"through w = 0 to below -1/sqrt 2, and then to the bigram: {through} of the {n_left} that left",
            "does not hold" if through else "holds",
            "w read off the models under AdamW every 100 steps. Along the flow w shrinks in proportion to "
            "itself and never gets to 0; AdamW divides a gradient by its size, so that small ones move w too",
            command("adamw"),
        ),
    ]
    return Measured(claims, {"adamw": figure})


def _converges(left: int, stayed: int, seeds: int) -> Verdict:
    if not left:
        return "holds"
    return "holds with a correction" if stayed == seeds else "does not hold"


def rank_one(quick: bool) -> Measured:
    """Share of the first singular value over training: from a random start, and from a rank-one start."""
    seeds, steps = (2, 600) if quick else (8, 2500)
    schemes = ("gpt2", "rank_one")
    recipes = [
        trained.recipe(trained.REFERENCE, *FREE, f"init.scheme={scheme}", f"steps={steps}")
        for scheme in schemes
    ]
    random, ranked = trained.train(recipes, seeds)
    how = f"{seeds} seeds, {steps} steps of AdamW at (0.2, 0.3), {REDUCED}"
    claims: list[Claim] = []
    curves = {}
    for name, weight in (("W_V", "blocks.0.attn.W_V"), ("W_in", "blocks.0.mlp.W_in")):
        rows, kept = trained.energy(random, weight), trained.energy(ranked, weight)
        curves[f"{name}, random start"], curves[f"{name}, rank-one start"] = rows, kept
        claims += [_formed(name, rows, how), _kept(name, kept, how)]
    figure = pictures.courses(
        random[0].steps.tolist(),
        curves,
        "Share of the first singular value at p = 0.2, q = 0.3",
        "σ₁² / Σ σᵢ²",
        {"rank one": 1.0, "all eight alike": 1 / 8},
    )
    return Measured(claims, {"rank_one": figure})


def _formed(name: str, rows: np.ndarray, how: str) -> Claim:
    first, last = rows[:, 0].mean(), rows[:, -1]
    verdict: Verdict = "does not hold"
    if last.mean() > (1 + first) / 2:
        verdict = "holds" if last.min() > ONE else "holds with a correction"
    return Claim(
        "rank_one",
        f"From a random start {name} becomes rank one",
        f"{PAPER}, energy of singular values",
        "near 1 by eye",
        f"first of the squared singular values: {first:.2f} of their sum at the start, "
        f"{last.mean():.2f} at the end (seeds {last.min():.2f} to {last.max():.2f})",
        verdict,
        f"{how}; holds above {ONE} for every seed, with a correction (nearly) where more than half of the "
        "way to 1 is gone in the mean",
        command("rank_one"),
    )


def _kept(name: str, rows: np.ndarray, how: str) -> Claim:
    return Claim(
        "rank_one",
        f"From a rank-one start {name} stays rank one",
        f"{PAPER}, energy of singular values",
        "near 1 by eye",
        f"least share of the first at any kept step and seed: {rows.min():.4f}",
        "holds" if rows.min() > ONE else "does not hold",
        f"{how}; holds above {ONE}",
        command("rank_one"),
    )
