"""How much memory a member of a stack takes, and how a fleet is split so that each stack fits."""

import math
from collections.abc import Sequence

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.fast.choose import is_faster
from mechmarkov.training.data import CHUNK_TOKENS
from mechmarkov.training.members import Member, fleet_key
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.sections import WalkSection
from mechmarkov.training.sequences import sequence_length

FLOAT, INTEGER = 4, 8
# Below so many tokens a step a stack's time goes into launching operations, and a second thread only waits.
LEAST_TOKENS = 1 << 13


def member_bytes(recipe: Recipe) -> int:
    """An upper estimate of what one member adds to a stack: weights, moments, checkpoints, data, activations.

    Activations are those of one forward pass, kept for the backward pass, and their gradients.
    """
    config = recipe.decoder_config
    sequences = recipe.data.batch or recipe.data.n_train or recipe.source.n_states
    length = sequence_length(recipe.objective, config.n_ctx)
    tokens = sequences * length
    drawn = tokens if recipe.data.batch is None else max(tokens, min(CHUNK_TOKENS, tokens * recipe.steps))
    # The sampler makes a map of all states for every token of up to 32 MB of them, whatever is drawn.
    data = drawn * 3 * INTEGER
    if isinstance(recipe.model, WalkSection):  # sequences as one-hot vectors, and what they are multiplied to
        return data + 4 * FLOAT * tokens * (config.d_vocab + 2) + 2 * FLOAT * config.d_vocab**2
    weights = _parameters(config) * FLOAT
    kept = len(recipe.checkpoint_steps)
    scores = sequences * config.n_heads * length**2 * 3 * config.n_layers
    spelled_out = config.positional_embedding_type == "relative"  # its lag scores are as large as a pattern
    activations = 2 * FLOAT * (tokens * _floats_per_token(config) + (scores if spelled_out else 0))
    if is_faster(config, sequences, "cpu"):  # weights of all tokens at all positions
        activations += FLOAT * config.n_heads * (config.n_ctx * config.d_vocab) ** 2
    return data + weights * (6 + kept) + activations


def _parameters(config: DecoderConfig) -> int:
    heads = config.n_heads * config.d_head
    layer = 4 * config.d_model * heads + 2 * config.d_model * (config.d_mlp or 0) + 8 * config.d_model
    relative = config.positional_embedding_type == "relative"
    positions = config.n_ctx * (heads * config.n_layers if relative else config.d_model)
    return config.n_layers * layer + positions + config.d_model * (config.d_vocab + config.d_vocab_out)


def _floats_per_token(config: DecoderConfig) -> int:
    heads = config.n_heads * config.d_head
    norms = 0 if config.normalization_type is None else 6 * config.d_model
    layer = norms + 5 * heads + 5 * config.d_model + 3 * (config.d_mlp or 0)
    return config.n_layers * layer + 4 * config.d_model + 4 * config.d_vocab_out + 2 * config.d_vocab


def split(
    members: Sequence[Member], *, budget: int, at_once: int = 1, most: int | None = None
) -> list[list[int]]:
    """Indices of members, stack by stack: each shares a shape and all that train at once fit the budget.

    Args:
        members: The fleet.
        budget: Bytes.
        at_once: How many stacks train at the same time; a group with enough work is split at least so often.
        most: Never more tokens a step in one stack; None for no such limit. One member is always allowed.

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
        tokens = (recipe.data.batch or recipe.data.n_train or 1) * recipe.decoder_config.n_ctx
        if most is not None:
            room = min(room, max(1, most // tokens))
        worth = max(1, len(group) * tokens // LEAST_TOKENS)
        n_stacks = max(math.ceil(len(group) / room), min(at_once, worth, len(group)))
        size = math.ceil(len(group) / n_stacks)
        stacks += [group[i : i + size] for i in range(0, len(group), size)]
    return stacks
