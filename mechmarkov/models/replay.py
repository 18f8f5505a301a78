"""Passes that differ by an intervention: what an intervention does not reach is taken from the first pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mechmarkov.models.attention import Attention
from mechmarkov.models.block import Block
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.layers import is_hooked
from mechmarkov.models.mixer import Context, Mixer

# Hooks that see what is remembered, and change nothing of it.
OF_MIXERS = ("", "hook_z", "hook_result")  # a hook of the mixer itself sees what it writes
OF_LAYERS = ("hook_resid_post",)


@contextmanager
def replayed(model: HookedDecoder) -> Iterator[HookedDecoder]:
    """Let each layer, and each mixer up to `z`, compute once for the inputs of its first pass.

    A layer that is hooked, or reads another input, is computed; its mixer's `z` is not, while nothing before
    it is hooked. The results are those of plain passes to the last bit. Weights must not change inside the
    block. A block inside another remembers nothing of its own.

    Example:
        >>> from mechmarkov.interventions.ablate import ablate
        >>> from mechmarkov.models.constructions.lookup_tables import value_table
        >>> model, tokens = value_table(torch.eye(2), n_ctx=4), torch.tensor([[0, 1]])
        >>> with replayed(model), torch.no_grad():
        ...     plain = model(tokens)
        ...     with ablate(model, "L0H0"):  # attention is not computed again
        ...         ablated = model(tokens)
        >>> plain.round().tolist(), ablated.tolist()
        ([[[1.0, 0.0], [0.0, 1.0]]], [[[0.0, 0.0], [0.0, 0.0]]])
    """
    every: list[Any] = list(model.blocks)
    blocks = [block for block in every if "forward" not in vars(block) and "mix" not in vars(block.attn)]
    for block in blocks:
        if type(block).forward is Block.forward:
            block.forward = _Replay(block.forward, block, block.attn, OF_LAYERS)
        if type(block.attn).forward in (Mixer.forward, Attention.forward):
            block.attn.mix = _Replay(block.attn.mix, block.attn, block.attn, OF_MIXERS)
    try:
        yield model
    finally:
        for module in (*blocks, *(block.attn for block in blocks)):
            vars(module).pop("forward", None)
            vars(module).pop("mix", None)


class _Replay:
    """The `forward` of a layer, or the `mix` of a mixer, that remembers its first inputs and its output."""

    def __init__(
        self, compute: Callable[..., Tensor], module: nn.Module, mixer: Mixer, after: Sequence[str]
    ) -> None:
        self._compute, self._module, self._mixer, self._after = compute, module, mixer, after
        self._window = getattr(mixer, "window", None)  # of the first pass: an intervention may narrow it
        self._inputs: tuple[Any, ...] = ()
        self._output: Tensor | None = None

    def __call__(self, *inputs: Any) -> Tensor:
        is_layer = self._module is not self._mixer
        if torch.is_grad_enabled() or any(isinstance(x, Context) for x in inputs):
            return self._compute(*inputs)
        if self._is_changed() or (self._output is None and self._is_read()):
            return self._compute(*inputs)
        if self._output is None:
            self._inputs, self._output = inputs, self._compute(*inputs)
        elif not all(map(_is_equal, inputs, self._inputs)):
            return self._compute(*inputs)
        # A hook of what reads it may overwrite it: of a layer that is anything.
        output = self._output.clone() if is_layer or self._is_read() else self._output
        return self._module.get_submodule("hook_resid_post")(output) if is_layer else output

    def _is_changed(self) -> bool:
        return getattr(self._mixer, "window", None) != self._window or any(
            is_hooked(module)  # some hook points are there only while they are hooked
            for name, module in self._module.named_modules()
            if name not in self._after
        )

    def _is_read(self) -> bool:
        return any(is_hooked(module) for name, module in self._module.named_modules() if name in self._after)


def _is_equal(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x is y or torch.equal(x, y)
    return x is y or (type(x) is type(y) and bool(x == y))
