"""Which models may train as one stack: recipes of one shape that differ only in numbers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mechmarkov.training.recipe import Recipe
from mechmarkov.utils.text import shown

MAX_SEED = 1 << 63

# Of an optimiser, what each member of a stack has for itself.
OWN_SETTINGS = ("lr", "weight_decay", "warmup", "div_factor", "final_div_factor", "schedule", "max_grad_norm")


@dataclass(frozen=True)
class Member:
    """One model of a fleet: what it is trained on and for, and the seed of its start and its data."""

    recipe: Recipe
    seed: int


def members_of(recipe: Recipe, seeds: Sequence[int]) -> list[Member]:
    """A member a seed."""
    return [Member(recipe, seed) for seed in seeds]


def fleet_key(recipe: Recipe) -> str:
    """Equal for recipes that may share a stack.

    They agree in model, objective, steps, checkpoints, batch, kind of optimiser and number of states. The
    source, the start, the learning rate with its schedule, the weight decay and the longest gradient are each
    member's own.

    Example:
        >>> from mechmarkov.training.recipe import load_recipe
        >>> recipe = load_recipe("binary-p05-q08-tied")
        >>> key = fleet_key(recipe)
        >>> key == fleet_key(recipe.with_set(["source.p=0.1", "optimiser.lr=0.1", "init.std=0.5"]))
        True
        >>> key == fleet_key(recipe.with_set(["model.tied=false"]))
        False
    """
    data: dict[str, Any] = recipe.to_data()
    if not recipe.model.shares_stacks:
        return json.dumps(data, sort_keys=True)
    for own in ("name", "title", "init"):
        del data[own]
    data["source"] = recipe.source.n_states
    data["optimiser"] = {k: v for k, v in data["optimiser"].items() if k not in OWN_SETTINGS}
    return json.dumps(data, sort_keys=True)


def check_members(members: Sequence[Member]) -> None:
    """Refuse seeds that make no sense.

    Raises:
        TypeError: What is not a member with a recipe.
        ValueError: No members, a seed that is not an integer from 0 to 2^63 - 1, or a member twice.
    """
    for member in members:
        if not isinstance(member, Member) or not isinstance(member.recipe, Recipe):
            raise TypeError(f"members has {shown(member)}, expected mm.Member(recipe, seed)")
    seeds = [member.seed for member in members]
    good = all(type(seed) is int and 0 <= seed < MAX_SEED for seed in seeds)
    if not seeds or not good or len({(id(each.recipe), each.seed) for each in members}) < len(members):
        if len(seeds) == 1:
            raise ValueError(f"seed is {seeds[0]!r}, expected an integer from 0 to 2^63 - 1")
        some = f"{seeds[:20]}"[:-1] + (", …]" if len(seeds) > 20 else "]")
        raise ValueError(f"seeds are {some}, expected different integers from 0 to 2^63 - 1")


def check_stack(members: Sequence[Member]) -> None:
    """Refuse what cannot train as one stack.

    Raises:
        ValueError: Members that make no sense, or recipes that cannot share a stack; it names them.
    """
    check_members(members)
    recipes = {id(member.recipe): member.recipe for member in members}  # mostly one, shared by all
    keys = {fleet_key(recipe): recipe.name for recipe in recipes.values()}
    if len(keys) > 1:
        raise ValueError(f"recipes {' and '.join(map(repr, keys.values()))} cannot share a stack")
