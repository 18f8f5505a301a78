"""A HookedTransformerConfig as a `DecoderConfig`: what a decoder cannot express is refused by name."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import ValidationError

from mechmarkov.models import DecoderConfig
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
