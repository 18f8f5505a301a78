"""What the measurements share: recipes, and distances to the exact predictors."""

from pathlib import Path

import numpy as np
import xarray as xr
from jaxtyping import Float

import mechmarkov as mm
from experiments.harness import evaluation, exact, predictions
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

RECIPES = Path(__file__).parent / "recipes"
BIGRAM, UNIGRAM = "in_context_bigram", "in_context_unigram"


def recipe(*changes: str) -> mm.Recipe:
    """The folder's recipe with some changes."""
    return mm.load_recipe(RECIPES / "two-layers.toml").with_set(list(changes))


def setting(varied: mm.Recipe, seeds: int) -> str:
    """What was trained, and the paper's setting."""
    concentration = getattr(varied.source, "concentration", 1.0)
    rows = "" if concentration == 1 else f", rows from Dirichlet({concentration:g})"
    return (
        "width 16, a head a layer, LayerNorm, relative key positions as in the paper; length "
        f"{varied.model.n_ctx} (100 there), batch {varied.data.batch} (64), learning rate "
        f"{varied.optimiser.lr:g} (5e-4), no dropout (0.1), {varied.steps} steps (2000){rows}; {seeds} "
        "seeds, on a CPU"
    )


def distances(run: mm.Run, source: mm.sources.Source | None = None, sequences: int = 128) -> xr.Dataset:
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
    tokens = evaluation(source, sequences, run.config.n_ctx)
    model, laws = predictions(run, tokens), exact(source, tokens)
    found = np.stack([[kl(p, q) for q in model] for p in laws.values()])
    apart = np.stack([kl(laws[BIGRAM], p) for p in laws.values()])
    for values in (found, apart):
        over_sequences(values[..., -(values.shape[-1] // 4) :])  # what `late` takes: its errors are noted
    found, apart = found.mean(-2), apart.mean(-2)
    return xr.Dataset(
        {"kl": (("predictor", "step", "position"), found), "apart": (("predictor", "position"), apart)},
        coords={"predictor": list(laws), "step": run.steps.numpy()},
    )


def late(data: xr.Dataset) -> xr.Dataset:
    """The mean over the last quarter of positions, where most has been seen."""
    length = data.sizes["position"]
    return data.isel(position=slice(length - length // 4, None)).mean("position")


def gained(data: xr.Dataset) -> Float[np.ndarray, " step"]:
    """Share of what the in-context bigram gains over the unigram (nats) that the models have gained."""
    near = late(data)
    gap = float(near["apart"].sel(predictor=UNIGRAM))
    return np.asarray(1 - near["kl"].sel(predictor=BIGRAM).values / gap)


def nearest(data: xr.Dataset) -> list[str]:
    """The nearest predictor at each step."""
    kls = late(data)["kl"]
    return [str(kls["predictor"].values[i]) for i in kls.argmin("predictor").values]
