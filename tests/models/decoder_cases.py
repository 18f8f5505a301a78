"""One table of model shapes for all tests of the decoder, and weights in which nothing is zero."""

from collections import Counter
from collections.abc import Iterable

import torch

from mechmarkov.models import DecoderConfig, HookedDecoder

# Three heads of five on a width of twelve: odd, and n_heads * d_head is not d_model.
BASE = {
    "n_layers": 2,
    "d_model": 12,
    "n_ctx": 9,
    "d_head": 5,
    "n_heads": 3,
    "d_vocab": 7,
    "attn_only": True,
    "normalization_type": None,
    "initializer_range": 0.02,
}
WITH_MLP = {"attn_only": False, "act_fn": "gelu", "d_mlp": 17}

LLAMA = dict(
    WITH_MLP,
    normalization_type="RMS",
    gated_mlp=True,
    act_fn="silu",
    n_heads=4,
    n_key_value_heads=2,
    d_head=6,
    positional_embedding_type="rotary",
)

# What HookedTransformer has too, under the same field names.
SHARED = {
    "plain": {},
    "one head of the model's width": {"n_heads": 1, "d_head": 12},
    "LN": {"normalization_type": "LN"},
    "LNPre": {"normalization_type": "LNPre", "eps": 1e-3},
    "RMS": {"normalization_type": "RMS"},
    "RMSPre": {"normalization_type": "RMSPre"},
    "relu": dict(WITH_MLP, act_fn="relu"),
    "gelu and LN": dict(WITH_MLP, normalization_type="LN"),
    "gelu_new and RMS": dict(WITH_MLP, act_fn="gelu_new", normalization_type="RMS"),
    "d_vocab_out": {"d_vocab_out": 4},
    "no attention scale": {"use_attn_scale": False},
    "attention scale": {"attn_scale": 0.7},
    "shortformer": {"positional_embedding_type": "shortformer", "normalization_type": "LNPre"},
    "rotary": {"positional_embedding_type": "rotary", "d_head": 6},
    "rotary, part of the head": {
        "positional_embedding_type": "rotary",
        "rotary_dim": 4,
        "rotary_base": 100.0,
    },
    "rotary, adjacent pairs": dict(
        WITH_MLP, positional_embedding_type="rotary", d_head=6, rotary_dim=4, rotary_adjacent_pairs=True
    ),
    "ALiBi": {"positional_embedding_type": "alibi", "attn_scale": 1.3},
    "grouped queries": {"n_heads": 4, "n_key_value_heads": 2},
    "one key and value for all heads": {"n_key_value_heads": 1, "normalization_type": "LN"},
    "a group for each head": {"n_key_value_heads": 3},
    "norms of queries and keys": {"use_qk_norm": True, "eps": 1e-3},
    "SwiGLU and LNPre": dict(WITH_MLP, gated_mlp=True, act_fn="silu", normalization_type="LNPre"),
    "GeGLU and RMS": dict(WITH_MLP, gated_mlp=True, act_fn="gelu_new", normalization_type="RMS"),
    "attention and MLP in parallel": dict(WITH_MLP, parallel_attn_mlp=True, normalization_type="LN"),
    "Llama": LLAMA,
    "Qwen3": dict(LLAMA, use_qk_norm=True),
    "GPT-NeoX": dict(
        WITH_MLP,
        normalization_type="LN",
        parallel_attn_mlp=True,
        positional_embedding_type="rotary",
        rotary_dim=2,
    ),
}

# What it lacks.
OWN = {
    "tied": {"tied": True},
    "tied, fewer outputs, LN": {"tied": True, "d_vocab_out": 5, "normalization_type": "LN"},
    "window": {"window": 2},
    "window of itself alone": {"window": 0, "positional_embedding_type": "rotary", "d_head": 4},
    "no positions": {"positional_embedding_type": "none"},
    "relative": {"positional_embedding_type": "relative"},
    "relative, window, MLP, LN": dict(
        WITH_MLP, positional_embedding_type="relative", window=3, normalization_type="LN", attn_scale=1.3
    ),
    "relative bias": {"positional_embedding_type": "relative_bias"},
    "relative bias, window, grouped queries": {
        "positional_embedding_type": "relative_bias",
        "window": 3,
        "n_heads": 4,
        "n_key_value_heads": 2,
        "attn_scale": 1.3,
    },
    "shortformer, window": {"positional_embedding_type": "shortformer", "window": 4},
    "relative, grouped queries": {
        "positional_embedding_type": "relative",
        "n_heads": 4,
        "n_key_value_heads": 2,
        "use_qk_norm": True,
    },
    "Qwen3, tied": dict(LLAMA, use_qk_norm=True, tied=True),
    "no last norm": {"normalization_type": "LN", "final_norm": False},
    "post-norm": dict(WITH_MLP, normalization_type="LN", norm_first=False),
    "post-norm, last norm": {"normalization_type": "RMS", "norm_first": False, "final_norm": True},
}

# Other mixers than attention; 37 positions are two chunks of Mamba's scan, and a third that is not full.
MAMBA2 = {"mixer": "mamba", "d_state": 3, "n_ctx": 37, "positional_embedding_type": "none"}
MAMBA1 = dict(MAMBA2, mixer="mamba1", d_head=1, n_heads=5, d_state=4)
MAMBAS = {
    "Mamba-2": MAMBA2,
    "Mamba-2 with norms, one layer": dict(MAMBA2, normalization_type="RMS", n_layers=1),
    "Mamba-2, groups of heads": dict(MAMBA2, n_heads=4, n_groups=2, d_conv=2, conv_act_fn="relu"),
    "Mamba-2, a group for each head": dict(MAMBA2, n_groups=3, use_gate=False),
    "Mamba-2, bare, with positions": dict(
        MAMBA2, use_gate=False, use_gate_norm=False, conv_act_fn="none", positional_embedding_type="standard"
    ),
    "Mamba-2, no convolution": dict(MAMBA2, d_conv=1),
    "Mamba": MAMBA1,
    "Mamba with norms, of rank 2": dict(MAMBA1, normalization_type="RMS", dt_rank=2, d_conv=3),
}
MIXERS = MAMBAS | {"LSTM": {"mixer": "lstm"}, "token MLP": {"mixer": "mlp"}}

CASES = SHARED | OWN


def config_of(case: str = "plain", **changes) -> DecoderConfig:
    return DecoderConfig(**(BASE | (CASES | MIXERS)[case] | changes))


def randomise(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Every parameter drawn: biases and norms too, and attention far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            draw = 0.4 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.copy_(1 + draw if name.endswith(".w") else draw)
    return model


def decoder_of(config: DecoderConfig, seed: int = 0, n_models: int | None = None) -> HookedDecoder:
    return randomise(HookedDecoder(config, n_models), seed)


def tokens_of(config: DecoderConfig, *lead: int, length: int | None = None, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    shape = (*(lead or (3,)), length or config.n_ctx)
    return torch.randint(config.d_vocab, shape, generator=generator)


# What has an axis of models in a stack and none in one model: scores, masks, biases, rotations and groups.
ALONE = (
    "plain", "window", "ALiBi", "shortformer", "rotary, part of the head", "relative, window, MLP, LN",
    "relative bias, window, grouped queries", "Llama",
)  # fmt: skip


def stacked_and_alone(cases: Iterable[str], n_models: int) -> list[tuple[str, int | None]]:
    """Every case as a stack of so many models, and some of them as one model."""
    return [*((case, n_models) for case in cases), *((case, None) for case in cases if case in ALONE)]


def nodes(output):
    """How often each kind of node stands in the graph of an output."""
    seen, left = {output.grad_fn}, [output.grad_fn]
    while left:
        new = {node for node, _ in left.pop().next_functions if node is not None} - seen
        seen |= new
        left += new
    return Counter(type(node).__name__ for node in seen)
