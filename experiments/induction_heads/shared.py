"""What the measurements share: recipes, distances to the exact predictors, events, how a claim is written."""

from pathlib import Path

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int

import mechmarkov as mm
from experiments.claims import Claim, Verdict, wilson
from mechmarkov.theory.kernel import kl

HERE = Path(__file__).parent
PAPER = "Edelman et al. 2024"
NO_NUMBER = "no number given"
EVALUATION_SEED = 2_000_000_000  # a CPU generator keeps 32 bits; training seeds are small
BIGRAM, UNIGRAM = "in_context_bigram", "in_context_unigram"


def recipe(*changes: str) -> mm.Recipe:
    """The folder's recipe with some changes."""
    return mm.load_recipe(HERE / "recipes" / "two-layers.toml").with_set(list(changes))


def setting(varied: mm.Recipe, seeds: int) -> str:
    """What was trained, beside the paper's setting."""
    concentration = getattr(varied.source, "concentration", 1.0)
    rows = "" if concentration == 1 else f", rows from Dirichlet({concentration:g})"
    return (
        "width 16, a head a layer, LayerNorm, relative key positions as in the paper; length "
        f"{varied.model.n_ctx} "
        f"(100 there), batch {varied.data.batch} (64), learning rate {varied.optimiser.lr:g} (5e-4), no "
        "dropout "
        f"(0.1), {varied.steps} steps (2000){rows}; {seeds} seeds, on a CPU"
    )


def distances(run: mm.Run, source: mm.Source | None = None, sequences: int = 128) -> xr.Dataset:
    """How far a run's models are from each exact predictor.

    Args:
        run: The run, all of its kept steps.
        source: Whose sequences they read; the run's own by default.
        sequences: How many.

    Returns:
        `kl` [predictor, step, position] (nats): from the predictor to the model, mean over sequences; `apart`
        [predictor, position] (nats): from the in-context bigram to the predictor.
    """
    source = source or run.source
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    tokens = source.sample(sequences, run.model.n_ctx, generator=generator)
    with torch.no_grad():
        model = run.decoder(steps="all")(tokens).double().softmax(-1).numpy()
    exact = {name: rule.probabilities(tokens.numpy()) for name, rule in source.predictors().items()}
    found = np.stack([[kl(p, q).mean(0) for q in model] for p in exact.values()])
    apart = np.stack([kl(exact[BIGRAM], p).mean(0) for p in exact.values()])
    return xr.Dataset(
        {"kl": (("predictor", "step", "position"), found), "apart": (("predictor", "position"), apart)},
        coords={"predictor": list(exact), "step": run.steps.numpy()},
    )


def late(data: xr.Dataset) -> xr.Dataset:
    """The mean over the last quarter of positions, where most has been seen."""
    length = data.sizes["position"]
    return data.isel(position=slice(length - length // 4, None)).mean("position")


def gained(data: xr.Dataset) -> Float[np.ndarray, " step"]:
    """Share of what the in-context bigram gains over the unigram (nats) that the models have gained."""
    here = late(data)
    gap = float(here["apart"].sel(predictor=UNIGRAM))
    return np.asarray(1 - here["kl"].sel(predictor=BIGRAM).values / gap)


def nearest(data: xr.Dataset) -> list[str]:
    """The nearest predictor at each step."""
    kls = late(data)["kl"]
    return [str(kls["predictor"].values[i]) for i in kls.argmin("predictor").values]


def first(holds: np.ndarray, steps: Int[np.ndarray, " step"]) -> float:
    """The first step at which it holds, NaN if there is none."""
    return float(steps[holds.argmax()]) if holds.any() else float("nan")


def share(hits: int, n: int) -> str:
    """`5 of 6 [0.44, 0.97]`, with the 95 % Wilson interval."""
    low, _, high = wilson(hits, n)
    return f"{hits} of {n} [{low:.2f}, {high:.2f}]"


def middle(values: Float[np.ndarray, " seed"], digits: int = 3) -> str:
    """`median (lowest to highest)` over seeds."""
    return f"{np.median(values):.{digits}g} ({values.min():.{digits}g} to {values.max():.{digits}g})"


def claim(name: str, text: str, where: str, paper: str, measured: str, verdict: Verdict, how: str) -> Claim:
    """A claim of this folder."""
    again = f"python -m experiments.induction_heads --only {name}"
    return Claim(name, text, f"{PAPER}, {where}", paper, measured, verdict, how, again)


def holds(condition: bool) -> Verdict:
    """The verdict of a condition."""
    return "holds" if condition else "does not hold"
