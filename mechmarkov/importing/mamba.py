"""Transformers' Mamba and Mamba-2: `MambaForCausalLM` and `Mamba2ForCausalLM`."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from mechmarkov.importing import layout
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.models import DecoderConfig
from mechmarkov.models.config import MAX_WIDTH
from mechmarkov.models.layers import ACTIVATIONS
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import shown

MIXERS = {"mamba": "mamba1", "mamba2": "mamba"}  # ours, by transformers' model types
ASSUMED_N_CTX = 256  # a state space has no longest sequence
FIELDS = {
    "num_hidden_layers": "n_layers",
    "hidden_size": "d_model",
    "state_size": "d_state",
    "vocab_size": "d_vocab",
    "conv_kernel": "d_conv",
    "layer_norm_epsilon": "eps",
    "hidden_act": "conv_act_fn",
}
MAMBA2_FIELDS = {"num_heads": "n_heads", "head_dim": "d_head", "n_groups": "n_groups"}
# Fields that do not change what a loaded model computes, or that shapes tell too.
HARMLESS = {
    "chunk_size", "expand", "fused_norm", "intermediate_size", "layer_types", "norm_before_gate",
    "rescale_prenorm_residual", "residual_in_fp32", "rms_norm", "time_step_floor", "time_step_init_scheme",
    "time_step_limit", "time_step_max", "time_step_min", "time_step_rank", "time_step_scale",
    "use_associative_scan", "use_bias", "use_conv_bias", "use_mambapy",
}  # fmt: skip
MARKS = (("backbone.layers.0.mixer.A_log",),)


def plan_import(
    shapes: Shapes,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    where: str = layout.FILE,
    called: Called = str,
) -> ImportPlan:
    """Work out which decoder a Mamba or Mamba-2 of transformers is.

    Args:
        shapes: The shape of every weight, by its name.
        config: The fields of its config.
        given: Fields of a `DecoderConfig` that the caller says. Where there is no `n_ctx`, it is 256: a
            model of theirs says none.
        where: What stands before a field's name in a message.
        called: What the file calls a weight, for messages.

    Raises:
        RunFileError: Naming a field that cannot be expressed, is missing, or contradicts the shapes.
    """
    fields = layout.agree(_fields(config, where), given, "in its config")
    assumed = {} if "n_ctx" in given else {"n_ctx": ASSUMED_N_CTX}
    shape = layout.make_config({**assumed, **fields})
    if (layers := layout.count_layers(shapes, "backbone.layers.", called)) != shape.n_layers:
        raise RunFileError(f"it has {layers} layers, but num_hidden_layers is {shape.n_layers}")
    expected = _expected(shape)
    biases = {name for name in expected if name.endswith(".bias") and "dt_proj" not in name}
    layout.check_shapes(shapes, expected, {*biases, "lm_head.weight"}, called)
    if "lm_head.weight" not in shapes and config.get("tie_word_embeddings") is False:
        raise RunFileError("it has no unembedding, though its config says that it is not tied")
    wanted = tuple(name for name in expected if name in shapes)
    return ImportPlan(shape, wanted, lambda weights: _states(weights, shape), assumed, may_tie=True)


def _fields(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = config["model_type"]
    named = FIELDS | (MAMBA2_FIELDS if kind == "mamba2" else {})
    layout.check_fields(config, named, HARMLESS, where)
    limit = config.get("time_step_limit", [0.0, math.inf])
    if limit not in ([0.0, math.inf], (0.0, math.inf)):
        raise layout.cannot_express("time_step_limit", limit, where)
    layout.one_of(config["hidden_act"], ACTIVATIONS, f"{where}hidden_act")
    fields = {ours: config[theirs] for theirs, ours in named.items()}
    fields |= {"mixer": MIXERS[kind], "attn_only": True, "normalization_type": "RMS"}
    if kind == "mamba":
        width, expand, rank = config["hidden_size"], config.get("expand", 2), config.get("time_step_rank")
        sizes = type(width) is int and type(expand) in (int, float)
        if not sizes or not 0 < width <= MAX_WIDTH or not 0 < expand <= MAX_WIDTH:
            both = shown([width, expand])
            raise RunFileError(f"{where}hidden_size and expand are {both}, expected sizes")
        rank = math.ceil(width / 16) if rank in (None, "auto") else rank
        fields |= {"n_heads": int(width * expand), "d_head": 1, "dt_rank": rank}
    return fields


def _channels(config: DecoderConfig) -> tuple[int, int]:
    """Returns the number of channels, and of the numbers of `B` and of `C` next to them at a position."""
    assert config.n_groups is not None
    assert config.d_state is not None
    shared = config.n_groups * config.d_state if config.mixer == "mamba" else 0
    return config.n_heads * config.d_head, shared


def _expected(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    d, (channels, shared) = config.d_model, _channels(config)
    d_conv, d_state, rank = config.d_conv or 1, config.d_state or 1, config.dt_rank or 1
    steps = config.n_heads if config.mixer == "mamba" else 0
    read, convolved = 2 * channels + 2 * shared + steps, channels + 2 * shared
    shapes: dict[str, tuple[int, ...]] = {"backbone.embeddings.weight": (config.d_vocab, d)}
    for layer in range(config.n_layers):
        at = f"backbone.layers.{layer}"
        mixer = {"conv1d.weight": (convolved, 1, d_conv), "conv1d.bias": (convolved,)}
        if config.mixer == "mamba":
            mixer |= dict.fromkeys(("dt_bias", "A_log", "D"), (config.n_heads,)) | {
                "norm.weight": (channels,)
            }
        else:
            mixer |= {"x_proj.weight": (rank + 2 * d_state, channels), "A_log": (channels, d_state)}
            mixer |= {"dt_proj.weight": (channels, rank), "dt_proj.bias": (channels,), "D": (channels,)}
        mixer |= {"in_proj.weight": (read, d), "in_proj.bias": (read,)}
        mixer |= {"out_proj.weight": (d, channels), "out_proj.bias": (d,)}
        shapes |= {f"{at}.norm.weight": (d,)} | {f"{at}.mixer.{name}": one for name, one in mixer.items()}
    return {**shapes, "backbone.norm_f.weight": (d,), "lm_head.weight": (config.d_vocab, d)}


def _states(weights: Mapping[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
    """Our tensors; a bias that is not there is zero."""
    embed = weights["backbone.embeddings.weight"]
    unembed = weights.get("lm_head.weight", embed)
    states = {
        "embed.W_E": embed,
        "ln_final.w": weights["backbone.norm_f.weight"],
        "unembed.W_U": unembed.mT,
        "unembed.b_U": unembed.new_zeros(len(unembed)),
    }
    for layer in range(config.n_layers):
        at, ours = f"backbone.layers.{layer}", f"blocks.{layer}"
        mixer = {name.removeprefix(f"{at}.mixer."): w for name, w in weights.items() if name.startswith(at)}
        states[f"{ours}.ln1.w"] = weights[f"{at}.norm.weight"]
        states |= {f"{ours}.attn.{name}": value for name, value in _mixer_states(mixer, config).items()}
    return states


def _mixer_states(weights: Mapping[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
    channels, shared = _channels(config)
    heads, groups, both = config.n_heads, config.n_groups, config.mixer == "mamba"
    mark = "_" * (groups != heads)
    read = weights["in_proj.weight"]
    read_bias = weights.get("in_proj.bias", read.new_zeros(len(read)))
    out = weights["out_proj.weight"]
    kernel = weights["conv1d.weight"].squeeze(1)
    kernel_bias = weights.get("conv1d.bias", kernel.new_zeros(len(kernel)))
    states = {
        "W_O": rearrange(out, "d (head d_head) -> head d_head d", head=heads),
        "b_O": weights.get("out_proj.bias", out.new_zeros(len(out))),
        "D": weights["D"],
    }
    # Where each input of a head lies among the rows of the projection, and how many share one.
    if both:
        convolved = {"V": (channels, heads), "K": (shared, groups), "Q": (shared, groups)}
        rows = {"G": (channels, heads), **convolved, "dt": (heads, heads)}
        states |= {"w": rearrange(weights["norm.weight"], "(head d) -> head d", head=heads)}
        states["A_log"] = weights["A_log"].unsqueeze(-1)
        read_bias = read_bias.clone()
        read_bias[-heads:] += weights["dt_bias"]
    else:
        convolved = {"V": (channels, heads)}
        rows = {**convolved, "G": (channels, heads)}
        states |= {"A_log": weights["A_log"], "b_dt": weights["dt_proj.bias"]}
        sizes = [config.dt_rank or 1, config.d_state or 1, config.d_state or 1]
        states["W_dt_in"], states["W_B"], states["W_C"] = torch.split(weights["x_proj.weight"].mT, sizes, -1)
        states["W_dt_out"] = weights["dt_proj.weight"].mT
    sizes = [size for size, _ in rows.values()]
    for (side, (_, n)), W, b in zip(
        rows.items(), torch.split(read, sizes), torch.split(read_bias, sizes), strict=True
    ):
        name = f"{mark}{{}}_{side}" if side in ("Q", "K") else f"{{}}_{side}"
        states[name.format("W")] = rearrange(W, "(head d) d_in -> head d_in d", head=n)
        states[name.format("b")] = rearrange(b, "(head d) -> head d", head=n)
    sizes = [size for size, _ in convolved.values()]
    for (side, (_, n)), W, b in zip(
        convolved.items(), torch.split(kernel, sizes), torch.split(kernel_bias, sizes), strict=True
    ):
        states[f"conv_{side}"] = rearrange(W, "(head d) window -> head d window", head=n)
        states[f"b_conv_{side}"] = rearrange(b, "(head d) -> head d", head=n)
    return states
