"""A model of somebody's training is called here and left as it was, to the last bit."""

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mechmarkov.utils.exits import exits_as_errors


@contextmanager
def our_own_numbers() -> Iterator[None]:
    """Compute in float32 on the CPU in the block, with gradients, whatever a training has set."""
    with ExitStack() as stack:
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(_new_tensors(torch.float32))
        yield


@contextmanager
def same_random_numbers(model: object) -> Iterator[None]:
    """Leave the random numbers of torch, numpy and Python as they were."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    devices = {value.device for value in weights if value.device.type == "cuda"}
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([*devices]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _new_tensors(dtype: torch.dtype) -> Iterator[None]:
    """New tensors have this number type for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def call(model: nn.Module, dtype: torch.dtype, *args: Any, **options: Any) -> Any:
    """Call a model in evaluation mode, with copies of its weights in a number type; it is left as it was.

    Neither weights nor buffers of the model take part, so that an update in place in its forward pass (a
    running count, an embedding with `max_norm`) does not reach them. An exit in its code is an error: a
    guard may ask for it that weights of ours set off and its own do not.

    Args:
        model: The model.
        dtype: What its floating point weights and buffers are converted to.
        args: What it is called with.
        options: What it is called with by name.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5))
        >>> call(model, torch.float64, torch.ones(3, 2, dtype=torch.float64)).dtype, model.training
        (torch.float64, True)
    """
    device = next(model.parameters()).device.type
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # else nothing was compiled, and its import takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(borrowed(model, dtype))
        stack.enter_context(_new_tensors(dtype))  # a mask that is made in the forward pass
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(exits_as_errors())
        return model(*args, **options)


@contextmanager
def borrowed(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """A model in evaluation mode with copies of its weights, without accelerate's autocast around it.

    What its modules keep is put back: weights, modes, counters, what is cached in their attributes, lists and
    dicts. (`torch.func.functional_call` gives a module that has two names its weights back only once.)
    """
    attributes_before = [(vars(part), dict(vars(part))) for part in _parts(model)]
    inner = [
        (x, dict(x) if isinstance(x, dict) else list(x))
        for _, before in attributes_before
        for x in before.values()
        if isinstance(x, dict | list)
    ]
    copies: dict[int, Tensor] = {}  # a tied weight has one
    try:
        for attributes, before in attributes_before:
            attributes["training"] = False
            if (forward := forward_before_accelerate(before)) is not None:
                attributes["forward"] = forward
            for tensors in (attributes["_parameters"], attributes["_buffers"]):
                for name, value in tensors.items():
                    if value is not None and id(value) not in copies:
                        kind = dtype if value.is_floating_point() else value.dtype
                        copy = value.detach().to(kind, copy=True)
                        is_parameter = isinstance(value, nn.Parameter)
                        copies[id(value)] = nn.Parameter(copy, False) if is_parameter else copy
                    tensors[name] = copies.get(id(value))
        yield
    finally:
        for now, was in inner:
            if isinstance(now, dict) and isinstance(was, dict):
                _put_back(now, was)
            elif len(now) != len(was) or any(one is not other for one, other in zip(now, was, strict=True)):
                now[:] = was
        for attributes, before in attributes_before:
            _put_back(attributes, before)


def forward_before_accelerate(attributes: Mapping[str, Any]) -> Any | None:
    """Returns the forward pass that accelerate's `prepare` put autocast around; None where it did not.

    Of what `torch.compile` made it changes the forward pass, and what that was lands in the attributes of the
    model inside, whose own is as it was.

    Args:
        attributes: Those of a module, `vars(module)`.

    Example:
        >>> forward_before_accelerate({"forward": "with autocast", "_original_forward": "without"})
        'without'
        >>> forward_before_accelerate({"_original_forward": "that of the compiled one"})
    """
    return attributes.get("_original_forward") if "forward" in attributes else None


def _parts(model: nn.Module) -> list[nn.Module]:
    """A module and those in it, also those kept in an attribute that does not register them."""
    parts: dict[int, nn.Module] = {}
    waiting = [model]
    while waiting:
        part = waiting.pop()
        if id(part) in parts:
            continue
        parts[id(part)] = part
        for value in vars(part).values():
            several = value.values() if isinstance(value, dict) else value
            held = several if isinstance(value, dict | list | tuple) else [value]
            waiting += [one for one in held if isinstance(one, nn.Module)]
    return list(parts.values())


def _put_back(now: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Give a dict its items back, in their order, without touching those that are as they were."""
    if list(now) != list(before):
        now.clear()
    for name, value in before.items():
        if now.get(name, now) is not value:
            now[name] = value
