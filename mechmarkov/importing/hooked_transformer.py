"""HookedTransformer's configs (TransformerLens 2 and 3), and its state dicts or ours, bare or with a config.

What a decoder cannot express is refused by name.
"""

from collections.abc import Container, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from mechmarkov.importing import config_fields, layout
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.models import DecoderConfig
from mechmarkov.models.decoder import ROTARY_BUFFERS, is_derived, parameter_shapes
from mechmarkov.models.layers import causal_mask
from mechmarkov.models.rotary import rotation
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.text import NAME_CHARACTERS, printable, shown

# Fields of HookedTransformerConfig that do not change what a loaded model computes.
HARMLESS = {
    "checkpoint_index", "checkpoint_label_type", "checkpoint_value", "decoder_start_token_id",
    "default_prepend_bos", "device", "dtype", "from_checkpoint", "init_mode", "init_weights",
    "model_name", "n_devices", "n_params", "norm_topk_prob", "original_architecture", "seed",
    "tie_word_embeddings", "tokenizer_name", "tokenizer_prepends_bos", "train_seq_length",
    "trust_remote_code", "ungroup_grouped_query_attention", "use_attn_in", "use_attn_result",
    "use_hook_mlp_in", "use_hook_result", "use_hook_tokens", "use_split_qkv_input",
}  # fmt: skip
# What stands for "off" in the fields that change it, where that is not None or False.
NEUTRAL = {
    "attention_dir": "causal",
    "rotary_scaling_factor": 1.0,
    "attn_scores_soft_cap": -1.0,
    "output_logits_soft_cap": -1.0,
}
LOCAL = ("use_local_attn", "window_size", "attn_types")
# Its fields that change what is computed and that a `DecoderConfig` lacks.
CHANGING = {
    *NEUTRAL, "experts_per_token", "final_rms", "num_experts", "post_embedding_ln",
    "scale_attn_by_inverse_layer_idx", "use_NTK_by_parts_rope", "use_normalization_before_and_after",
    "use_yarn_rope",
}  # fmt: skip


def config_from_lens(cfg: Any) -> DecoderConfig:
    """Translate a HookedTransformerConfig, or a mapping of its fields, into a `DecoderConfig`.

    Raises:
        ValueError: Naming the first field that a `HookedDecoder` cannot express, and its value.

    Example:
        >>> fields = {"n_layers": 1, "d_model": 4, "n_ctx": 6, "d_head": 2, "d_vocab": 3, "attn_only": True}
        >>> config_from_lens({**fields, "device": "cpu"}).n_heads
        2
        >>> config_from_lens({**fields, "attention_dir": "bidirectional"})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: cfg.attention_dir is 'bidirectional', expected 'causal': a HookedDecoder cannot express it
    """
    values = dict(cfg if isinstance(cfg, Mapping) else vars(cfg))
    defaults = {field.name: field.default for field in fields(cfg)} if is_dataclass(cfg) else {}
    own = DecoderConfig.model_fields
    for name, value in values.items():
        same = name == "final_rms" and values.get("normalization_type") == "RMS"
        if name in own or name in HARMLESS or name in LOCAL or same:
            continue
        neutral = NEUTRAL.get(name, defaults.get(name))
        if not _off(value, neutral):
            expected = f", expected {neutral!r}" if not _off(neutral, None) else ""
            field = printable(f"cfg.{name}", NAME_CHARACTERS)
            raise ValueError(f"{field} is {shown(value)}{expected}: a HookedDecoder cannot express it")
    # A numpy number becomes a plain one.
    known = {name: x.item() if hasattr(x, "item") else x for name, x in values.items() if name in own}
    if known.get("attn_only"):
        known.pop("d_mlp", None)
        known.pop("act_fn", None)
    if known.get("positional_embedding_type") != "rotary":
        known.pop("rotary_dim", None)
    if known.get("act_fn") == "gelu_pytorch_tanh":
        known["act_fn"] = "gelu_new"
    if values.get("use_local_attn"):
        known["window"] = _window(values)
    try:
        return DecoderConfig.model_validate(known)
    except ValidationError as error:
        raise ValueError(one_line(error, DecoderConfig, name="cfg")) from error


def _window(values: dict[str, Any]) -> int | None:
    """HookedTransformer's local attention, where every layer has the same."""
    kinds = values.get("attn_types") or ["global"]
    if not isinstance(kinds, list | tuple) or any(kind not in ("local", "global") for kind in kinds):
        raise ValueError(f"cfg.attn_types is {shown(kinds)}, expected a list of 'local' and 'global'")
    if "local" not in kinds:
        return None
    if "global" in kinds:
        raise ValueError("cfg.attn_types mixes local and global layers: a HookedDecoder cannot express it")
    # A window of w is the query and the w - 1 tokens before it.
    size = values.get("window_size")
    if type(size) is not int or size < 1:
        raise ValueError(f"cfg.window_size is {shown(size)}, expected an integer of at least 1")
    return size - 1


def _off(value: Any, neutral: Any) -> bool:
    """Returns whether a field is at its neutral value; None and False are one."""
    if value is None or value is False:
        return neutral is None or neutral is False
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


# Constants of rotary scalings, which matter where their switch is on (and that is refused).
SCALINGS = {"NTK_": "use_NTK_by_parts_rope", "yarn_": "use_yarn_rope"}
MARKS = (("embed.W_E",),)
MASK = ".attn.mask"  # how the names of causal masks end


def plan_import(
    shapes: Shapes, cfg: Mapping[str, Any] | None, given: Mapping[str, Any], *, called: Called = str
) -> ImportPlan:
    """Work out which decoder a state dict of HookedTransformer is, with its config or without.

    Raises:
        ValueError: Naming a field that a HookedDecoder cannot express, or that neither file nor caller gives.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=2, d_vocab=3, attn_only=True)
        >>> plan = plan_import(parameter_shapes(config), None, {"positional_embedding_type": "standard"})
        >>> plan.config == config
        True
    """
    by_shapes = from_shapes(shapes, called)
    of_lens = {} if cfg is None else {**cfg, **config_fields.PLACES}
    by_config = config_fields.agree(of_lens, given, "in the file's config")
    fields = config_fields.agree(by_shapes, by_config, "by the shapes")
    needed = ["positional_embedding_type", "n_ctx", "normalization_type", *config_fields.needed_parts(fields)]
    config_fields.require(fields, needed, "a HookedTransformer's state dict")
    config = config_from_lens(lens_fields(fields))
    if (layers := layout.count_layers(shapes, called)) != config.n_layers:
        raise RunFileError(f"it has {layers} blocks, but n_layers is {config.n_layers}")
    expected = parameter_shapes(config)
    buffers = _checkable(shapes, config)
    weights = {name: x for name, x in shapes.items() if name in buffers or not is_derived(name, config)}
    layout.check_shapes(weights, expected | buffers, called=called)

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        for name in buffers:
            _check_buffer(called(name), weights[name], config)
        return {name: weights[name] for name in expected}

    assumed = config_fields.assumptions(config, told(fields, has_config=cfg is not None))
    masks = frozenset(name for name in buffers if name.endswith(MASK))
    return ImportPlan(config, (*expected, *buffers), states, assumed, masks=masks)


def told(fields: Mapping[str, Any], has_config: bool) -> set[str]:
    """Returns the fields whose values a file says, so that `config_fields.assumptions` need not name them.

    Args:
        fields: The fields that it gives, or the caller.
        has_config: Whether there is a HookedTransformerConfig, which also says where norms are.

    Example:
        >>> sorted(told({"eps": 1e-5, "use_local_attn": False}, has_config=True))
        ['eps', 'final_norm', 'norm_first', 'use_local_attn', 'window']
    """
    window = {"window"} if "use_local_attn" in fields else set()  # HookedTransformer's way to say it
    return {*fields, *window, *(config_fields.PLACES if has_config else ())}


def lens_fields(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a saved config without the constants of a rotary scaling that it does not use.

    Example:
        >>> lens_fields({"d_model": 4, "yarn_factor": 2.0, "use_yarn_rope": False})
        {'d_model': 4, 'use_yarn_rope': False}
    """
    unused = tuple(prefix for prefix, switch in SCALINGS.items() if not cfg.get(switch))
    return {name: value for name, value in cfg.items() if not name.startswith(unused)}


def from_shapes(shapes: Shapes, called: Called = str) -> dict[str, Any]:
    """Returns the fields of a `DecoderConfig` that the shapes of HookedTransformer's weights tell.

    Example:
        >>> config = DecoderConfig(n_layers=2, d_model=4, n_ctx=6, d_head=2, d_vocab=3, attn_only=True)
        >>> fields = from_shapes(parameter_shapes(config))
        >>> fields["n_layers"], fields["n_heads"], fields["n_ctx"], fields["normalization_type"]
        (2, 2, 6, 'LN')
    """
    d_vocab, d_model = layout.shape_of(shapes, "embed.W_E", 2, called)
    fields: dict[str, Any] = {
        "n_layers": layout.count_layers(shapes, called),
        "d_model": d_model,
        "d_vocab": d_vocab,
        "attn_only": not any(".mlp." in name for name in shapes),
    }
    if "unembed.W_U" in shapes:
        fields["d_vocab_out"] = layout.shape_of(shapes, "unembed.W_U", 2, called)[1]
    attn, first = "blocks.0.attn.", next((name for name in shapes if name.endswith(".mlp.W_in")), None)
    for name, axis in ((f"{attn}W_Q", 2), (f"{attn}W_O", 1), (f"{attn}W_K", 2), (f"{attn}W_V", 2)):
        if "n_heads" not in fields and name in shapes:
            shape = layout.shape_of(shapes, name, 3, called)
            fields |= {"n_heads": shape[0], "d_head": shape[axis]}
    if f"{attn}_W_V" in shapes:
        fields["n_key_value_heads"] = layout.shape_of(shapes, f"{attn}_W_V", 3, called)[0]
    if f"{attn}q_norm.w" in shapes:
        fields["use_qk_norm"] = True
    if first is not None:  # a table of names may leave the first layer's out
        fields["d_mlp"] = layout.shape_of(shapes, first, 2, called)[1]
        fields["gated_mlp"] = first.replace("W_in", "W_gate") in shapes
    if "blocks.0.ln1.w" in shapes:
        fields["normalization_type"] = "LN" if "blocks.0.ln1.b" in shapes else "RMS"
    if "ln_final.w" in shapes:
        fields["final_norm"] = True
    if "pos_embed.W_pos" in shapes:
        fields["n_ctx"] = layout.shape_of(shapes, "pos_embed.W_pos", 2, called)[0]
    elif f"{attn}rotary_sin" in shapes:
        fields["n_ctx"], fields["rotary_dim"] = layout.shape_of(shapes, f"{attn}rotary_sin", 2, called)
        fields["positional_embedding_type"] = "rotary"
    elif f"{attn}W_rel" in shapes:
        fields["n_ctx"] = layout.shape_of(shapes, f"{attn}W_rel", 3, called)[1]
        fields["positional_embedding_type"] = "relative"
    elif f"{attn}b_rel" in shapes:
        fields["n_ctx"] = layout.shape_of(shapes, f"{attn}b_rel", 2, called)[1]
        fields["positional_embedding_type"] = "relative_bias"
    return fields


def lacks_last_norm(shapes: Container[str]) -> bool:
    """Returns whether HookedTransformer's weights have norms in their layers, and none behind the last.

    Example:
        >>> lacks_last_norm({"blocks.0.ln1.w"}), lacks_last_norm({"blocks.0.ln1.w", "ln_final.w"})
        (True, False)
    """
    return "blocks.0.ln1.w" in shapes and "ln_final.w" not in shapes


def _checkable(shapes: Shapes, config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of buffers that must agree with the config; version 3 saves its masks empty."""
    derived: dict[str, tuple[int, ...]] = {MASK: (config.n_ctx, config.n_ctx)}
    if config.positional_embedding_type == "rotary":
        assert config.rotary_dim is not None  # DecoderConfig sees to it
        derived |= {f".{name}": (config.n_ctx, config.rotary_dim) for name in ROTARY_BUFFERS}
    filled = [name for name in shapes if 0 not in shapes[name]]
    return {name: shape for end, shape in derived.items() for name in filled if name.endswith(end)}


def _check_buffer(name: str, value: Tensor, config: DecoderConfig) -> None:
    """Refuse a file whose masks or rotary tables say something else than its config, or than was assumed."""
    if name.endswith(MASK):
        ours = causal_mask(config.n_ctx, config.n_ctx, config.window, value.device).float()
    else:
        ours = rotation(config, config.n_ctx, value)[name.endswith("rotary_cos")]
    # Angles up to n_ctx radians in float32 are good to about 1e-4; another layout or base is far off.
    if not torch.allclose(value, ours, atol=1e-3):
        raise RunFileError(f"{name} is not what the config makes of it: another attention or rotary layout")
