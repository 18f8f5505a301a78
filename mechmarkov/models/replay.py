"""Passes that differ by an intervention: what an intervention does not reach is taken from the first pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mechmarkov.models.attention import Attention
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.layers import is_hooked
from mechmarkov.models.mixer import Context, Mixer

NOT_BEFORE_Z = ("", "hook_z", "hook_result")  # the mixer itself, and what reads z


@contextmanager
def replayed(model: HookedDecoder) -> Iterator[HookedDecoder]:
    """Let each mixer compute `z` once for the inputs of its first pass, while nothing before it is hooked.

    The results are those of plain passes to the last bit. Weights must not change inside the block.

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
    blocks: list[Any] = list(model.blocks)
    known = Mixer.forward, Attention.forward
    mixers = [block.attn for block in blocks if type(block.attn).forward in known]
    for mixer in mixers:
        mixer.mix = _Replay(mixer)
    try:
        yield model
    finally:
        for mixer in mixers:
            del mixer.mix


class _Replay:
    """A mixer's `mix` that remembers one input."""

    def __init__(self, mixer: Mixer) -> None:
        self._mixer, self._mix = mixer, mixer.mix
        self._window = getattr(mixer, "window", None)
        self._inputs: tuple[Tensor, ...] = ()
        self._z: Tensor | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *context: Context) -> Tensor:
        inputs = (query, key, value)
        if torch.is_grad_enabled() or self._is_changed() or context:
            return self._mix(*inputs, *context)
        if self._z is None:
            self._inputs, self._z = inputs, self._mix(*inputs)
        elif not all(x is y or torch.equal(x, y) for x, y in zip(inputs, self._inputs, strict=True)):
            return self._mix(*inputs)
        return self._z.clone() if is_hooked(self._mixer.hook_z) else self._z  # a hook may overwrite it

    def _is_changed(self) -> bool:
        return getattr(self._mixer, "window", None) != self._window or any(
            is_hooked(module) for name, module in self._mixer.named_modules() if name not in NOT_BEFORE_Z
        )
