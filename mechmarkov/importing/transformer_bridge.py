"""State dicts of TransformerLens 4's TransformerBridge: its native models and those around transformers'.

A bridge keeps the layers of what it wraps, linear ones `[d_out, d_in]`. Around a GPT-2 it has linear q, k and
v, which it split itself, and GPT-2's transposed layers elsewhere.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mechmarkov.importing import config_fields, hugging_face, layout, linear_layers
from mechmarkov.importing.hooked_transformer import config_from_lens, lens_fields, told
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.models import DecoderConfig
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import shown

ADVICE = 'save {"cfg": bridge.cfg.to_dict(), "model": bridge.state_dict()}'
NATIVE, GPT2 = "TransformerLensNative", "GPT2LMHeadModel"
# What a native bridge of TransformerLens 4.3 computes whatever these fields of its config say.
COMPUTED = {
    "use_attn_scale": True,
    "rotary_adjacent_pairs": True,
    "use_local_attn": False,
    "parallel_attn_mlp": False,
    "use_qk_norm": False,
}
# Fields of TransformerBridgeConfig, besides HookedTransformerConfig's, that do not change what is computed.
HARMLESS = {
    "architecture", "bos_token_id", "eos_token_id", "pad_token_id", "split_attention_weights",
    "tokenizer_appends_eos",
}  # fmt: skip
# The same of bridges around transformers' models, some of which `hugging_face.common_fields` reads.
AROUND = {
    "attention_bias", "attn_implementation", "default_padding_side", "final_rms", "hidden_act",
    "intermediate_size", "layer_types", "rope_parameters", "use_parallel_residual", "uses_rms_norm",
}  # fmt: skip
MARKS = (("embed.weight", "unembed.weight"),)


def plan_import(
    shapes: Shapes, cfg: Mapping[str, Any] | None, given: Mapping[str, Any], *, called: Called = str
) -> ImportPlan:
    """Work out which decoder the state dict of a TransformerBridge is, with its config or without.

    Raises:
        ValueError: Naming a field that a HookedDecoder cannot express, or that neither file nor caller gives.
    """
    fields, flipped = _config_fields(cfg) if cfg else _from_shapes(shapes, called)
    fields |= config_fields.PLACES if cfg else {}
    fields = config_fields.agree(fields, given, "in the file's config" if cfg else "by the shapes")
    needed = ["n_heads", "positional_embedding_type", "normalization_type", "attn_only"]
    if cfg:
        act_fn = [] if fields.get("attn_only") else ["act_fn"]
        config_fields.require(fields, [*needed, *act_fn, "eps"], "cfg")
    else:
        needed += config_fields.needed_parts(fields)
        config_fields.require(fields, [*needed, "n_ctx"], "a bridge's bare state dict")
        width, _ = layout.shape_of(shapes, "blocks.0.attn.q.weight", 2, called)
        fields["d_head"] = config_fields.head_size(
            fields["n_heads"], width, f"{width}, the width of the queries"
        )
    config = config_from_lens(fields)
    assumed = config_fields.assumptions(config, told(fields, has_config=bool(cfg)))
    family = hugging_face.ARCHITECTURES.get(str((cfg or {}).get("architecture")))
    if family is not None:
        how = hugging_face.how(family, config.d_model)
        return linear_layers.plan(shapes, config, assumed=assumed, called=called, **how)
    may_tie = flipped and (cfg or {}).get("tie_word_embeddings", True) is True
    return linear_layers.plan(
        shapes, config, transposed=not flipped, assumed=assumed, may_tie=may_tie, called=called
    )


def _config_fields(cfg: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The fields of a saved config, and whether its layers lie as GPT-2's do."""
    architecture = cfg.get("architecture")
    if architecture not in (NATIVE, GPT2, *hugging_face.ARCHITECTURES):
        known = ", ".join([NATIVE, GPT2, *hugging_face.ARCHITECTURES])
        raise RunFileError(f"cfg.architecture is {shown(architecture)}, expected one of {known}")
    if architecture in hugging_face.ARCHITECTURES:
        return _fields_around(hugging_face.ARCHITECTURES[architecture], cfg), False
    fields = {name: value for name, value in lens_fields(cfg).items() if name not in HARMLESS}
    if architecture == NATIVE:
        for name, value in COMPUTED.items():
            idle = name == "rotary_adjacent_pairs" and fields.get("positional_embedding_type") != "rotary"
            if bool(fields.get(name, value)) != value and not idle:
                raise RunFileError(
                    f"cfg.{name} is {not value}, but a native bridge computes as if it were {value}: "
                    f"save cfg with {name}={value}, which is what was trained"
                )
    return fields, architecture == GPT2


def _fields_around(family: hugging_face.Family, cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a bridge around one of transformers' models: partly in its words, partly in theirs."""
    config_fields.require(cfg, ("n_heads", "d_head"), "cfg")
    theirs = dict(cfg)
    theirs.setdefault("rope_parameters", {"rope_theta": cfg.get("rotary_base")})
    common = hugging_face.common_fields(theirs, family, cfg["n_heads"], cfg["d_head"], "cfg.")
    left_out = {*HARMLESS, *AROUND, *(["rmsnorm_uses_offset"] * family.is_gemma)}
    own = {name: value for name, value in lens_fields(cfg).items() if name not in left_out}
    return {**own, **common, **family.fixed}


def _from_shapes(shapes: Shapes, called: Called) -> tuple[dict[str, Any], bool]:
    """The fields that shapes tell, and which way the layers lie, which the first of an MLP shows."""
    for name in ("blocks.0.mlp.gate.weight", "blocks.0.attn.q_norm.weight"):
        if name in shapes:
            raise RunFileError(
                f"it is a bridge's bare state dict with {called(name)}, "
                f"which does not tell what it wraps: {ADVICE}"
            )
    fields = linear_layers.from_shapes(shapes, called)
    if "blocks.0.ln1.weight" in shapes:
        fields.setdefault("normalization_type", "RMS")
    if "pos_embed.weight" in shapes:
        fields["positional_embedding_type"] = "standard"
    if fields["attn_only"]:
        return fields, False
    d_in, d_out = layout.shape_of(shapes, "blocks.0.mlp.in.weight", 2, called)
    if d_in == d_out:
        raise RunFileError(
            f"it is a bridge's bare state dict whose square layers do not tell which way they lie: {ADVICE}"
        )
    return fields, d_in == fields["d_model"]


def states_of(
    weights: Mapping[str, Tensor], cfg: Mapping[str, Any]
) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """Returns a live bridge's config, and its weights with HookedTransformer's names.

    Of a native one the config is what it computes; that it does so is for its logits to say.

    Args:
        weights: Those of `bridge.state_dict()`.
        cfg: The fields of `bridge.cfg`.

    Raises:
        ValueError: For what cannot be expressed, naming it.
    """
    cfg = {**cfg, **COMPUTED} if cfg.get("architecture") == NATIVE else cfg
    return plan_import(layout.shapes_of(weights), cfg, {}).of_live_model(weights)
