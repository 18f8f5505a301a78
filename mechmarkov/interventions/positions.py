"""Positions at which an intervention acts, and passes that would not reach it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Bool
from torch import Tensor

from mechmarkov.models.components import head_index, mlp_index
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.utils.errors import list_of
from mechmarkov.utils.text import shown

Positions = int | Sequence[int] | Bool[Tensor, "*batch position"]

EMBEDDING = -1  # as the layer that a pass from tokens begins at


def marked(
    positions: Positions, lead: Sequence[int], length: int, device: torch.device
) -> Bool[Tensor, "*batch position"]:
    """True at chosen positions of sequences `[*lead, length]`.

    Args:
        positions: Numbers, from the end if negative; or true and false, `[position]`, `[batch, position]` or,
            of a stack, `[n_models, batch, position]`.
        lead: The axes before the position.
        length: The length of the sequences.
        device: The device of the result.

    Raises:
        ValueError: Naming a position that is not there, or a shape that does not fit.

    Example:
        >>> marked([0, -1], (), 4, torch.device("cpu")).tolist()
        [True, False, False, True]
    """
    if isinstance(positions, range):
        positions = list_of("positions", positions, "numbers of positions")
    try:
        given = torch.as_tensor(positions)
    except (ValueError, TypeError, RuntimeError):  # no numbers, or beyond 64 bits
        raise ValueError(
            f"positions is {shown(positions)}, expected {-length} to {length - 1} for {length} tokens"
        ) from None
    if given.numel() == 0 or given.is_floating_point() or given.is_complex():
        raise ValueError(f"positions is {shown(positions)}, expected numbers of positions, or true and false")
    if given.dtype == torch.bool:
        shape = [*lead, length]
        if given.ndim == 0 or list(given.shape) != shape[len(shape) - given.ndim :]:
            raise ValueError(f"positions have shape {list(given.shape)}, expected the last axes of {shape}")
        return given.to(device)
    if given.ndim > 1:
        raise ValueError(f"positions have shape {list(given.shape)}, expected [position], or true and false")
    numbers = given.reshape(-1).tolist()
    for position in numbers:
        if not -length <= position < length:
            raise ValueError(
                f"positions holds {position}, expected {-length} to {length - 1} for {length} tokens"
            )
    chosen = torch.zeros(length, dtype=torch.bool, device=device)
    chosen[numbers] = True
    return chosen


@contextmanager
def reached(model: HookedDecoder, component: str) -> Iterator[None]:
    """Refuse passes that begin after a component: what is done to it would change nothing. A context manager.

    Raises:
        ValueError: When the model runs.
    """
    layer = _layer_of(model, component)

    def check(_: Tensor, first_layer: int) -> None:
        if layer < first_layer:
            raise ValueError(f"the pass begins at layer {first_layer}, after {component}: begin before it")

    model.embed.listeners.append(check)
    try:
        yield
    finally:
        model.embed.listeners.remove(check)


def _layer_of(model: HookedDecoder, component: str) -> int:
    head, mlp = head_index(component), mlp_index(component)
    if head is not None:
        return head[0]
    if mlp is not None:
        return mlp
    shortformer = model.config.positional_embedding_type == "shortformer"
    return model.config.n_layers if component == "pos_embed" and shortformer else EMBEDDING
