"""A model of somebody's training is called here and left as it was, to the last bit."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


@contextmanager
def our_own_numbers() -> Iterator[None]:
    """Compute in float32 on the CPU, with gradients and without autocast, whatever a training has set."""
    with ExitStack() as stack:
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(new_tensors(torch.float32))
        yield


@contextmanager
def new_tensors(dtype: torch.dtype) -> Iterator[None]:
    """New tensors have this number type for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def call(model: nn.Module, dtype: torch.dtype, *args: Any, **options: Any) -> Any:
    """A model's output in evaluation mode, computed in a number type from copies of its weights.

    Neither weights nor buffers of the model take part, so that an update in place in its forward pass (a
    running count, an embedding with `max_norm`) does not reach them.

    Args:
        model: The model.
        dtype: What its floating point weights and buffers are converted to.
        args: What it is called with.
        options: What it is called with by name.
    """
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copies = {
        name: value.detach().to(dtype if value.is_floating_point() else value.dtype, copy=True)
        for name, value in tensors.items()
    }
    device = next(model.parameters()).device.type
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # else nothing was compiled, and its import takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(borrowed(model))
        stack.enter_context(new_tensors(dtype))  # a mask that is made in the forward pass
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device, enabled=False))
        return functional_call(model, copies, args, options)


@contextmanager
def borrowed(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode, without the autocast that accelerate puts around its forward pass.

    What its modules keep is put back: modes, counters, what is cached in their attributes, lists and dicts.
    """
    kept = [(vars(part), dict(vars(part))) for part in model.modules()]
    inner = [
        (x, dict(x) if isinstance(x, dict) else list(x))
        for _, before in kept
        for x in before.values()
        if isinstance(x, dict | list)
    ]
    for attributes, before in kept:
        attributes["training"] = False
        if "_original_forward" in before:  # accelerate's `prepare`
            attributes["forward"] = before["_original_forward"]
    try:
        yield
    finally:
        for attributes, before in kept:
            _put_back(attributes, before)
        for now, was in inner:
            if isinstance(now, dict) and isinstance(was, dict):
                _put_back(now, was)
            elif len(now) != len(was) or any(one is not other for one, other in zip(now, was, strict=True)):
                now[:] = was


def _put_back(now: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Give a dict its items back, in their order, without touching those that are as they were."""
    if list(now) != list(before):
        now.clear()
    for name, value in before.items():
        if now.get(name, now) is not value:
            now[name] = value
