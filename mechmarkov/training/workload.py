"""Members of a fleet, and what a recipe asks of a machine, worked out once for all of its seeds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mechmarkov.models.config import DecoderConfig, Slices
from mechmarkov.objectives import sequence_length
from mechmarkov.population import n_rows
from mechmarkov.sources.sampling.stacks import CHUNK_TOKENS
from mechmarkov.training.recipe import Recipe

STATE_BYTES = 8  # states are int64
# Of an optimiser, what each member of a stack has for itself.
OWN_SETTINGS = ("lr", "weight_decay", "warmup", "div_factor", "final_div_factor", "schedule", "max_grad_norm")


@dataclass(frozen=True)
class Member:
    """One training.

    Attributes:
        recipe: What is trained, on what and for what.
        seed: The seed of its start and its data.
    """

    recipe: Recipe
    seed: int


def members_of(recipe: Recipe, seeds: Sequence[int]) -> list[Member]:
    """Returns one training for each seed, all of one recipe: what `train_members` takes.

    Example:
        >>> from mechmarkov.training.recipe import load_recipe
        >>> [member.seed for member in members_of(load_recipe("walk-k6-half"), range(3))]
        [0, 1, 2]
    """
    return [Member(recipe, seed) for seed in seeds]


@dataclass(frozen=True, eq=False)
class Workload:
    """The sizes of one training, which follow from its recipe.

    Attributes:
        recipe: The recipe.
        key: A key that is equal for recipes that may share a stack (`fleet_key`).
        config: The decoder that checkpoints are weights of.
        trainable: The part of it that is trained; None for all.
        checkpoints: The steps at which weights are kept, ascending.
        length: States of a training sequence, the last target among them.
        sequences: How many sequences a step reads.
        tokens: How many tokens a step reads.
        bytes: An upper estimate of what one member adds to a stack.
    """

    recipe: Recipe
    key: str
    config: DecoderConfig
    trainable: Slices | None
    checkpoints: tuple[int, ...]
    length: int
    sequences: int
    tokens: int
    bytes: int


def workload_of(recipe: Recipe) -> Workload:
    """Work out the sizes that follow from a recipe; sequences of a population are counted and not made.

    Raises:
        ValueError: `data.population` of a source or a model that has no such sum.

    Example:
        >>> from mechmarkov.training.recipe import load_recipe
        >>> recipe = load_recipe("walk-k6-half").with_set(["model.n_ctx=4", "data={population=true}"])
        >>> workload_of(recipe).sequences  # six starts, two ways to go at each of three steps
        48
    """
    config, data, checkpoints = recipe.decoder_config, recipe.data, tuple(recipe.checkpoint_steps)
    length = sequence_length(recipe.objective, config.n_ctx)
    sequences = data.batch or data.n_train or n_rows(recipe.source, recipe.objective, config)
    states = sequences * length
    drawn = states if data.batch is None else max(states, min(CHUNK_TOKENS, states * recipe.steps))
    return Workload(
        recipe,
        fleet_key(recipe),
        config,
        recipe.trainable_slices,
        checkpoints,
        length,
        sequences,
        sequences * config.n_ctx,
        # The sampler makes a map of all states for every token of up to 32 MB of them, whatever is drawn.
        bytes=drawn * 3 * STATE_BYTES
        + recipe.model.member_bytes(config, sequences, length, len(checkpoints)),
    )


def fleet_key(recipe: Recipe) -> str:
    """Returns a text that is equal for recipes that may train in one stack.

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
    data: dict[str, Any] = recipe.model_dump(mode="json")
    if recipe.model.shares_stacks:
        for own in ("name", "title", "init"):
            del data[own]
        data["source"] = recipe.source.n_states
        data["optimiser"] = {k: v for k, v in data["optimiser"].items() if k not in OWN_SETTINGS}
    return json.dumps(data, sort_keys=True)
