"""Weights that are made of others: by a parametrization of torch, or by a hook before each forward pass."""

from collections.abc import Iterator, Mapping
from copy import deepcopy

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

MADE_OF = ("g", "v", "u", "orig", "mask")  # ends of names of what a hook makes a weight of


def with_made_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns weights in which those that are made of others stand by their own names, instead of these.

    Args:
        model: The model.
        weights: Its weights and buffers.

    Example:
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        >>> sorted(layer.state_dict())[1]
        'parametrizations.weight.original0'
        >>> sorted(with_made_weights(layer, layer.state_dict()))
        ['bias', 'weight']
    """
    weights = dict(weights)
    for path, part in model.named_modules():
        at = f"{path}." if path else ""
        if is_parametrized(part):
            for name, recipe in part.parametrizations.items():
                made_of = f"{at}parametrizations.{name}."
                weights = {key: x for key, x in weights.items() if not key.startswith(made_of)}
                weights[f"{at}{name}"] = deepcopy(recipe).eval()()  # a spectral norm would change itself
        for name, made in _made_by_hooks(part):
            for end in MADE_OF:
                weights.pop(f"{at}{name}_{end}", None)
            weights[f"{at}{name}"] = made
    return weights


def _made_by_hooks(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields what hooks make before a forward pass: the weight's name, and the weight."""
    for hook in part._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            yield hook.name, hook.compute_weight(part)
        elif isinstance(hook, SpectralNorm):
            yield hook.name, hook.compute_weight(part, do_power_iteration=False)
        elif isinstance(hook, BasePruningMethod):
            yield hook._tensor_name, hook.apply_mask(part)
