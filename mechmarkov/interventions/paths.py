"""Paths: what one component's output is to one later component, through the residual stream alone.

Replacing it there and nowhere else is path patching (Wang et al. 2022, section 3.1; Goldowsky-Dill et al.
2023). Senders are `embed`, `pos_embed`, heads and MLPs; receivers are `logits`, MLPs and the inputs of heads:
`L1H0.Q`, `L1H0.K`, `L1H0.V`, or those that the layer's mixer has.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from mechmarkov.interventions.replace import Replacement
from mechmarkov.models.components import (
    component_names,
    head_index,
    head_name,
    mlp_index,
    mlp_name,
    output_of,
    split_input,
)
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.layers import member_matmul

Hook = Callable[[Tensor, object], Tensor]


def paths(model: HookedDecoder) -> list[tuple[str, str]]:
    """Every path from one component to another without a third between them, as (sender, receiver)."""
    both = [(sender, receiver) for receiver in _receivers(model) for sender in _senders(model)]
    return [path for path in both if _why_no_path(model, *path) is None]


def check_path(model: HookedDecoder, sender: str, receiver: str) -> None:
    """Raise a ValueError that says why there is no path, if there is none."""
    why = _why_no_path(model, sender, receiver)
    if why is not None:
        raise ValueError(why)


@contextmanager
def replace_path(
    model: HookedDecoder, sender: str, receiver: str, value: Replacement
) -> Iterator[HookedDecoder]:
    """Replace a component's output by a function of it, in what one later component reads and nowhere else.

    Args:
        model: A model or a stack.
        sender: Whose output is replaced.
        receiver: Where it is replaced.
        value: As for `replace_component`.

    Raises:
        ValueError: If there is no such path; the error says why.
    """
    check_path(model, sender, receiver)
    output = output_of(model.config, sender)
    change: dict[str, Tensor] = {}

    def note_change(x: Tensor, hook: object) -> None:
        del hook
        before = output.read(x)
        change["residual"] = value(before) - before
        if output.head is not None:
            layer, head = output.head
            W_O = model.get_parameter(f"blocks.{layer}.attn.W_O")[..., head, :, :]
            change["residual"] = member_matmul(change["residual"], W_O)

    def add_change(x: Tensor, hook: object) -> Tensor:
        del hook
        return x + change["residual"]

    edit: Hook = add_change
    with ExitStack() as stack:
        if receiver == "logits":
            at = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
        elif (mlp := mlp_index(receiver)) is not None:
            stack.enter_context(_hook_points(model, "hook_mlp_in", model.set_use_hook_mlp_in))
            at = f"blocks.{mlp}.hook_mlp_in"
        else:
            at, edit = _head_input(model, sender, receiver, change, stack)
        stack.enter_context(model.hooks([(output.hook, note_change), (at, edit)]))
        yield model


def _head_input(
    model: HookedDecoder, sender: str, receiver: str, change: dict[str, Tensor], stack: ExitStack
) -> tuple[str, Hook]:
    """Where a head's query, key or value is edited, and how."""
    name, side = split_input(receiver)
    index = head_index(name)
    assert index is not None  # all other receivers have been handled
    layer, head = index

    def add(x: Tensor, added: Tensor) -> Tensor:
        x = x.clone()
        x[..., head, :] += added
        return x

    if model.config.normalization_type is None or _is_shortformer_position(model, sender):
        # Nothing but a matrix lies between (shortformer positions are added after the norm).
        weight = model.get_parameter(f"blocks.{layer}.attn.W_{side}")[..., head, :, :]
        at = f"blocks.{layer}.attn.hook_{side.lower()}"
        return at, lambda x, hook: add(x, member_matmul(change["residual"], weight))
    point = f"hook_{side.lower()}_input"
    stack.enter_context(_hook_points(model, point, model.set_use_split_qkv_input))
    return f"blocks.{layer}.{point}", lambda x, hook: add(x, change["residual"])


@contextmanager
def _hook_points(model: HookedDecoder, point: str, switch: Callable[[bool], None]) -> Iterator[None]:
    """Optional hook points for as long as they are needed; kept if they existed before."""
    existed = model._has(point)
    if not existed:
        switch(True)
    try:
        yield
    finally:
        if not existed:
            switch(False)


def _senders(model: HookedDecoder) -> list[str]:
    return [name for name in component_names(model.config) if name not in ("direct", "bias")]


def _receivers(model: HookedDecoder) -> list[str]:
    found, blocks = [], list[Any](model.blocks)
    for layer, block in enumerate(blocks):
        heads = [head_name(layer, head) for head in range(model.config.n_heads)]
        found += [f"{head}.{side}" for head in heads for side in block.attn.inputs]
        found += [mlp_name(layer)] * (block.mlp is not None)
    return [*found, "logits"]


def _is_shortformer_position(model: HookedDecoder, sender: str) -> bool:
    return sender == "pos_embed" and model.config.positional_embedding_type == "shortformer"


def _why_no_path(model: HookedDecoder, sender: str, receiver: str) -> str | None:
    if sender not in (senders := _senders(model)):
        return f"sender is {sender!r}, expected one of {', '.join(senders)}"
    if receiver not in (receivers := _receivers(model)):
        return f"receiver is {receiver!r}, expected 'logits' or one of {', '.join(receivers[:-1])}"
    reader, side = split_input(receiver)
    if _is_shortformer_position(model, sender) and side not in ("Q", "K"):
        return f"pos_embed does not reach {receiver}: shortformer positions go to queries and keys alone"
    if _depth(sender) < (_depth(reader) if reader != "logits" else 2 * model.config.n_layers):
        return None
    return f"{sender} does not come before {receiver}"


def _depth(name: str) -> int:
    """The order of computation: 2 l for the heads of layer l, 2 l + 1 for its MLP, -1 for embeddings."""
    head, mlp = head_index(name), mlp_index(name)
    return 2 * head[0] if head is not None else -1 if mlp is None else 2 * mlp + 1
