"""Masks and rotary tables that lie next to weights: they must be those that the config makes."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mechmarkov.importing.layout import Called, ImportPlan
from mechmarkov.models import DecoderConfig
from mechmarkov.models.layers import causal_mask
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import counted


def checked(plan: ImportPlan, masks: Sequence[str], frequencies: Sequence[str], called: Called) -> ImportPlan:
    """Returns the plan that also reads masks and rotary frequencies, and refuses others than its config's.

    Args:
        plan: What to import.
        masks: Names of masks, whose last two axes are query and key.
        frequencies: Names of tables of a rotary model: the angle by which each pair turns from one position
            to the next.
        called: What the file calls them.
    """

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        for name in masks:
            _check_mask(called(name), weights[name], plan.config)
        for name in frequencies:
            _check_frequencies(called(name), weights[name], plan.config)
        own = {name: value for name, value in weights.items() if name in plan.wanted}
        return plan.states(own)

    wanted = (*plan.wanted, *masks, *frequencies)
    return replace(plan, wanted=wanted, states=states, masks=frozenset(masks))


def _check_mask(name: str, value: Tensor, config: DecoderConfig) -> None:
    """Refuse a mask of other keys than the config's, and say which window it has, if it has one."""
    length = config.n_ctx
    if value.ndim < 2 or min(value.shape[-2:]) < length:
        raise RunFileError(f"{name} has shape {list(value.shape)}, expected a mask of {length} positions")
    mask = value.reshape(-1, *value.shape[-2:])[..., :length, :length]
    # Of 0 and 1, of true and false, or of what is added to scores; a position sees itself.
    seen = mask > -1 if bool((mask < 0).any()) else mask != 0
    seen = seen if bool(seen[0, 0, 0]) else ~seen
    if (seen != causal_mask(length, length, config.window, value.device)).any():
        window = int(seen[0, -1].sum()) - 1
        if (seen == causal_mask(length, length, window, value.device)).all():
            if window == length - 1:
                raise RunFileError(f"{name} is a mask without a window: leave out --set window")
            keys = f"a query sees itself and {counted(window, 'token')} before it"
            raise RunFileError(f"{name} is a mask in which {keys}: give --set window={window}")
        raise RunFileError(f"{name} is not a causal mask, with a window or without")


def _check_frequencies(name: str, value: Tensor, config: DecoderConfig) -> None:
    if config.positional_embedding_type != "rotary" or config.rotary_dim is None:
        kind = config.positional_embedding_type
        raise RunFileError(f"it has {name}, of rotary positions, but positional_embedding_type is {kind!r}")
    half = torch.arange(config.rotary_dim // 2, dtype=torch.float64)
    ours = config.rotary_base ** (-2 * half / config.rotary_dim)
    # They are float32 at best; another base or width is far off.
    if value.shape != ours.shape or not torch.allclose(value.double(), ours, rtol=1e-2, atol=0):
        raise RunFileError(
            f"{name} is not what rotary_base {config.rotary_base:g} and rotary_dim {config.rotary_dim} make: "
            "give --set rotary_base=…, --set rotary_dim=…"
        )
