"""Paths where norms stand behind the sums: what one receiver reads, with the norms between computed anew.

A stream behind a norm is not the sum of what components write. So what a receiver would read is computed
next to the pass: the sums of the pass, with what the senders write replaced, go through each norm between.
All other components write what they write in the pass (path patching, Goldowsky-Dill et al. 2023). Senders
that are replaced in one receiver at a time are replaced together there.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.interventions.replace import Replacement
from mechmarkov.models.components import Output, head_index, mlp_index, norms_between, output_of, split_input
from mechmarkov.models.components import stage_of as stage
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.layers import member_matmul

Stream = Float[Tensor, "*stack batch position d_model"]


@dataclass(frozen=True, eq=False)
class _Reading:
    """Keeps what senders change in what one receiver reads.

    Attributes:
        changes: What each sender would write, less what it writes in this pass: its stage and that.
        norms: The norms between embedding and receiver, each with its stage.
        sums: What each of them normalises in this pass.
    """

    norms: list[tuple[int, Any]]
    changes: dict[object, tuple[int, Stream]] = field(default_factory=dict)
    sums: dict[int, Stream] = field(default_factory=dict)

    def change(self) -> Stream:
        """The change of the stream where the receiver reads it."""
        first = min(at for at, _ in self.changes.values())
        moved = torch.zeros((), device=next(iter(self.changes.values()))[1].device)
        for at in (-1, *(at for at, _ in self.norms)):
            moved = moved + sum(change for sent_at, change in self.changes.values() if sent_at == at)
            if at < max(first, 0):
                continue
            norm, before = dict(self.norms)[at], self.sums[at]
            moved = moved[..., -before.shape[-2] :, :]  # of the last layer maybe only the last positions
            moved = norm.forward(before + moved) - norm.forward(before)
        return moved


@contextmanager
def replaced_behind_norms(
    model: HookedDecoder, sender: str, receiver: str, value: Replacement
) -> Iterator[HookedDecoder]:
    """Do what `replace_path` does, where `norm_first` is False.

    Args:
        model: A model or a stack.
        sender: Its name, such as `L0H0`; there is a path from it to the receiver.
        receiver: Its name, such as `L1H0.K`.
        value: From the sender's output `[*stack, batch, position, d]` to its replacement.
    """
    readings: dict[str, _Reading] = model.__dict__.setdefault("readings_behind_norms", {})
    me, output = object(), output_of(model.config, sender)

    with ExitStack() as stack:
        if receiver not in readings:
            readings[receiver] = _reading(model, receiver, stack)
            stack.callback(readings.pop, receiver)
        changes = readings[receiver].changes
        stack.callback(changes.pop, me, None)

        def note(x: Tensor) -> None:
            before = output.read(x)
            moved = value(before) - before
            if output.head is not None:
                layer, head = output.head
                W_O = model.weight(f"blocks.{layer}.attn.W_O")[..., head, :, :]
                moved = member_matmul(moved, W_O)
            changes[me] = stage(sender), moved

        stack.enter_context(model.hooks([(output.hook, lambda x, hook: note(x))]))
        yield model


def _reading(model: HookedDecoder, receiver: str, stack: ExitStack) -> _Reading:
    """Make what notes the sums on the way to a receiver and changes what it reads, until `stack` closes."""
    name, side = split_input(receiver)
    index, mlp = head_index(name), mlp_index(name)
    names = [one for one in norms_between(model.config, "embed", name) if one != "ln_final"]
    norms = [(2 * int(one.split(".")[1]) + (one[-1] == "2"), model.get_submodule(one)) for one in names]
    reading = _Reading(norms)
    for at, norm in norms:
        # Of the module, not of a hook point: it sees the sum that all interventions have led to.
        taken = norm.register_forward_pre_hook(lambda _, x, at=at: reading.sums.update({at: x[0]}))
        stack.callback(taken.remove)
    weight: Tensor | None = None
    if mlp is not None:
        stack.enter_context(hook_points(model, "hook_mlp_in", model.set_use_hook_mlp_in))
        place = Output(f"blocks.{mlp}.hook_mlp_in")
    elif index is None:
        place = Output(f"blocks.{model.config.n_layers - 1}.hook_resid_post")
    else:
        layer, head = index
        block: Any = model.blocks[layer]
        if block.attn.is_linear:
            if block.attn.shares(side):
                stack.enter_context(ungrouped(block.attn))
            weight = model.weight(f"blocks.{layer}.attn.W_{side}")[..., head, :, :]
            place = Output(f"blocks.{layer}.attn.hook_{side.lower()}", index)
        else:
            point = f"hook_{side.lower()}_input"
            stack.enter_context(hook_points(model, point, model.set_use_split_qkv_input))
            place = Output(f"blocks.{layer}.{point}", index)

    def edit(x: Tensor) -> Tensor:
        before, moved = place.read(x), reading.change()
        moved = moved if weight is None else member_matmul(moved, weight)
        return place.replaced(x, before + moved[..., -before.shape[-2] :, :])

    stack.enter_context(model.hooks([(place.hook, lambda x, hook: edit(x))]))
    return reading


@contextmanager
def hook_points(model: HookedDecoder, point: str, switch: Callable[[bool], None]) -> Iterator[None]:
    """Optional hook points for as long as they are needed; kept if they existed before.

    Args:
        model: The model.
        point: The name of one of them, such as `hook_mlp_in`.
        switch: What makes and removes them, such as `model.set_use_hook_mlp_in`.
    """
    existed = model._has(point)
    if not existed:
        switch(True)
    try:
        yield
    finally:
        if not existed:
            switch(False)


@contextmanager
def ungrouped(mixer: Any) -> Iterator[None]:
    """Keys and values of each head of a mixer, where heads share them, for as long as they are needed."""
    before, mixer.is_ungrouped = mixer.is_ungrouped, True
    try:
        yield
    finally:
        mixer.is_ungrouped = before
