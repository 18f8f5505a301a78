"""More than two hundred models of known origin: bundled, set by hand, fresh, and trained from recipes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import torch
from further_models import further
from mixed_models import mixed
from models_of_new_kinds import of_new_kinds
from more_models import more

import mechmarkov as mm
from mechmarkov.models.constructions.counting_mamba import counting_mamba
from mechmarkov.models.constructions.induction_heads import duplicate_token_head, induction_pair
from mechmarkov.models.constructions.lookup_tables import (
    cancelling_tables,
    content_table,
    direct_table,
    mlp_table,
    value_table,
)
from mechmarkov.models.constructions.n_grams import k_gram_counter

Models = dict[str, Callable[[], mm.Run]]
SEEDS = 6  # of each recipe
# Recipes whose sequences or steps are many: enough steps here to be somewhere on the way.
STEPS = {"in-context-k3-shortformer": 800, "in-context-k3-mamba": 300, "mess3": 300}
CONTEXT = {"makkuva-code": 64, "makkuva-text": 64}


def model_zoo() -> Models:
    """Returns the models by name, each made when it is called for."""
    return {**bundled(), **handset(), **laws_mixed(), **fresh(), **trained()}


def bundled() -> Models:
    """The runs that come with the package, at their first, middle and last steps."""
    return {f"bundled {name}": partial(mm.example, name) for name in mm.examples()}


def chains() -> Iterator[tuple[str, mm.sources.Source, torch.Tensor]]:
    """Chains of several sizes: slow, fast, nearly independent, with a rare state."""
    rng = np.random.default_rng(0)
    for n, concentration in product((2, 3, 5), (0.3, 1.0)):
        P = rng.dirichlet(np.full(n, concentration), size=n).clip(1e-3)
        yield f"{n} states, {concentration}", *_chain(P)
    yield "nearly independent", *_chain(np.full((4, 4), 0.25) + 0.01 * (np.eye(4) - np.roll(np.eye(4), 1, 1)))
    yield "a rare state", *_chain(np.array([[0.5, 0.45, 0.05], [0.45, 0.5, 0.05], [0.0005, 0.0005, 0.999]]))
    yield "sticky", *_chain(np.full((3, 3), 0.02) + 0.94 * np.eye(3))


def _chain(P: np.ndarray) -> tuple[mm.sources.Source, torch.Tensor]:
    P = P / P.sum(1, keepdims=True)
    return mm.Chain(P.tolist()), torch.tensor(np.log(P), dtype=torch.float32)


def handset() -> Models:
    """Tables in each place a table can be, right, tempered, wrong in one state, for another lag; circuits."""
    models: Models = {}
    for name, source, table in chains():
        uniform, wrong = torch.zeros_like(table), table.clone()
        wrong[0] = wrong[0].flip(0)
        variants: dict[str, Callable[[], torch.nn.Module]] = {
            "direct": partial(direct_table, table, 12),
            "direct, half as sure": partial(direct_table, 0.5 * table, 12),
            "direct, one state wrong": partial(direct_table, wrong, 12),
            "direct, uniform": partial(direct_table, uniform, 12),
            "value": partial(value_table, table, 12),
            "value, two back": partial(value_table, table, 12, lag=2),
            "value, every other position": partial(value_table, table, 12, every=2),
            "copy of the current state": partial(direct_table, 4 * torch.eye(len(table)), 12),
            "content": partial(content_table, table, 12),
            "MLP": partial(mlp_table, table, 12),
            "cancelling": partial(cancelling_tables, table, 12),
        }
        for variant, make in variants.items():
            models[f"{variant}: {name}"] = partial(_run, make, source)
    for n in (2, 3, 4):
        redrawn = mm.DirichletChains(n_states=n)
        circuits: dict[str, Callable[[], torch.nn.Module]] = {
            "induction pair": partial(induction_pair, n, 24),
            "induction pair, opposite": partial(induction_pair, n, 24, gain=-4.0),
            "duplicate tokens": partial(duplicate_token_head, n, 24),
            "pair counter": partial(k_gram_counter, n, 24, order=1),
            "counting Mamba": partial(counting_mamba, n, 24),
            "fixed table": partial(direct_table, torch.eye(n), 24),
        }
        for variant, make in circuits.items():
            models[f"{variant}: {n} states redrawn"] = partial(_run, make, redrawn)
    return models


def _run(make: Callable[[], torch.nn.Module | list[torch.nn.Module]], source: mm.sources.Source) -> mm.Run:
    made = make()
    models = made if isinstance(made, list) else [made]
    last = mm.Run.from_model(models[-1], source=source)
    states = [model.state_dict() for model in models]
    kept = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    return replace(last, steps=torch.arange(len(models)), states=kept) if len(models) > 1 else last


def laws_mixed() -> Models:
    """Laws mixed by state, position and part, as their names say; and runs that came and went."""
    every = (*mixed(), *more(), *further(), *of_new_kinds())
    return {f"mixed: {name}": partial(_run, make, source) for name, make, source in every}


def fresh() -> Models:
    """Models that no one trained, of the shapes of the recipes."""
    return {f"fresh {name}": partial(_trained, name, 0, 0) for name in mm.recipes()}


def trained() -> Models:
    """Seeds of each recipe, half of them stopped on the way."""
    return {
        f"{name}, seed {seed}": partial(_trained, name, seed, None if seed % 2 else 0.3)
        for name in mm.recipes()
        for seed in range(SEEDS)
    }


def _trained(name: str, seed: int, share: float | None) -> mm.Run:
    """A recipe's run with some share of its steps; None for all of them, 0 for its start."""
    recipe = mm.load_recipe(name)
    steps = STEPS.get(name, recipe.steps)
    steps = steps if share is None else max(1, round(share * steps))
    changes: dict[str, object] = {"steps": steps, "checkpoints": {"at": [0, steps]}}
    if name in CONTEXT:
        changes["model"] = recipe.model.model_dump() | {"n_ctx": CONTEXT[name]}
    run = mm.train(type(recipe)(**(recipe.model_dump() | changes)), seed=seed, progress=False)
    return run
