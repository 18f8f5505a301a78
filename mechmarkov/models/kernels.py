"""The one place where models meet `mechmarkov.models.fast`. Without that folder all works, in more time."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from mechmarkov.models.attention import Attention
from mechmarkov.models.decoder import HookedDecoder

PLACES = ("fused_layer", "fused")  # where a module of ours holds what it computes by

FAST = "mechmarkov.models.fast"

LEAST_PAIRS = 1 << 22  # of query and key in a layer's pass: of fewer, loading the kernel takes longer


def use_fast_kernels(model: HookedDecoder) -> None:
    """Let a decoder compute in less time, equal up to rounding, where there is a faster way for its shape.

    A hook on what a kernel does not compute gets what it always gets: that layer is computed step by step.

    Example:
        >>> from mechmarkov.models import DecoderConfig
        >>> config = DecoderConfig(n_layers=1, d_model=8, n_ctx=16, d_head=4, d_vocab=3, attn_only=True)
        >>> stack = HookedDecoder(config, n_models=4)
        >>> use_fast_kernels(stack)
        >>> stack.blocks[0].attn.fused is None  # of so small heads
        False
    """
    if _has_fast():
        import_module(f"{FAST}.choose").install(model)


@contextmanager
def fast_attention(model: HookedDecoder, tokens: Tensor) -> Iterator[None]:
    """Let a stack attend in less time in passes over many tokens, inside the block, equal up to rounding.

    Args:
        model: A stack; a single model's attention stays as it is.
        tokens: What a pass reads, `[batch, position]`.

    Example:
        >>> import torch
        >>> from mechmarkov.models import DecoderConfig
        >>> config = DecoderConfig(n_layers=1, d_model=8, n_ctx=512, d_head=8, d_vocab=3, attn_only=True)
        >>> stack, tokens = HookedDecoder(config, n_models=1), torch.zeros(64, 512, dtype=torch.long)
        >>> with fast_attention(stack, tokens):
        ...     kernels_of(stack)
        'attend_fused'
        >>> kernels_of(stack)
        'torch'
    """
    mixers = [block.attn for block in list[Any](model.blocks) if isinstance(block.attn, Attention)]
    pairs = len(model) * model.config.n_heads * tokens.numel() * tokens.shape[-1] if model.n_models else 0
    kernel = None
    if mixers and pairs >= LEAST_PAIRS and _has_fast():
        kernel = import_module(f"{FAST}.choose").attention_for(model.config, tokens.device)
    before = [mixer.fused for mixer in mixers]
    for mixer, own in zip(mixers, before, strict=True):
        mixer.fused = own or kernel
    try:
        yield
    finally:
        for mixer, own in zip(mixers, before, strict=True):
            mixer.fused = own


def _has_fast() -> bool:
    folder = find_spec(FAST)
    return folder is not None and folder.origin is not None  # not what Python compiled of one that is gone


def kernels_of(model: HookedDecoder) -> str:
    """Returns the names of the faster ways that a decoder's layers compute by, or "torch" where none does.

    Example:
        >>> from mechmarkov.models import DecoderConfig
        >>> shape = {"n_layers": 1, "d_model": 8, "d_head": 8, "d_vocab": 3, "act_fn": "relu"}
        >>> stack = HookedDecoder(DecoderConfig(n_ctx=64, **shape), n_models=2)
        >>> use_fast_kernels(stack)
        >>> kernels_of(stack), kernels_of(stack[0])
        ('norm_fused, attention_layer_fused, relu_mlp_fused', 'torch')
    """
    held = [[vars(module).get(place) for place in PLACES] for module in model.modules()]
    used = [next((kernel for kernel in kernels if kernel is not None), None) for kernels in held]
    return ", ".join(dict.fromkeys(kernel.__name__ for kernel in used if kernel is not None)) or "torch"
