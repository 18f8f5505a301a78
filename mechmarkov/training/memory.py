"""How much memory a member of a stack takes, and how a fleet is split so that each stack fits."""

import math
from collections.abc import Sequence

from mechmarkov.objectives import sequence_length
from mechmarkov.sources.sampling.stacks import CHUNK_TOKENS
from mechmarkov.training.data import sequences_of
from mechmarkov.training.members import Member, fleet_key
from mechmarkov.training.recipe import Recipe

STATE_BYTES = 8  # states are int64


def member_bytes(recipe: Recipe) -> int:
    """An upper estimate of what one member adds to a stack: its data and its model's `member_bytes`."""
    config = recipe.decoder_config
    length = sequence_length(recipe.objective, config.n_ctx)
    sequences = sequences_of(recipe)
    tokens = sequences * length
    drawn = tokens if recipe.data.batch is None else max(tokens, min(CHUNK_TOKENS, tokens * recipe.steps))
    # The sampler makes a map of all states for every token of up to 32 MB of them, whatever is drawn.
    data = drawn * 3 * STATE_BYTES
    return data + recipe.model.member_bytes(config, sequences, length, len(recipe.checkpoint_steps))


def sizes_of(members: Sequence[Member]) -> list[int]:
    """`member_bytes` of each; a recipe that several share is asked once."""
    recipes = {id(member.recipe): member.recipe for member in members}
    sizes = {key: member_bytes(recipe) for key, recipe in recipes.items()}
    return [sizes[id(member.recipe)] for member in members]


def split(
    members: Sequence[Member], *, budget: int, at_once: int = 1, least: int = 1, most: int | None = None
) -> list[list[int]]:
    """Indices of members, stack by stack: each shares a shape and all that train at once fit the budget.

    The budget is in bytes. A group is split into `at_once` stacks, which train at the same time, as far as
    each has `least` tokens a step. No stack of several members has more than `most`.

    Raises:
        ValueError: A single member is larger than the budget.
    """
    keys = {id(member.recipe): fleet_key(member.recipe) for member in members}
    groups: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        groups.setdefault(keys[id(member.recipe)], []).append(index)
    stacks = []
    for group in groups.values():
        recipe = members[group[0]].recipe
        needed = member_bytes(recipe)
        if needed > budget:
            raise ValueError(
                f"memory is {budget / 1e6:.0f} MB, but one model of recipe {recipe.name!r} needs about "
                f"{needed / 1e6:.0f} MB"
            )
        room = max(1, budget // at_once // needed)
        tokens = sequences_of(recipe) * recipe.decoder_config.n_ctx
        if most is not None:
            room = min(room, max(1, most // tokens))
        worth = max(1, len(group) * tokens // least)
        n_stacks = max(math.ceil(len(group) / room), min(at_once, worth, len(group)))
        size = math.ceil(len(group) / n_stacks)
        stacks += [group[i : i + size] for i in range(0, len(group), size)]
    return stacks
