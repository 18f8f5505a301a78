"""Other data: chains in whose stationary law unigrams say nothing, and tokens that are independent."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float

import mechmarkov as mm
from experiments.harness import (
    EVALUATION_SEED,
    Claim,
    Measured,
    evaluation,
    first_time,
    holds,
    over_seeds,
    share,
    trained,
    when,
)
from experiments.induction_heads import minimal
from experiments.induction_heads.minimal_claims import RATES
from experiments.induction_heads.panels import over_training
from experiments.induction_heads.shared import PAPER, UNIGRAM, distances, late, nearest, recipe, setting

HALF = 0.5
LEFT_START = 0.15
INDEPENDENT, MATCHED = "independent tokens", "chains as even"
Times = Mapping[str, Float[np.ndarray, " seed"]]


def previous_attention(run: mm.Run) -> Float[np.ndarray, " step"]:
    """Layer 1's attention on the previous token, mean over queries with at least 8 keys, at each step."""
    source = mm.DirichletChains(n_states=run.source.n_states, start="uniform")
    tokens = evaluation(source, 32, run.model.n_ctx)
    name = "blocks.0.attn.hook_pattern"
    _, cache = run.decoder(steps="all").run_with_cache(tokens, names_filter=[name])
    before: torch.Tensor = cache[name].diagonal(offset=-1, dim1=-2, dim2=-1)
    return before[..., 7:].mean((-1, -2, -3)).detach().numpy()


def unevenness(source: mm.DirichletChains | mm.DoublyStochastic) -> float:
    """The variance of an entry of the chains: how much a row says."""
    P = source.sample_chains(4000, generator=torch.Generator().manual_seed(EVALUATION_SEED))
    return float(P[:, 0, 0].var())


def compare(n: int, what: str, times: Times, how: str) -> Claim:
    """Whether the event comes sooner on doubly stochastic chains than on chains, or on chains as even."""
    even, count = times["doubly stochastic"], len(times["chains"])
    faster = int((even < times["chains"]).sum())
    fair = int((even < times[MATCHED]).sum()) if MATCHED in times else 0
    shown = "; ".join(f"{name}: step {when(x)}" for name, x in times.items() if name != INDEPENDENT)
    matched = f", than chains as even in {share(fair, count)}" if MATCHED in times else ""
    return Claim(
        f"With {n} symbols, where unigrams say nothing, {what} sooner",
        f"{PAPER}, finding 3 of the code's page",
        f"{shown}; sooner than chains in {share(faster, count)} seeds{matched}",
        holds(faster == count, corrected=fair == count),
        how,
        paper="faster",
    )


def as_even_as(source: mm.DoublyStochastic) -> mm.DirichletChains:
    """Chains whose entries have the variance of a source's: with rows from Dirichlet(a), (K-1)/K²/(Ka+1)."""
    n = source.n_states
    a = ((n - 1) / n**2 / unevenness(source) - 1) / n
    return mm.DirichletChains(n_states=n, concentration=round(a, 2), start="uniform")


def unigrams(quick: bool) -> Measured:
    """When the previous-token head forms: on chains, doubly stochastic ones, and independent tokens."""
    seeds = 2 if quick else 3
    settings = {3: ["steps=320" if quick else "steps=600", "optimiser.lr=3e-3"]}
    if not quick:
        settings[2] = ["steps=700", "optimiser.lr=1e-2"]
    panels, claims = {}, []
    for n, changes in settings.items():
        base = recipe("model.n_ctx=32", f"source.n_states={n}", "checkpoints={every=20}", *changes)
        sources = sources_of(n, quick)
        recipes = [_with_source(base, source) for source in sources.values()]
        runs = dict(zip(sources, trained(recipes, range(seeds)), strict=True))
        steps = runs[INDEPENDENT if quick else "chains"][0].steps.numpy()
        attention = {name: np.stack([previous_attention(r) for r in g], 1) for name, g in runs.items()}
        panels[f"{n} symbols"] = (steps, attention)
        how = setting(base, seeds)
        if "doubly stochastic" in sources:
            times = {
                name: np.array([first_time(c > HALF, steps) for c in a.T]) for name, a in attention.items()
            }
            spread = ", ".join(f"{unevenness(s):.3f} on {k}" for k, s in sources.items() if k != INDEPENDENT)
            note = (
                "first kept step with more than half of layer 1's attention on the previous token. Variance "
                f"of an entry of the chains, which is what there is to learn: {spread}; {how}"
            )
            claims.append(compare(n, "the previous-token head forms", times, note))
        if INDEPENDENT in sources:
            claims.append(independent_claim(runs[INDEPENDENT], attention[INDEPENDENT], how))
    claims += _minimal(quick)
    title = "Layer 1's attention on the previous token, by the data"
    return Measured(claims, {"unigrams": over_training(panels, title, "attention (probability)")})


def sources_of(n: int, quick: bool) -> dict[str, mm.DirichletChains | mm.DoublyStochastic]:
    """What to train on, by name."""
    chains, even = mm.DirichletChains(n_states=n, start="uniform"), mm.DoublyStochastic(n_states=n)
    independent = mm.DirichletChains(n_states=n, rows="alike")
    if quick:
        return {INDEPENDENT: independent}
    if n == 2:  # a row of either is uniform on [0, 1]: as even already
        return {"chains": chains, "doubly stochastic": even}
    return {"chains": chains, "doubly stochastic": even, MATCHED: as_even_as(even), INDEPENDENT: independent}


def _with_source(base: mm.Recipe, source: mm.Source) -> mm.Recipe:
    return mm.load_recipe(base.to_data() | {"source": source.model_dump(mode="json")})


def independent_claim(runs: list[mm.Run], attention: Float[np.ndarray, "step seed"], how: str) -> Claim:
    """On independent tokens the unigram is the optimum: what do models learn there?"""
    near = [nearest(data)[-1] for data in map(distances, runs)]
    reached = int(sum(name == UNIGRAM for name in near) * bool((attention[-1] < HALF).all()))
    left = np.array([float(late(distances(run))["kl"].sel(predictor=UNIGRAM)[-1]) for run in runs])
    return Claim(
        "On independent tokens, models learn the in-context unigram and no previous-token head",
        f"{PAPER}, variant with identical rows, public code (`unigram`)",
        f"{share(reached, len(runs))} seeds nearest to it, {over_seeds(left)} nats away; layer 1 gives the "
        f"previous token {over_seeds(attention[-1])}",
        holds(reached == len(runs)),
        f"there it is the exact posterior mean; last quarter of positions; {how}",
    )


def _minimal(quick: bool) -> list[Claim]:
    """The same in the minimal model."""
    found = []
    seeds, length, steps = range(2 if quick else 4), 32, 400
    settings = {"n_ctx": length, "batch": 32 if quick else 64, "steps": steps, "every": 10, **RATES}
    for n in (2,) if quick else (2, 3):
        times = {}
        sources = sources_of(n, False)
        for name in [name for name in sources if name != INDEPENDENT]:
            trajectory = minimal.train(sources[name], seeds, **settings)
            times[name] = np.array(
                [first_time(c > LEFT_START, trajectory.steps) for c in trajectory.previous.T]
            )
        how = (
            f"first kept step with more than {LEFT_START:g} of the last key's weight on the previous token "
            f"(0.03 at the start); length {length}, {settings['batch']} sequences a step, {steps} steps, "
            f"{len(seeds)} seeds"
        )
        found.append(compare(n, "the minimal model's first layer forms", times, how))
    return found
