"""Decoders whose frozen weights are set by hand: the walk model, and its variants."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import mechmarkov as mm
from experiments.random_walks.common import POPULATION, RECIPES
from mechmarkov.models.constructions.walk import (
    WalkShape,
    walk_decoder_config,
    walk_frozen_state,
    walk_trainable,
)

# A short walk for variants: 6 divides N - 1 = 24, the fair walk is learned within 5 steps, and rounding keeps
# the deterministic one's attention flat (below FLAT) for 10.
SHORT = WalkShape(n_states=6, n_ctx=25, n_positions=63)
FLAT = 1e-3  # attention spread over real tokens; uniform mass is 1/25
V_BLOCK = {"blocks.0.attn.W_O": [[0, 1], [0, SHORT.n_states], [0, SHORT.n_states]]}


def token_block(width: int, d_head: int = SHORT.n_states) -> Float[Tensor, "1 width d_head"]:
    """`W_V` of the walk model: it reads the states."""
    block = torch.zeros(1, width, d_head)
    block[0].diagonal()[: SHORT.n_states] = 1
    return block


@dataclass(frozen=True)
class HandSet:
    """A decoder whose frozen weights are set by hand.

    Attributes:
        recipe: What trains it.
        start: Its weights before the first step, as a run.
    """

    recipe: mm.Recipe
    start: mm.Run

    def train(self, p: float, *changes: str, seed: int = 0) -> mm.Run:
        """Train it on a circle walk; a deterministic one on all its walks, which have no sampling error."""
        data = [POPULATION] if p in (0.0, 1.0) else []
        return mm.train(self.recipe.with_set([f"source.p={p}", *data, *changes]), seed=seed, start=self.start)


def hand_set(
    model: Mapping[str, Any],
    states: Mapping[str, torch.Tensor],
    trainable: Mapping[str, list[list[int]] | None],
    *changes: str,
) -> HandSet:
    """A variant: fields of the decoder, its weights (those not named are zero), and what is trained."""
    values = {"model": {"kind": "decoder", **model}, "trainable": dict(trainable)}
    recipe = mm.load_recipe(RECIPES / "walk-decoder.toml").replace(**values).with_set(changes)
    decoder = mm.HookedDecoder(recipe.decoder_config)
    weights = {name: torch.zeros_like(value) for name, value in decoder.state_dict().items()}
    decoder.load_state_dict(weights | dict(states))
    return HandSet(recipe, mm.Run.from_model(decoder, source=recipe.source, objective=recipe.objective))


def walk_fields(shape: WalkShape) -> dict[str, Any]:
    """The decoder that the walk model is, as fields of a recipe."""
    left_out = {"d_vocab", "d_vocab_out", "act_fn", "d_mlp", "window", "rotary_dim", "normalization_type"}
    return walk_decoder_config(shape).model_dump(exclude=left_out) | {"normalization_type": "none"}


def walk_variant(shape: WalkShape = SHORT, **fields: Any) -> HandSet:
    """The walk model as a decoder, `V` and `u` trained from zero, with some fields changed."""
    return hand_set(walk_fields(shape) | fields, walk_frozen_state(shape), walk_trainable(shape))
