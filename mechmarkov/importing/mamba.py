"""Transformers' Mamba and Mamba-2: `MambaForCausalLM` and `Mamba2ForCausalLM`."""

import math
from collections.abc import Mapping
from typing import Any

from mechmarkov.importing import config_fields
from mechmarkov.importing.architecture import Architecture, States
from mechmarkov.models import DecoderConfig
from mechmarkov.models.config import MAX_WIDTH
from mechmarkov.models.layers import ACTIVATIONS
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import shown

MIXERS = {"mamba": "mamba1", "mamba2": "mamba"}  # ours, by transformers' types
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
LAYERS = "backbone.layers.N."
COMMON = {
    "backbone.embeddings": "embed",
    f"{LAYERS}norm": "blocks.N.ln1",
    f"{LAYERS}mixer.norm": "blocks.N.attn.norm",
    f"{LAYERS}mixer": "blocks.N.attn",
    f"{LAYERS}mixer.x_proj": "blocks.N.attn.dtbc",
    f"{LAYERS}mixer.dt_proj": "blocks.N.attn.dt",
    f"{LAYERS}mixer.out_proj": "blocks.N.attn.o",
    "backbone.norm_f": "ln_final",
    "lm_head": "unembed",
}
IN, CONV = f"{LAYERS}mixer.in_proj", f"{LAYERS}mixer.conv1d"
# A bridge's stems by theirs, as of `linear_layers.Table`, by transformers' model types.
STEMS = {
    "mamba": COMMON | {IN: "blocks.N.attn.vg", CONV: "blocks.N.attn.conv_V"},
    "mamba2": COMMON | {IN: "blocks.N.attn.gvkqdt", CONV: "blocks.N.attn.conv"},
}
MARKS = (("backbone.layers.0.mixer.A_log",),)


def fields_of(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Translate a Mamba's config into fields of a `DecoderConfig`.

    Raises:
        RunFileError: Naming a field that is missing or that a `HookedDecoder` cannot express.
    """
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


def _steps(shape: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of what Mamba-2 adds to what its projection gives, a weight a layer."""
    layers = range(0 if shape.mixer == "mamba1" else shape.n_layers)
    return {f"backbone.layers.{layer}.mixer.dt_bias": (shape.n_heads,) for layer in layers}


def _added(states: States, steps: States, _: DecoderConfig) -> States:
    for layer, step in enumerate(steps.values()):
        states[f"blocks.{layer}.attn.b_dt"] = states[f"blocks.{layer}.attn.b_dt"] + step[:, None]
    return states


MAMBAS = {
    kind: Architecture(stems, fields_of, by_head=False, apart=_steps, finish=_added)
    for kind, stems in STEMS.items()
}
