"""Trained circuits: fleets of small models, a block of seeds at a time, and controls made of them."""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
import xarray as xr

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.init import initialise
from mechmarkov.training import Recipe, load_recipe, train
from mechmarkov.utils.kept_data import kept, name_of

BLOCK = 4  # seeds that are trained together, as one fleet
SHORT = {"steps": 800, "model.n_ctx": 32, "data.batch": 32}  # of a model that counts in context
P = [[0.1, 0.2, 0.7], [0.6, 0.1, 0.3], [0.2, 0.7, 0.1]]
KERNEL = np.random.default_rng(0).dirichlet(np.full(3, 0.5), size=(3, 3)).round(3)
KERNEL[..., -1] = 1 - KERNEL[..., :-1].sum(-1)
SMALL = {"steps": 600, "model.n_ctx": 16, "data.batch": 64}
COUNTS = "in-context-k3-shortformer"
# Of each fleet: a shipped recipe and what differs.
FLEETS: dict[str, tuple[str, dict[str, Any]]] = {
    "table": ("binary-p02-q03-untied", {}),
    "walk": ("walk-k6-half", {}),
    "induction-1": (COUNTS, SHORT | {"model.n_layers": 1}),
    "induction": (COUNTS, SHORT),
    "induction-3": (COUNTS, SHORT | {"model.n_layers": 3}),
    "trigram": ("mess3", SMALL | {"source": {"kind": "order_k", "kernel": KERNEL.tolist()}}),
    "lagged": (COUNTS, SMALL | {"source": {"kind": "lagged_chain", "P": P, "lag": 3}}),
    "selective": (COUNTS, SHORT | {"source": {"kind": "selective_lag", "P": P, "lags": [1, 2, 3]}}),
    "belief": ("mess3", {"steps": 800}),
    "mamba": ("in-context-k3-mamba", SHORT),
}


def trained_model(fleet: str, seed: int) -> tuple[Recipe, HookedDecoder]:
    """A member of a fleet by its seed, and the recipe; its block is kept on disk for the next time."""
    name, changes = FLEETS[fleet]
    recipe = load_recipe(name).replace(**changes)
    seeds = range(seed - seed % BLOCK, seed - seed % BLOCK + BLOCK)

    def trained() -> xr.Dataset:
        states = [run.model(step=-1).state_dict() for run in train(recipe, seeds=seeds, progress=False)]
        return xr.Dataset(
            {
                key: (["seed", *(f"{key} {i}" for i in range(x.ndim))], torch.stack([s[key] for s in states]))
                for key, x in states[0].items()
            }
        )

    model = HookedDecoder(recipe.decoder_config)
    state = kept(name_of(["fleet", recipe.model_dump(mode="json"), [*seeds]], {}), trained)
    at = seed % BLOCK
    model.load_state_dict({str(key): torch.from_numpy(x.values[at].copy()) for key, x in state.items()})
    return recipe, model


@torch.no_grad()
def random_weights(model: HookedDecoder, *, seed: int) -> HookedDecoder:
    """A model of the same shape that was not trained, with weights as large as those of the trained one."""
    fresh = HookedDecoder(model.config)
    initialise(fresh, [seed], std=float(torch.cat([w.ravel() for w in model.parameters()]).std()))
    return fresh


@torch.no_grad()
def shuffled_weights(model: HookedDecoder, *, seed: int) -> HookedDecoder:
    """The same numbers in every weight, in random order: the circuit is gone, the sizes are not."""
    shuffled, generator = deepcopy(model), torch.Generator().manual_seed(seed)
    for weight in shuffled.parameters():
        order = torch.randperm(weight.numel(), generator=generator)
        weight.copy_(weight.ravel()[order].reshape(weight.shape))
    return shuffled
