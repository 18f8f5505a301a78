"""Mixtures of N fixed chains: which of four algorithms a model runs, by N and over training."""

import numpy as np
import torch

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.harness import Measured, over_seeds, trained
from experiments.order_and_lag.algorithms import ALGORITHMS
from experiments.order_and_lag.phase import Phase, by_chains, over_training, phase
from experiments.order_and_lag.shared import RECIPES

FRESH = mm.DirichletChains(n_states=3)  # what the N chains were drawn from
CHAINS_SEED = 7
SEQUENCES = 400
EXPLAINED = 0.85  # of the variance of predictions
OWN, UNSEEN = "the run's own chains", "chains that no run has seen"
PEAK = 0.2  # of the weights: an algorithm that was run
UNUSED, GROWN = 0.05, 0.2  # of what a shuffled context changes for the best bigram algorithm


def chains(n: int) -> list[list[list[float]]]:
    """The first n of one list of chains, rows from Dirichlet(1)."""
    drawn: list[list[list[float]]] = FRESH.sample_chains(
        n, generator=torch.Generator().manual_seed(CHAINS_SEED)
    ).tolist()
    return drawn


def by_number(quick: bool) -> dict[int, list[mm.Run]]:
    """Runs by number of chains; with `quick` few of them, one seed, fewer steps."""
    recipe = mm.load_recipe(RECIPES / "mixture.toml")
    numbers, seeds = (2, 16, 128), (0, 1)
    if quick:
        recipe = recipe.with_set(["steps=400", "checkpoints={log=8}", "model.n_ctx=24"])
        numbers, seeds = (2, 8), (0,)
    sources = [{"kind": "chain_mixture", "chains": chains(n)} for n in numbers]
    recipes = [recipe.replace(**{"source": source}) for source in sources]
    return dict(zip(numbers, trained(recipes, seeds), strict=True))


def mixtures(quick: bool) -> Measured:
    """The four algorithms, by the number of chains and over training."""
    runs = by_number(quick)
    own = {n: [phase(run, run.source, SEQUENCES) for run in group] for n, group in runs.items()}
    fresh = {n: [phase(run, FRESH, SEQUENCES) for run in group] for n, group in runs.items()}
    settings = (
        f"two layers of two heads with MLP, {next(iter(runs.values()))[0].config.n_ctx} tokens of 3 states, "
        f"chains from Dirichlet(1), {SEQUENCES} sequences, predictions of the second half of the positions; "
        "the paper has 10 states, 512 tokens and 100 000 steps"
    )
    claims = [
        unigrams_first(own, settings),
        use_of_bigrams(own, settings),
    ]
    if not quick:  # these take more training, and more chains
        claims = [
            *explained(own, fresh, settings),
            few_and_many(fresh, settings),
            *claims,
            transient(fresh, settings),
        ]
    figures = {"algorithms_by_chains": by_chains(fresh), "algorithms_over_training": over_training(fresh)}
    return Measured(claims, figures)


def explained(own: dict[int, list[Phase]], fresh: dict[int, list[Phase]], settings: str) -> list[Finding]:
    """Whether a mixture of the four is what the model does, on its own chains and on others."""
    findings = []
    for case, found in ((OWN, own), (UNSEEN, fresh)):
        shares = {n: np.array([one.fits[-1].explained for one in group]) for n, group in found.items()}
        every = np.concatenate([*shares.values()])
        hits = int((every > EXPLAINED).sum())
        by_number = "; ".join(f"N={n}: {over_seeds(each)}" for n, each in shares.items())
        findings.append(
            Finding(
                "interpolation",
                f"{share(hits, len(every))} runs; {by_number}",
                holds(hits == len(every)),
                f"share of the variance of predictions that the best mixture explains, above {EXPLAINED}, a "
                f"threshold of ours; {settings}",
                "trained at another",
                (hits, len(every)),
                case=case,
            )
        )
    return findings


def few_and_many(fresh: dict[int, list[Phase]], settings: str) -> Finding:
    """Whether few chains are retrieved and many inferred."""
    few, many = min(fresh), max(fresh)
    retrieval = {n: [one.fits[-1].weights[[0, 1]].sum() for one in group] for n, group in fresh.items()}
    ok = min(retrieval[few]) > 0.5 > max(retrieval[many])
    return Finding(
        "few_retrieve",
        "weight of retrieval: " + "; ".join(f"N={n}: {over_seeds(each, 2)}" for n, each in retrieval.items()),
        holds(ok),
        "weight of the two retrieving algorithms in the fit, on sequences of chains that no run has seen, "
        "where retrieval and inference differ; holds where it is above one half for the fewest and below "
        f"for the most chains, for every seed; {settings}",
        "trained at another",
        (
            sum(r > 0.5 for r in retrieval[few]) + sum(r < 0.5 for r in retrieval[many]),
            len(retrieval[few]) + len(retrieval[many]),
        ),
    )


def unigrams_first(own: dict[int, list[Phase]], settings: str) -> Finding:
    """Whether unigram algorithms come before bigram ones."""
    found = {n: [turns(one) for one in group] for n, group in own.items()}
    in_turn = [
        uni is not None and bi is not None and uni < bi for group in found.values() for uni, bi in group
    ]
    return Finding(
        "unigram_algorithms_first",
        "; ".join(
            f"N={n}: " + ", ".join(f"unigram at {uni}, bigram at {bi}" for uni, bi in group)
            for n, group in found.items()
        ),
        holds(all(in_turn)),
        "step of the checkpoint at which a unigram algorithm is first nearest by KL, and from which on a "
        f"bigram one is; on sequences of the run's own chains; {settings}",
        "trained at another",
        (sum(in_turn), len(in_turn)),
    )


def turns(one: Phase) -> tuple[int | None, int | None]:
    """The steps from which a unigram algorithm is nearest, once it learned, and a bigram one for good."""
    steps = one.run.steps.tolist()
    bigram = np.isin(one.kl.argmin(1), [1, 3])
    # At the start every algorithm is as far as uniform predictions are: nothing is nearest yet.
    moved = one.kl.min(1) < 0.9 * one.kl[0].min()
    unigram = [
        step for step, is_bigram, has in zip(steps, bigram, moved, strict=True) if has and not is_bigram
    ]
    last = np.flatnonzero(~bigram).max(initial=-1)
    return (unigram[0] if unigram else None), (steps[last + 1] if last + 1 < len(steps) else None)


def use_of_bigrams(own: dict[int, list[Phase]], settings: str) -> Finding:
    """How far a shuffled context changes the prediction."""
    share = {n: [float(one.use[-1] / one.possible) for one in group] for n, group in own.items()}
    early = {n: [float(one.use[at_unigram(one)] / one.possible) for one in group] for n, group in own.items()}
    grown = [
        last > GROWN and first < UNUSED for n in share for first, last in zip(early[n], share[n], strict=True)
    ]
    return Finding(
        "bigram_use_grows",
        "; ".join(f"N={n}: {over_seeds(early[n], 2)} to {over_seeds(share[n], 2)}" for n in share),
        holds(all(grown)),
        "KL of the last prediction from that with a shuffled context, the last token in place, as a share "
        "of what it is for the best bigram algorithm: at the checkpoint where a unigram algorithm is "
        "nearest, and at the end. A shuffled context is like no chain's, so that less than 1 is left even "
        f"for a model that is a bigram algorithm on real ones; holds where it grows from below {UNUSED} to "
        f"above {GROWN}; {settings}",
        "trained at another",
        (sum(grown), len(grown)),
    )


def at_unigram(one: Phase) -> int:
    """The checkpoint at which a unigram algorithm is nearest to the model."""
    return int(one.kl[:, [0, 2]].min(1).argmin())


def transient(fresh: dict[int, list[Phase]], settings: str) -> Finding:
    """Whether inference on unseen chains comes and goes."""
    inference = ALGORITHMS.index("in_context_bigram")
    gone = [came_and_went(one, inference) for group in fresh.values() for one in group]
    return Finding(
        "transient",
        "; ".join(
            f"N={n}: "
            + ", ".join(
                f"{max(w):.2f} to {w[-1]:.2f}"
                for w in ([found.weights[inference] for found in one.fits] for one in group)
            )
            for n, group in fresh.items()
        ),
        "for" if all(gone) else "untested",
        "weight of bigram inference on sequences of unseen chains: its largest over training, and at the "
        f"end, by seed; holds where for some N it was above {PEAK} and falls for every seed, 95 % intervals "
        "apart. Where it does not fall, training here may be too short to tell: the paper's is a hundred "
        f"times as long; {settings}",
        "trained at another",
        (len(gone), len(gone)) if all(gone) else None,
    )


def came_and_went(one: Phase, algorithm: int) -> bool:
    """Whether an algorithm's weight has been high and is lower at the end, by more than its intervals."""
    peak = max(one.fits[1:], key=lambda found: found.weights[algorithm])
    gone = peak.interval[0, algorithm] > one.fits[-1].interval[1, algorithm]
    return bool(peak.weights[algorithm] > PEAK and gone)
