"""Transformers' Mamba and Mamba-2: `MambaForCausalLM` and `Mamba2ForCausalLM`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mechmarkov.importing import config_fields, layout
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.importing.names.table import table_of
from mechmarkov.importing.names.weights import renamed
from mechmarkov.models import DecoderConfig
from mechmarkov.models.config import MAX_WIDTH
from mechmarkov.models.decoder import parameter_shapes
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
LAYER, BLOCK = r"backbone\.layers\.(\d+)\.", r"blocks.\1."
MIXER, ATTN = rf"{LAYER}mixer\.", rf"{BLOCK}attn."


def _both(name: str, weight: str, bias: str, sides: Sequence[str]) -> dict[str, Any]:
    """Lines of a table for a layer's weight and bias, which hold several of ours."""
    kinds = {"weight": weight, "bias": bias}
    return {
        rf"{MIXER}{name}\.{kind}": {"to": [f"{ATTN}{ours}_{side}" for side in sides], "split": "parts"}
        for kind, ours in kinds.items()
    }


# Tables of names (`mechmarkov.importing.names`), for both and for each.
NAMES = {
    "backbone.embeddings.weight": "embed.W_E",
    "backbone.norm_f.weight": "ln_final.w",
    "lm_head.weight": "unembed.W_U",
    rf"{LAYER}norm\.weight": f"{BLOCK}ln1.w",
    rf"{MIXER}(A_log|D)": rf"{ATTN}\2",
    rf"{MIXER}out_proj\.weight": f"{ATTN}W_O",
    rf"{MIXER}out_proj\.bias": f"{ATTN}b_O",
}
MIXER_NAMES: dict[str, dict[str, Any]] = {
    "mamba": {
        **_both("in_proj", "W", "b", ("G", "V", "K", "Q", "dt")),
        **_both("conv1d", "conv", "b_conv", "VKQ"),
        rf"{MIXER}norm\.weight": f"{ATTN}w",
    },
    "mamba1": {
        **_both("in_proj", "W", "b", "VG"),
        rf"{MIXER}conv1d\.weight": f"{ATTN}conv_V",
        rf"{MIXER}conv1d\.bias": f"{ATTN}b_conv_V",
        rf"{MIXER}x_proj\.weight": {"to": [f"{ATTN}W_{x}" for x in ("dt_in", "B", "C")], "split": "parts"},
        rf"{MIXER}dt_proj\.weight": f"{ATTN}W_dt_out",
        rf"{MIXER}dt_proj\.bias": f"{ATTN}b_dt",
    },
}
MARKS = (("backbone.layers.0.mixer.A_log",),)


def plan_import(
    shapes: Shapes,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    where: str = config_fields.FILE,
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
    fields = config_fields.agree(_fields(config, where), given, "in its config")
    assumed = {} if "n_ctx" in given else {"n_ctx": ASSUMED_N_CTX}
    shape = config_fields.make_config({**assumed, **fields})
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
    config_fields.check_fields(config, named, HARMLESS, where)
    limit = config.get("time_step_limit", [0.0, math.inf])
    if limit not in ([0.0, math.inf], (0.0, math.inf)):
        raise config_fields.cannot_express("time_step_limit", limit, where)
    config_fields.one_of(config["hidden_act"], ACTIVATIONS, f"{where}hidden_act")
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
    theirs = {"lm_head.weight": weights["backbone.embeddings.weight"], **weights}
    for name, steps in weights.items():
        if name.endswith("dt_bias"):  # added to what the projection gives
            at = name.removesuffix("dt_bias")
            rows = weights[f"{at}in_proj.weight"]
            bias = theirs.get(f"{at}in_proj.bias", rows.new_zeros(len(rows)))
            theirs[f"{at}in_proj.bias"] = torch.cat([bias[: -len(steps)], bias[-len(steps) :] + steps])
            del theirs[name]
    ours = renamed(theirs, table_of(NAMES | MIXER_NAMES[config.mixer]), config.model_dump()).states
    shapes = parameter_shapes(config.model_copy(update={"tied": False}))
    return {name: ours.get(name, torch.zeros(shape)) for name, shape in shapes.items()}
