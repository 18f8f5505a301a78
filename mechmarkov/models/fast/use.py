"""Kernels for a decoder's passes, chosen for its shape and the device of its weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mechmarkov.models.attention import Attention
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.fast.choose import (
    is_fused_attention_faster,
    is_fused_layer_faster,
    is_gpu_attention_faster,
    is_one_hot_faster,
    is_relu_mlp_faster,
    is_tuned_for,
)
from mechmarkov.models.fast.fused_attention import attend_fused
from mechmarkov.models.fast.fused_layer import attention_layer_fused
from mechmarkov.models.fast.fused_norm import layer_norm, norm_fused
from mechmarkov.models.fast.gpu_attention import attend_on_gpu
from mechmarkov.models.fast.relu_mlp import relu_mlp_fused
from mechmarkov.models.layers import Norm


def use_fast_kernels(model: HookedDecoder) -> None:
    """Let a decoder compute in less time, equal up to rounding; see `mechmarkov.models.fast.choose`.

    A hook on scores or pattern gets what it always gets: explicit attention.
    """
    config, device, is_stack = model.config, model.embed.W_E.device, model.n_models is not None
    model.embed.one_hot = is_one_hot_faster(config)
    blocks: list[Any] = list(model.blocks)
    for block in blocks:
        if isinstance(block.attn, Attention):
            block.attn.fused = _attention(config, device) if is_stack else None
            is_fused = is_stack and is_fused_layer_faster(config, device)
            block.attn.fused_layer = attention_layer_fused if is_fused else None
        if block.mlp is not None:
            is_fused = is_stack and is_relu_mlp_faster(config, device)
            block.mlp.fused = relu_mlp_fused if is_fused else None
    for norm in (module for module in model.modules() if isinstance(module, Norm)):
        one_pass = norm_fused if is_tuned_for(device) else layer_norm if norm.centred else None
        norm.fused = one_pass if is_stack else None


def _attention(config: DecoderConfig, device: torch.device) -> Callable[..., Tensor] | None:
    if is_fused_attention_faster(config, device):
        return attend_fused
    return attend_on_gpu if is_gpu_attention_faster(config, device) else None
