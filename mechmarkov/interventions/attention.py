"""Interventions on attention: where heads look, and how far back."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.components import HEAD, check_part, parts
from mechmarkov.models.decoder import HookedDecoder


@contextmanager
def attend(
    model: HookedDecoder,
    heads: str | Sequence[str],
    *,
    to: Literal["uniform", "parent"] | str,
    parent_lag: int = 0,
) -> Iterator[HookedDecoder]:
    """Replace the attention of heads.

    Args:
        model: A model or a stack.
        heads: `"L0H1"`, or several.
        to: `"uniform"` over the keys that a query may look at; `"parent"`: all on the parent of the predicted
            token.
        parent_lag: Query less key of the parent: 0 for a next-token model, 1 behind a query token (queries
            that have none look at the first token).

    Raises:
        ValueError: For a head or a target that does not exist.
    """
    if to not in ("uniform", "parent"):
        raise ValueError(f"to is {to!r}, expected 'uniform' or 'parent'")

    def pattern(x: Tensor, allowed: Tensor) -> Tensor:
        if to == "uniform":
            return (allowed / allowed.sum(-1, keepdim=True)).to(x.dtype)
        parent = (torch.arange(len(allowed), device=x.device) - parent_lag).clamp_min(0)
        return torch.nn.functional.one_hot(parent, len(allowed)).to(x.dtype)

    def hook_for(layer: int, chosen: list[int]) -> tuple[str, Callable[[Tensor, object], Tensor]]:
        def hook(x: Tensor, hook: object) -> Tensor:
            del hook
            x = x.clone()
            x[..., chosen, :, :] = pattern(x, _allowed(model.config.window, x))
            return x

        return f"blocks.{layer}.attn.hook_pattern", hook

    with model.hooks([hook_for(layer, chosen) for layer, chosen in _by_layer(model, heads).items()]):
        yield model


@contextmanager
def limit_window(
    model: HookedDecoder, back: int, *, heads: str | Sequence[str] | None = None
) -> Iterator[HookedDecoder]:
    """Let heads look at the query's own position and `back` positions before it, and renormalise.

    Args:
        model: A model or a stack.
        back: At least 0, as `DecoderConfig.window`.
        heads: Which; all by default.

    Raises:
        ValueError: For a negative `back` or a head that does not exist.
    """
    if back < 0:
        raise ValueError(f"back is {back}, expected at least 0 positions")
    if heads is None:
        heads = [name for name in parts(model) if HEAD.fullmatch(name)]

    def hook_for(layer: int, chosen: list[int]) -> tuple[str, Callable[[Tensor, object], Tensor]]:
        def hook(x: Tensor, hook: object) -> Tensor:
            del hook
            x = x.clone()
            x[..., chosen, :, :] = x[..., chosen, :, :].masked_fill(~_allowed(back, x), -torch.inf)
            return x

        return f"blocks.{layer}.attn.hook_attn_scores", hook

    with model.hooks([hook_for(layer, chosen) for layer, chosen in _by_layer(model, heads).items()]):
        yield model


def _allowed(window: int | None, x: Float[Tensor, "... query key"]) -> Tensor:
    position = torch.arange(x.shape[-1], device=x.device)
    lag = position[:, None] - position[None, :]
    return (lag >= 0) if window is None else (lag >= 0) & (lag <= window)


def _by_layer(model: HookedDecoder, heads: str | Sequence[str]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in [heads] if isinstance(heads, str) else heads:
        check_part(model, name)
        match = HEAD.fullmatch(name)
        if match is None:
            raise ValueError(f"heads holds {name!r}, expected heads, such as 'L0H0'")
        found.setdefault(int(match[1]), []).append(int(match[2]))
    return found
