"""Passes that differ by an intervention: what an intervention does not reach is taken from the first pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mechmarkov.models.attention import Attention
from mechmarkov.models.block import Block
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.layers import MLP, Norm, is_hooked
from mechmarkov.models.mixer import Context, Mixer

# Hooks that see what is remembered, and change nothing of it.
OF_MIXERS = ("", "hook_z", "hook_result")  # a hook of the mixer itself sees what it writes
OF_LAYERS = ("hook_resid_post",)
OF_MLPS = ("",)


@contextmanager
def replayed(model: HookedDecoder) -> Iterator[HookedDecoder]:
    """Let each layer, and in it norm, MLP and mixer up to `z`, compute once for the first inputs.

    A layer that is hooked, or reads another input, is computed; its mixer's `z` is not, while nothing before
    it is hooked, nor its MLP while what that reads is the same. The results are those of plain passes to the
    last bit. Weights must not change inside the block. A block inside another remembers nothing of its own.

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
    readers = [[block] for block in every[1:]] + [[model.ln_final, model.unembed]]
    both = [
        (block, readers_of)
        for block, readers_of in zip(every, readers, strict=True)
        if "forward" not in vars(block) and "mix" not in vars(block.attn)
    ]
    for block, readers_of in both:
        if type(block).forward is Block.forward:
            block.forward = _Replay(block.forward, block, block.attn, OF_LAYERS, readers_of)
        for part, after in ((block.ln1, ()), (block.mlp, OF_MLPS)):
            if type(part) in (Norm, MLP):
                part.forward = _Replay(part.forward, part, block.attn, after)
        if type(block.attn).forward in (Mixer.forward, Attention.forward):
            block.attn.mix = _Replay(block.attn.mix, block.attn, block.attn, OF_MIXERS)
    try:
        yield model
    finally:
        for block, _ in both:
            for module in (block, block.ln1, block.attn, block.mlp):
                for name in ("forward", "mix") if module is not None else ():
                    vars(module).pop(name, None)


class _Replay:
    """The `forward` of a layer or a part, or a mixer's `mix`, that remembers its first inputs and output."""

    def __init__(
        self,
        compute: Callable[..., Tensor],
        module: nn.Module,
        mixer: Mixer,
        after: Sequence[str],
        readers: Sequence[nn.Module] = (),
    ) -> None:
        self._compute, self._module, self._mixer = compute, module, mixer
        self._after, self._readers = after, readers
        self._window = getattr(mixer, "window", None)  # of the first pass: an intervention may narrow it
        self._inputs: list[tuple[Any, int]] = []
        self._output: tuple[Tensor, int] | None = None

    def __call__(self, *inputs: Any) -> Tensor:
        if torch.is_grad_enabled() or any(isinstance(x, Context) for x in inputs):
            return self._compute(*inputs)
        if self._is_changed() or (self._output is None and self._is_read()):
            return self._compute(*inputs)
        if self._output is None or self._output[0]._version != self._output[1]:
            output = self._compute(*inputs)
            self._inputs = [(x, _version(x)) for x in inputs]
            self._output = output, output._version
        elif not self._is_known(inputs):
            return self._compute(*inputs)
        output = self._output[0]
        if self._is_overwritten():
            output = output.clone()
        is_layer = isinstance(self._module, Block)
        return self._module.get_submodule("hook_resid_post")(output) if is_layer else output

    def _is_known(self, inputs: Sequence[Any]) -> bool:
        """Returns whether the inputs are the first ones; queries, keys and values mostly read the same."""
        pairs = {(id(x), id(known[0])): (x, *known) for x, known in zip(inputs, self._inputs, strict=False)}
        return all(_is_equal(*pair) for pair in pairs.values())

    def _is_changed(self) -> bool:
        return getattr(self._mixer, "window", None) != self._window or any(
            is_hooked(module)  # some hook points are there only while they are hooked
            for name, module in self._module.named_modules()
            if name not in self._after
        )

    def _is_read(self) -> bool:
        return any(is_hooked(module) for name, module in self._module.named_modules() if name in self._after)

    def _is_overwritten(self) -> bool:
        """Returns whether the output may be: by the sum with the stream, as an MLP's, or by hooks."""
        if self._after == OF_MLPS or self._is_read():
            return True
        return any(is_hooked(module) for reader in self._readers for module in reader.modules())


def _version(x: Any) -> int:
    return x._version if isinstance(x, Tensor) else 0


def _is_equal(x: Any, known: Any, version: int) -> bool:
    """Returns whether an input is one that is known, unless that was overwritten since."""
    if isinstance(x, Tensor) and isinstance(known, Tensor):
        return known._version == version and (x is known or torch.equal(x, known))
    return x is known or (type(x) is type(known) and bool(x == known))
