"""Which kernel computes what. Some beat torch's own; results are equal up to rounding.

On a CPU:

- `fused_attention`: attention of heads of up to 16 numbers.
- `fused_layer`: the same with its four projections, where nothing looks at what is between.
- `relu_mlp`: the hidden units of some tokens stay in a core's cache from the first product to the last.
- `fused_norm`: LayerNorm and RMSNorm in one pass; LayerNorm by torch's own on other devices.
- `thin_gemm`: a product with few columns is computed transposed.

On a CPU and on CUDA:

- One-hot embedding: its backward pass is a small product, where that of a lookup sorts all tokens.

On CUDA `gpu_attention` attends with heads of an even width up to 16.

The figures are in `benchmarks/README.md`.
"""

import torch
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.fast.thin_gemm import THIN_COLUMNS
from mechmarkov.utils.device import can_compile_kernels

MAX_SMALL_HEAD = 16  # d_head
MIN_POSITIONS = 4  # for each number of such a head
MAX_ONE_HOT_TOKENS = 16


def is_tuned_for(device: torch.device | str) -> bool:
    """Returns whether the CPU's kernels are for a device."""
    return torch.device(device).type == "cpu"


def is_fused_attention_faster(config: DecoderConfig, device: torch.device | str) -> bool:
    """Returns whether a stack attends faster by the compiled kernel than by SDPA."""
    is_small = config.d_head <= MAX_SMALL_HEAD and config.n_ctx >= MIN_POSITIONS * config.d_head
    return is_tuned_for(device) and is_small and config.positional_embedding_type != "relative"


def is_gpu_attention_faster(config: DecoderConfig, device: torch.device | str) -> bool:
    """Returns whether a stack attends faster by the Triton kernels than by SDPA."""
    is_small = config.d_head <= MAX_SMALL_HEAD and config.d_head % 2 == 0
    is_cuda = torch.device(device).type == "cuda"
    return is_cuda and is_small and config.positional_embedding_type != "relative" and can_compile_kernels()


def is_one_hot_faster(config: DecoderConfig) -> bool:
    """Returns whether training embeds tokens faster by a product with one-hot vectors than by a lookup."""
    return config.d_vocab <= MAX_ONE_HOT_TOKENS


def is_fused_layer_faster(config: DecoderConfig, device: torch.device | str) -> bool:
    """Returns whether a whole layer of attention is: queries and keys are neither turned nor normalised."""
    is_plain = config.positional_embedding_type != "rotary" and not config.use_qk_norm
    return is_plain and is_fused_attention_faster(config, device)


def is_relu_mlp_faster(config: DecoderConfig, device: torch.device | str) -> bool:
    """Returns whether a stack computes its MLPs faster by the compiled kernel."""
    return is_tuned_for(device) and config.act_fn == "relu" and not config.gated_mlp


def is_thin(x: Tensor, weight: Tensor, transposed: bool = False) -> bool:
    """Returns whether `x @ weight`, or one of its gradients, has so few columns that its transpose is faster.

    So it is where `x` lies transposed in memory, or where the result shall (`transposed`). In training
    only: without gradients, equal rows of `x` stay equal to the last bit.
    """
    plain = x.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
    thin = plain and (transposed or x.stride(-1) != 1 or min(weight.shape[-2:]) <= THIN_COLUMNS)
    return thin and torch.is_grad_enabled() and is_tuned_for(weight.device)
