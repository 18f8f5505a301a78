"""Which kernel computes what. Some beat torch's own; results are equal up to rounding.

On a CPU:

- `fused_attention`: attention of heads of up to 16 numbers.
- `fused_layer`: the same with its four projections, where nothing looks at what is between.
- `relu_mlp`: the hidden units of some tokens stay in a core's cache from the first product to the last; of
  matrices with up to 2^15 numbers.
- `fused_norm`: LayerNorm and RMSNorm in one pass; LayerNorm by torch's own on other devices.

On a CPU and on CUDA:

- One-hot embedding: its backward pass is a small product, where that of a lookup sorts all tokens.

On CUDA `gpu_attention` attends with heads of an even width up to 16.

The figures are in `benchmarks/README.md`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mechmarkov.models.attention import Attention
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.fast.fused_attention import attend_fused
from mechmarkov.models.fast.fused_layer import attention_layer_fused
from mechmarkov.models.fast.fused_norm import layer_norm, norm_fused
from mechmarkov.models.fast.gpu_attention import attend_on_gpu
from mechmarkov.models.fast.relu_mlp import relu_mlp_fused
from mechmarkov.models.layers import Norm
from mechmarkov.utils.device import can_compile_kernels
from mechmarkov.utils.extras import CAN_COMPILE

MAX_SMALL_HEAD = 16  # d_head
MIN_POSITIONS = 4  # for each number of such a head
MAX_ONE_HOT_TOKENS = 16
MAX_MLP_WEIGHTS = 1 << 15  # of a matrix: 128 kB; above BLAS is as fast, and from twice that on faster


def install(model: HookedDecoder) -> None:
    """Set what a decoder's layers compute by, for its shape and its device; call it by `use_fast_kernels`."""
    config, device, is_stack = model.config, model.embed.W_E.device, model.n_models is not None
    is_cpu = device.type == "cpu" and is_stack and CAN_COMPILE
    model.embed.one_hot = config.d_vocab <= MAX_ONE_HOT_TOKENS
    blocks: list[Any] = list(model.blocks)
    for block in blocks:
        if isinstance(block.attn, Attention):
            block.attn.fused = attention_for(config, device) if is_stack else None
            # Queries and keys that are turned or normalised are made outside.
            is_plain = config.positional_embedding_type != "rotary" and not config.use_qk_norm
            whole = is_plain and block.attn.fused is attend_fused
            block.attn.fused_layer = attention_layer_fused if whole else None
        if block.mlp is not None:
            is_relu = config.act_fn == "relu" and not config.gated_mlp
            is_small = block.mlp.W_in.shape[-2:].numel() <= MAX_MLP_WEIGHTS
            block.mlp.fused = relu_mlp_fused if is_cpu and is_relu and is_small else None
    for norm in (module for module in model.modules() if isinstance(module, Norm)):
        one_pass = norm_fused if is_cpu else layer_norm if norm.centred else None
        norm.fused = one_pass if is_stack else None


def attention_for(config: DecoderConfig, device: torch.device | str) -> Callable[..., Tensor] | None:
    """Returns the attention kernel that is faster than torch's SDPA for this shape and device, or None.

    Call it as `kernel(q, k, v, scale, window=None)`: float32, causal, differentiable once. q, k, v and the
    result have axes [*stack, batch, head, position, d_head]. None if d_head > 16 or positions add to
    scores by lag, as ALiBi does.
    On a CPU it needs numba and n_ctx >= 4 d_head; on CUDA an even d_head and a compiler.
    """
    if config.d_head > MAX_SMALL_HEAD or config.scores_lags:
        return None
    match torch.device(device).type:
        case "cpu" if CAN_COMPILE and config.n_ctx >= MIN_POSITIONS * config.d_head:
            return attend_fused
        case "cuda" if config.d_head % 2 == 0 and can_compile_kernels():
            return attend_on_gpu
    return None
