"""Transformers' Mamba and Mamba-2: `MambaForCausalLM` and `Mamba2ForCausalLM`."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from mechmarkov.importing import config_fields, layout, linear_layers
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
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
LAYERS = "backbone.layers."
# A bridge's stems by theirs, as of `linear_layers.Table`, of both and of each.
STEMS = {
    "backbone.embeddings": "embed",
    f"{LAYERS}N.norm": "blocks.N.ln1",
    f"{LAYERS}N.mixer.norm": "blocks.N.attn.norm",
    f"{LAYERS}N.mixer": "blocks.N.attn",
    f"{LAYERS}N.mixer.x_proj": "blocks.N.attn.dtbc",
    f"{LAYERS}N.mixer.dt_proj": "blocks.N.attn.dt",
    f"{LAYERS}N.mixer.out_proj": "blocks.N.attn.o",
    "backbone.norm_f": "ln_final",
    "lm_head": "unembed",
}
STEMS_OF = {
    "mamba": {
        f"{LAYERS}N.mixer.in_proj": "blocks.N.attn.gvkqdt",
        f"{LAYERS}N.mixer.conv1d": "blocks.N.attn.conv",
    },
    "mamba1": {
        f"{LAYERS}N.mixer.in_proj": "blocks.N.attn.vg",
        f"{LAYERS}N.mixer.conv1d": "blocks.N.attn.conv_V",
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
    if (layers := layout.count_layers(shapes, LAYERS, called)) != shape.n_layers:
        raise RunFileError(f"it has {layers} layers, but num_hidden_layers is {shape.n_layers}")
    # What Mamba-2 adds to what the projection gives, in a weight of its own.
    steps = {f"{LAYERS}{n}.mixer.dt_bias": f"blocks.{n}.attn.b_dt" for n in range(layers)}
    steps = {} if shape.mixer == "mamba1" else steps
    own = {name: each for name, each in shapes.items() if name not in steps}
    table = linear_layers.Table(STEMS | STEMS_OF[shape.mixer], called)
    plan = linear_layers.plan(own, shape, table=table, assumed=assumed, may_tie=True)
    added = {name: each for name, each in shapes.items() if name in steps}
    layout.check_shapes(added, dict.fromkeys(steps, (shape.n_heads,)), called=called)
    if "lm_head.weight" not in shapes and config.get("tie_word_embeddings") is False:
        raise RunFileError("it has no unembedding, though its config says that it is not tied")

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        made = plan.states({name: weights[name] for name in plan.wanted})
        return made | {ours: made[ours] + weights[name][:, None] for name, ours in steps.items()}

    return replace(plan, wanted=(*plan.wanted, *steps), states=states)


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
