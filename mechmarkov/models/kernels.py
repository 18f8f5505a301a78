"""The one place where models meet `mechmarkov.models.fast`. Without that folder all works, in more time."""

from importlib import import_module
from importlib.util import find_spec

from mechmarkov.models.decoder import HookedDecoder

FAST = "mechmarkov.models.fast"


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
    folder = find_spec(FAST)
    if folder is not None and folder.origin is not None:  # not what Python compiled of a folder that is gone
        import_module(f"{FAST}.choose").install(model)
