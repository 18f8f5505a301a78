"""Which kernel computes what. On a CPU some beat torch's own; results are equal up to rounding.

- `input_table`: a first layer over two tokens attends over token × position. It takes `exp` of (tokens ×
  positions)² scores, not of sequences × positions².
- `binary_table`: two tokens that differ by one key and one value share a table. It saves half the products.
- `blocks`: heads of 8 numbers attend in 0.4 to 0.9 of the time of torch's kernel.
- `thin_gemm`: a product with few columns is computed transposed, four to seven times as fast.
- `relu_mlp`: the hidden units of some tokens stay in a core's cache from the first product to the last: three
  quarters of the time.
- LayerNorm: torch's own in one pass, on every device, where no hook reads its scale.
- One-hot embedding: its backward pass is a small product, where that of a lookup sorts all tokens.

The figures are in `benchmarks/README.md`. On any other device torch's kernels are the faster ones.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.fast.binary_table import attend_binary
from mechmarkov.models.fast.input_table import attend_by_table
from mechmarkov.models.fast.thin_gemm import THIN_COLUMNS

MIN_POSITIONS = 32  # of tables and blocks
MIN_SEQUENCES = 8  # of a table
MAX_TABLE_HEAD = 15  # d_head, unless the tokens share a table
MAX_BLOCK_HEAD = 8  # d_head
MAX_ONE_HOT_TOKENS = 16


def is_tuned_for(device: torch.device | str) -> bool:
    """Whether these kernels were measured to be faster on a device: on a CPU alone."""
    return torch.device(device).type == "cpu"


def is_additive_binary(config: DecoderConfig) -> bool:
    """Whether there are two tokens, which differ by the same key and value at every position."""
    additive = config.positional_embedding_type in ("standard", "shortformer", "none")
    linear = config.normalization_type is None and not config.use_qk_norm
    return config.d_vocab == 2 and linear and additive


def is_input_table_faster(config: DecoderConfig, n_sequences: int, device: torch.device | str) -> bool:
    """Whether the first layer attends faster by a table of its inputs than by SDPA.

    Args:
        config: The shape of the model.
        n_sequences: How many sequences a batch has.
        device: Where the model is.
    """
    has_table = config.mixer == "attention" and config.positional_embedding_type != "relative"
    if not (is_tuned_for(device) and has_table):
        return False
    if config.d_vocab != 2 or config.n_ctx < MIN_POSITIONS or n_sequences < MIN_SEQUENCES:
        return False
    shares_table = is_additive_binary(config) and config.n_ctx >= 6 * config.d_head
    return config.d_head <= MAX_TABLE_HEAD or shares_table


def are_blocks_faster(config: DecoderConfig, device: torch.device | str) -> bool:
    """Whether training attends faster in blocks than by SDPA."""
    free = config.window is None and config.positional_embedding_type != "relative"
    return is_tuned_for(device) and free and config.n_ctx >= MIN_POSITIONS and config.d_head <= MAX_BLOCK_HEAD


def is_one_hot_faster(config: DecoderConfig, device: torch.device | str) -> bool:
    """Whether training embeds tokens faster by a product with one-hot vectors than by a lookup."""
    return is_tuned_for(device) and config.d_vocab <= MAX_ONE_HOT_TOKENS


def is_relu_mlp_faster(config: DecoderConfig, device: torch.device | str) -> bool:
    """Whether training passes hidden units on within a core's cache."""
    return is_tuned_for(device) and config.act_fn == "relu" and not config.gated_mlp


def is_thin(x: Tensor, weight: Tensor, transposed: bool = False) -> bool:
    """Whether `x @ weight`, or one of its gradients, has so few columns that its transpose is faster.

    So it is where `x` lies transposed in memory, or where the result shall (`transposed`). In training
    alone: without gradients, equal rows of `x` stay equal to the last bit.
    """
    plain = x.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
    thin = plain and (transposed or x.stride(-1) != 1 or min(weight.shape[-2:]) <= THIN_COLUMNS)
    return thin and torch.is_grad_enabled() and is_tuned_for(weight.device)


def attend_by_fastest_table(
    q: Float[Tensor, "*stack token head position d_head"],
    k: Float[Tensor, "*stack token head position d_head"],
    v: Float[Tensor, "*stack token head position d_head"],
    tokens: Int[Tensor, "*stack batch position"],
    config: DecoderConfig,
) -> Float[Tensor, "*stack batch head position d_head"]:
    """Causal attention of a first layer by the table of its inputs; arguments as of `attend_by_table`."""
    kernel = attend_binary if is_additive_binary(config) else attend_by_table
    return kernel(q, k, v, tokens, 1 / config.score_scale, config.window)
