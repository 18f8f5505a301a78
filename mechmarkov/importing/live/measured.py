"""Functions in somebody's model, recognised by their values: activations of MLPs and kinds of norms."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from mechmarkov.importing.live.inside import Inside
from mechmarkov.importing.live.logits import outputs
from mechmarkov.importing.live.untouched import call
from mechmarkov.models.layers import ACTIVATIONS
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.exits import is_by_signal
from mechmarkov.utils.text import listed

Layers = Sequence[tuple[nn.Module | None, nn.Module | None]]
REACH = 6.0  # activations are compared on [-6, 6]
ROUNDING = 1e-5  # there in float32; gelu and gelu_new are 5e-4 apart


def act_fn(live: Inside, layers: Layers, n_ctx: int) -> str | None:
    """The activation between two linear layers of each MLP, whatever code computes it.

    The model runs once. The output of each first layer is replaced by a grid, and what reaches the second
    one is compared with the activations that a `HookedDecoder` has.

    It cannot be seen (None) where a layer's weight is used without the layer being called.

    Raises:
        RunFileError: It is none of them, naming the nearest.
    """
    names, errors = set[str](), list[dict[str, float]]()
    for dtype in (torch.float32, torch.float64):  # the second where its own autocast rounds the first
        errors = [_errors(*pair) for pair in _through(live, layers, n_ctx, dtype)]
        nearest = [min(one, key=one.__getitem__) for one in errors]
        if len(errors) == len(layers) and all(
            x[name] <= ROUNDING for x, name in zip(errors, nearest, strict=True)
        ):
            names = set(nearest)
            break
    if len(names) == 1:
        return names.pop()
    if names:
        raise RunFileError(f"its blocks have the activations {listed(sorted(names))}, expected one")
    if len(errors) < len(layers):
        return None
    worst = max(errors, key=lambda one: min(one.values()))
    apart = listed(
        [f"{name} by up to {error:.2g}" for name, error in sorted(worst.items(), key=lambda x: x[1])]
    )
    raise RunFileError(
        f"the activation of its blocks differs on [{-REACH:g}, {REACH:g}] from {apart}: "
        "a HookedDecoder has no other"
    )


def _through(live: Inside, layers: Layers, n_ctx: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """The grid that was put in front of each activation and what came out, of those that could be seen."""
    given: dict[int, Tensor] = {}
    seen: dict[int, tuple[Tensor, Tensor]] = {}
    with ExitStack() as hooks:
        for layer, (before, after) in enumerate(layers):
            if before is None or after is None:
                continue

            def put(_: nn.Module, __: object, output: Tensor, layer: int = layer) -> Tensor:
                grid = torch.linspace(-REACH, REACH, output.numel())
                given[layer] = grid.view(output.shape).to(output)
                return given[layer]

            def take(_: nn.Module, arguments: tuple[Tensor, ...], layer: int = layer) -> None:
                if layer in given and arguments and arguments[0].numel() == given[layer].numel():
                    seen[layer] = (given[layer], arguments[0].detach())

            hooks.callback(before.register_forward_hook(put).remove)
            hooks.callback(after.register_forward_pre_hook(take, prepend=True).remove)
        for _ in outputs(live.model, torch.zeros(1, n_ctx, dtype=torch.long), dtype):
            if len(seen) == len(layers):
                break
    return list(seen.values())


def _errors(grid: Tensor, values: Tensor) -> dict[str, float]:
    """Returns how far values are from those of each activation at most."""
    x, y = grid.cpu().double().flatten(), values.cpu().double().flatten()
    return {name: float((y - activation(x)).abs().max()) for name, activation in ACTIVATIONS.items()}


def normalization_type(norm: nn.Module) -> str | None:
    """Measure the kind of a norm: LayerNorm does not see a constant that is added, RMSNorm does.

    Returns:
        "LN" or "RMS"; None where it cannot be called, or does neither.

    Example:
        >>> normalization_type(nn.LayerNorm(8))
        'LN'
    """
    width = next(norm.parameters()).numel()
    x = 1 + torch.linspace(-2, 3, width, dtype=torch.float32)[None, None].square()
    x = x.to(next(norm.parameters()).device)
    try:
        y, moved, scaled = (call(norm, torch.float32, z) for z in (x, x + 3, 4 * x))
        close = [torch.allclose(y, z, rtol=1e-3, atol=1e-3 * float(y.abs().max())) for z in (moved, scaled)]
    except Exception as error:  # somebody's code
        if is_by_signal(error):
            raise
        return None
    return {(True, True): "LN", (False, True): "RMS"}.get((close[0], close[1]))
