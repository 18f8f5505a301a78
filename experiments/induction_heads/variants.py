"""Other data: chains in whose stationary law unigrams say nothing, and tokens that are independent."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.harness import EVALUATION_SEED, Measured, evaluation, first_time, over_seeds, trained, when
from experiments.induction_heads import minimal
from experiments.induction_heads.minimal_claims import RATES
from experiments.induction_heads.panels import over_training
from experiments.induction_heads.shared import UNIGRAM, distances, late, nearest, recipe, setting

HALF = 0.5
LEFT_START = 0.15
CHAINS, INDEPENDENT = "chains", "independent tokens"
LAWS = {"uniform": "doubly stochastic, uniform law", "sinkhorn": "doubly stochastic, Sinkhorn-scaled"}
Times = Mapping[str, Float[np.ndarray, " seed"]]


def previous_attention(run: mm.Run) -> Float[np.ndarray, " step"]:
    """Layer 1's attention on the previous token, mean over queries with at least 8 keys, at each step."""
    source = mm.DirichletChains(n_states=run.source.n_states, start="uniform")
    tokens = evaluation(source, 32, run.config.n_ctx)
    name = "blocks.0.attn.hook_pattern"
    _, cache = run.model(steps="all").run_with_cache(tokens, names_filter=[name])
    before: torch.Tensor = cache[name].diagonal(offset=-1, dim1=-2, dim2=-1)
    return before[..., 7:].mean((-1, -2, -3)).detach().numpy()


def unevenness(source: mm.DirichletChains | mm.sources.DoublyStochastic) -> float:
    """The variance of an entry of the chains: how much a row says."""
    P = source.sample_chains(4000, generator=torch.Generator().manual_seed(EVALUATION_SEED))
    return float(P[:, 0, 0].var())


def compare(n: int, model: str, times: Times, how: str) -> list[Finding]:
    """For each law on doubly stochastic chains: whether the event comes sooner than on chains."""
    chains = times[CHAINS]
    found = []
    for name in (name for name in LAWS.values() if name in times):
        faster, count = int((times[name] < chains).sum()), len(chains)
        found.append(
            Finding(
                "even_chains_faster",
                f"step {when(times[name])}, on chains {when(chains)}; sooner in {share(faster, count)} seeds",
                holds(faster == count),
                how,
                "trained at another",
                (faster, count),
                f"{model}, {n} symbols, {name}",
            )
        )
    return found


def unigrams(quick: bool) -> Measured:
    """When the previous-token head forms: on chains, doubly stochastic ones, and independent tokens."""
    seeds = 2 if quick else 16
    settings = {3: ["steps=320" if quick else "steps=600", "optimiser.lr=3e-3"]}
    if not quick:
        settings[2] = ["steps=700", "optimiser.lr=1e-2"]
    panels, claims = {}, []
    for n, changes in settings.items():
        base = recipe("model.n_ctx=32", f"source.n_states={n}", "checkpoints={every=20}", *changes)
        sources = sources_of(n, quick)
        recipes = [_with_source(base, source) for source in sources.values()]
        runs = dict(zip(sources, trained(recipes, range(seeds)), strict=True))
        steps = runs[INDEPENDENT if quick else CHAINS][0].steps.numpy()
        attention = {name: np.stack([previous_attention(r) for r in g], 1) for name, g in runs.items()}
        panels[f"{n} symbols"] = (steps, attention)
        how = setting(base, seeds)
        if len(sources) > 1 and n != 3:  # of three symbols `even_chains` asks, on more seeds
            times = {
                name: np.array([first_time(c > HALF, steps) for c in a.T]) for name, a in attention.items()
            }
            spread = ", ".join(f"{unevenness(s):.3f} on {k}" for k, s in sources.items() if k != INDEPENDENT)
            note = (
                "first kept step with more than half of layer 1's attention on the previous token. Variance "
                f"of an entry of the chains, which is what there is to learn: {spread}; {how}"
            )
            claims += compare(n, "transformer", times, note)
        if INDEPENDENT in sources:
            claims.append(independent_claim(runs[INDEPENDENT], attention[INDEPENDENT], how))
    claims += _minimal(quick)
    title = "Layer 1's attention on the previous token, by the data"
    return Measured(claims, {"unigrams": over_training(panels, title, "attention (probability)")})


def sources_of(n: int, quick: bool) -> dict[str, mm.DirichletChains | mm.sources.DoublyStochastic]:
    """What the transformer is trained on, by name."""
    independent = {INDEPENDENT: mm.DirichletChains(n_states=n, rows="alike")}
    if quick:
        return independent
    return doubly_stochastic(n, ("uniform",)) | (independent if n > 2 else {})


def doubly_stochastic(
    n: int, laws: Sequence[str]
) -> dict[str, mm.DirichletChains | mm.sources.DoublyStochastic]:
    """Chains, and doubly stochastic ones from some laws; with two states both laws are the same."""
    even = {
        LAWS[law]: mm.sources.DoublyStochastic(n_states=n, law=law) for law in laws[: 1 if n == 2 else None]
    }
    return {CHAINS: mm.DirichletChains(n_states=n, start="uniform")} | even


def _with_source(base: mm.Recipe, source: mm.sources.Source) -> mm.Recipe:
    return mm.load_recipe(base.to_data() | {"source": source.model_dump(mode="json")})


def independent_claim(runs: list[mm.Run], attention: Float[np.ndarray, "step seed"], how: str) -> Finding:
    """On independent tokens the unigram is the optimum: what do models learn there?"""
    near = [nearest(data)[-1] for data in map(distances, runs)]
    reached = int(sum(name == UNIGRAM for name in near) * bool((attention[-1] < HALF).all()))
    left = np.array([float(late(distances(run))["kl"].sel(predictor=UNIGRAM)[-1]) for run in runs])
    return Finding(
        "independent_tokens",
        f"{share(reached, len(runs))} seeds nearest to it, {over_seeds(left)} nats away; layer 1 gives the "
        f"previous token {over_seeds(attention[-1])}",
        holds(reached == len(runs)),
        f"there it is the exact posterior mean; last quarter of positions; {how}",
        "trained at another",
        (reached, len(runs)),
    )


def _minimal(quick: bool) -> list[Finding]:
    """The same in the minimal model."""
    found = []
    seeds, length, steps = range(2 if quick else 8), 32, 400
    settings = {"n_ctx": length, "batch": 32 if quick else 64, "steps": steps, "every": 10, **RATES}
    for n in (2,) if quick else (2, 3):
        times = {}
        for name, source in doubly_stochastic(n, list(LAWS)).items():
            trajectory = minimal.train(source, seeds, **settings)
            times[name] = np.array(
                [first_time(c > LEFT_START, trajectory.steps) for c in trajectory.previous.T]
            )
        how = (
            f"first kept step with more than {LEFT_START:g} of the last key's weight on the previous token "
            f"(0.03 at the start); length {length}, {settings['batch']} sequences a step, {steps} steps, "
            f"{len(seeds)} seeds"
        )
        found += compare(n, "minimal model", times, how)
    return found
