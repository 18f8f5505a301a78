"""Fresh seeds for rows that the first ones left undecided; each row's rule is that of its first seeds."""

import numpy as np

import mechmarkov as mm
from experiments.claims import Finding, holds, share, unfinished
from experiments.harness import Measured, first_time, over_seeds, trained, when
from experiments.induction_heads.phases import FULL, QUICK, SYMBOLS, plateau_and_drop
from experiments.induction_heads.shared import distances, recipe, setting
from experiments.induction_heads.variants import HALF, LAWS, previous_attention, unevenness

STATES = 3


def rapid_drop(quick: bool) -> Measured:
    """The drop after the plateau with three symbols."""
    first, steps, every, others = (QUICK if quick else FULL)[STATES]
    seeds = range(first) if quick else range(first, first + 64)
    kept = f"checkpoints={{every={every}}}"
    varied = recipe(f"source.n_states={STATES}", f"steps={steps}", kept, *others)
    (runs,) = trained([varied], seeds)
    spans = np.array([plateau_and_drop(distances(run)) for run in runs])
    ratio = spans[:, 1] / spans[:, 0]
    sharp = int((ratio < 1).sum())
    return Measured(
        [
            Finding(
                "rapid_drop",
                f"{share(sharp, len(runs))} seeds; drop over plateau {over_seeds(ratio)}",
                holds(sharp == len(runs)),
                "rapid: the steps from a tenth to nine tenths of the way to the bigram are fewer than those "
                f"from the unigram to the tenth; seeds {seeds[0]} to {seeds[-1]}, trained after those of "
                f"`phases` had left it undecided (21 of 32); {setting(varied, len(runs))}",
                "trained at another",
                (sharp, len(runs)),
                case=SYMBOLS[STATES],
            )
        ]
    )


def even_chains(quick: bool) -> Measured:
    """When the previous-token layer forms with three symbols, on chains and on doubly stochastic ones."""
    seeds, steps = (range(2), 40) if quick else (range(16, 48), 600)
    base = recipe("model.n_ctx=32", f"source.n_states={STATES}", "optimiser.lr=3e-3")
    base = base.with_set(["checkpoints={every=10}", f"steps={steps}"])
    sources = [
        mm.DirichletChains(n_states=STATES, start="uniform"),
        mm.sources.DoublyStochastic(n_states=STATES, law="uniform"),
    ]
    runs = trained(
        [mm.load_recipe(base.to_data() | {"source": one.model_dump(mode="json")}) for one in sources], seeds
    )
    at = runs[0][0].steps.numpy()
    chains, even = (
        np.array([first_time(previous_attention(run) > HALF, at) for run in group]) for group in runs
    )
    faster, n = int((even < chains).sum()), len(seeds)
    same = int((even == chains).sum())
    spread = [unevenness(one) for one in sources]
    finding = Finding(
        "even_chains_faster",
        f"step {when(even)}, on chains {when(chains)}; sooner in {share(faster, n)} seeds, at the same kept "
        f"step in {same}",
        holds(faster == n),
        "first kept step with more than half of layer 1's attention on the previous token. Variance of an "
        f"entry of the chains, which is what there is to learn: {spread[0]:.3f} on chains, {spread[1]:.3f} "
        f"on doubly stochastic, uniform law; seeds {seeds[0]} to {seeds[-1]}, trained after those of "
        f"`unigrams` had left it undecided (6 of 16); {setting(base, n)}",
        "trained at another",
        (faster, n),
        case=f"transformer, {STATES} symbols, {LAWS['uniform']}",
    )
    return Measured(unfinished([finding]) if quick else [finding])
