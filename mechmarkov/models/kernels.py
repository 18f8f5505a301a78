"""The one place where models meet `mechmarkov.models.fast`. Without that folder all works, in more time."""

from importlib import import_module
from importlib.util import find_spec

from mechmarkov.models.decoder import HookedDecoder

PLACES = ("fused_layer", "fused")  # where a module of ours holds what it computes by

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
