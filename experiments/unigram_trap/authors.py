"""The authors' own models, at short and at the paper's length: who is stuck, and what attention adds."""

from collections.abc import Sequence

import mechmarkov as mm
from experiments.claims import Evidence, Finding, holds, share
from experiments.harness import Measured, attention_share, over_seeds, trained
from experiments.unigram_trap.fates import Fate, fate, share_bars
from experiments.unigram_trap.models import SLIGHT

# The public code's full model, and the one that the theorems describe.
MODELS = {"public code": "makkuva-code", "paper's text": "makkuva-text"}
REDUCED = "paper's text"  # the model in which the public code measures what attention adds
ABOVE, BELOW = (0.5, 0.8), (0.2, 0.3)  # the chains of the main figures, by p + q - 1
SHORT, PAPER_LENGTH = 64, 1024
SEEDS = 16
LONG = (("public code", ABOVE, True), ("paper's text", ABOVE, True), ("paper's text", BELOW, True))

Case = tuple[str, tuple[float, float], bool, int]  # model, chain, tied, length


def recipe(case: Case) -> mm.Recipe:
    """One of the authors' models on one chain."""
    model, (p, q), tied, length = case
    return mm.load_recipe(MODELS[model]).replace(
        **{
            "source.p": p,
            "source.q": q,
            "model.tied": tied,
            "model.n_ctx": length,
            "checkpoints": {"every": 100},
        }
    )


def cases(quick: bool) -> list[Case]:
    """What is measured; a quick run has short contexts alone."""
    short = [
        (model, chain, tied, SHORT)
        for model in MODELS
        for chain, tied in ((ABOVE, True), (BELOW, True), (ABOVE, False))
    ]
    return short[:2] if quick else [*short, *((*one, PAPER_LENGTH) for one in LONG)]


def named(case: Case) -> str:
    """A case in words."""
    model, (p, q), tied, length = case
    return f"{model}, {'tied' if tied else 'untied'}, ({p:g}, {q:g}), T = {length}"


def authors(quick: bool) -> Measured:
    """Stuck runs of the authors' models, and the size of what attention adds."""
    chosen = cases(quick)
    if quick:
        chosen = [(*case[:3], 32) for case in chosen]
    seeds = range(2 if quick else SEEDS)
    runs = {case: trained([recipe(case)], seeds)[0] for case in chosen}
    ends = {case: fate(found) for case, found in runs.items()}
    findings = [_ends(case, end) for case, end in ends.items()]
    findings += [_added(case, runs[case]) for case in chosen if case[0] == REDUCED and case[1] == BELOW]
    groups = {
        model: {named(case).removeprefix(f"{model}, "): end for case, end in ends.items() if case[0] == model}
        for model in MODELS
    }
    title = "The authors' models: runs stuck at the unigram after 400 steps"
    return Measured(findings, {"authors": share_bars(title, "weights, (p, q), length", groups)})


def _how(case: Case, n: int) -> str:
    length = case[3]
    return f"{n} seeds, 400 steps, T = {length}, batch 16, the public code's AdamW and schedule, float32, CPU"


def _evidence(case: Case) -> Evidence:
    # The public code computes in float16: with as many predictions a step, runs stay that leave in float32.
    return (
        "trained at the paper's setting"
        if case[3] == PAPER_LENGTH and case[0] == REDUCED
        else "trained at another"
    )


def _ends(case: Case, end: Fate) -> Finding:
    _, chain, tied, _ = case
    key = "authors_untied" if not tied else "authors_above" if chain == ABOVE else "authors_below"
    stuck = tied and chain == ABOVE
    true = end.stuck if stuck else end.n - end.stuck
    return Finding(
        key,
        str(end),
        holds(true > end.n / 2),
        f"{_how(case, end.n)}; stuck: less than half of what lies between unigram and bigram is learned",
        _evidence(case),
        (true, end.n),
        named(case),
    )


def _added(case: Case, runs: Sequence[mm.Run]) -> Finding:
    shares = [attention_share(run) for run in runs]
    small = sum(value < SLIGHT for value in shares)
    return Finding(
        "attention_small",
        f"{over_seeds(shares)} of the stream; below {SLIGHT:g} in {share(small, len(shares))} seeds",
        holds(small == len(shares)),
        f"|attention| / |stream after it|, mean over tokens, after training; {_how(case, len(shares))}",
        _evidence(case),
        (small, len(shares)),
        named(case),
    )
