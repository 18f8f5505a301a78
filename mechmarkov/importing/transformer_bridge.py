"""State dicts of TransformerLens 4's TransformerBridge: its native models and those around a GPT-2.

A bridge keeps the layers of what it wraps: a native one has linear layers `[d_out, d_in]`, one around a GPT-2
has linear q, k and v, which it split itself, and GPT-2's transposed layers elsewhere.
"""

from collections.abc import Container, Mapping
from typing import Any

from torch import Tensor

from mechmarkov.importing.hooked_transformer import lens_fields
from mechmarkov.importing.layout import (
    ASSUMED,
    ImportPlan,
    Shapes,
    agree,
    block_states,
    count_layers,
    expect_shape,
    oriented,
    refuse_unknown,
    require,
    shape_of,
    tie,
)
from mechmarkov.importing.lens_config import config_from_lens
from mechmarkov.models import DecoderConfig
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import shown

NATIVE, GPT2 = "TransformerLensNative", "GPT2LMHeadModel"
# What a native bridge of TransformerLens 4.3 computes whatever these fields of its config say.
COMPUTED = {"use_attn_scale": True, "rotary_adjacent_pairs": True, "use_local_attn": False}
# Fields of TransformerBridgeConfig, besides HookedTransformerConfig's, that do not change what is computed.
HARMLESS = {
    "architecture", "bos_token_id", "eos_token_id", "pad_token_id", "split_attention_weights",
    "tokenizer_appends_eos",
}  # fmt: skip


def recognises(names: Container[str]) -> bool:
    """Whether these are a bridge's names."""
    return "embed.weight" in names and "unembed.weight" in names


def plan_import(shapes: Shapes, cfg: Mapping[str, Any] | None, given: Mapping[str, Any]) -> ImportPlan:
    """The model that a bridge's state dict describes, with its config or without.

    Raises:
        ValueError: Naming a field that a HookedDecoder cannot express, or that neither file nor caller gives.
    """
    if cfg:
        fields, flipped, assumed = *_config_fields(cfg), {}
    else:
        fields, flipped = _from_shapes(shapes)
        assumed = {name: value for name, value in ASSUMED.items() if name not in given}
    where = "in the file's config" if cfg else "by the shapes"
    fields = agree(fields, given, where)
    needed = ["n_heads", "positional_embedding_type", "normalization_type", "attn_only"]
    needed += ["act_fn"] if not fields.get("attn_only") else []
    if not cfg:
        if fields.get("positional_embedding_type") == "rotary":
            needed += ["rotary_adjacent_pairs", "rotary_base"]
        require(fields, (*needed, "n_ctx"), "a bridge's bare state dict")
        fields |= assumed | {"d_head": _d_head(shapes, fields["n_heads"])}
    else:
        require(fields, (*needed, "eps"), "cfg")
    config = config_from_lens(fields)
    may = _expected(config, flipped)
    refuse_unknown(shapes, set(may))
    for name, shape in may.items():
        norm = ".ln" in name or name.startswith("ln_final")  # a linear layer may lack its bias, a norm not
        if name.endswith("weight") or norm or name in shapes:
            expect_shape(shapes, name, shape)
    return ImportPlan(
        config,
        tuple(name for name in may if name in shapes),
        lambda weights: _states(weights, config, flipped),
        assumed,
        may_tie=flipped and (cfg or {}).get("tie_word_embeddings", True) is True,
    )


def _config_fields(cfg: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The fields of a saved config, and whether its layers lie as GPT-2's do."""
    architecture = cfg.get("architecture")
    if architecture not in (NATIVE, GPT2):
        name = shown(architecture)
        raise RunFileError(f"cfg.architecture is {name}, expected {NATIVE} or {GPT2}")
    fields = {name: value for name, value in lens_fields(cfg).items() if name not in HARMLESS}
    if architecture == NATIVE:
        _check_computed(fields)
    return fields, architecture == GPT2


def _check_computed(fields: Mapping[str, Any]) -> None:
    """Refuse a saved config that contradicts what its model computes."""
    for name, value in COMPUTED.items():
        idle = name == "rotary_adjacent_pairs" and fields.get("positional_embedding_type") != "rotary"
        if bool(fields.get(name, value)) != value and not idle:
            raise RunFileError(
                f"cfg.{name} is {not value}, but a native bridge computes as if it were {value}: "
                f"save cfg with {name}={value}, which is what was trained"
            )


def _from_shapes(shapes: Shapes) -> tuple[dict[str, Any], bool]:
    """The fields that shapes tell, and which way the layers lie, which the first of an MLP shows."""
    d_vocab, d_model = shape_of(shapes, "embed.weight", 2)
    fields: dict[str, Any] = {
        "n_layers": count_layers(shapes, "blocks."),
        "d_model": d_model,
        "d_vocab": d_vocab,
        "d_vocab_out": shape_of(shapes, "unembed.weight", 2)[0],
        "attn_only": "blocks.0.mlp.in.weight" not in shapes,
    }
    if "blocks.0.ln1.weight" in shapes:
        fields["normalization_type"] = "LN" if "blocks.0.ln1.bias" in shapes else "RMS"
    if "pos_embed.weight" in shapes:
        fields["n_ctx"] = shape_of(shapes, "pos_embed.weight", 2)[0]
        fields["positional_embedding_type"] = "standard"
    if fields["attn_only"]:
        return fields, False
    d_in, d_out = shape_of(shapes, "blocks.0.mlp.in.weight", 2)
    if d_in == d_out:
        raise RunFileError(
            "it is a bridge's bare state dict whose square layers do not tell which way they lie: "
            'save {"cfg": bridge.cfg.to_dict(), "model": bridge.state_dict()}'
        )
    flipped = d_in == d_model
    return {**fields, "d_mlp": d_out if flipped else d_in}, flipped


def _d_head(shapes: Shapes, n_heads: Any) -> int:
    width, _ = shape_of(shapes, "blocks.0.attn.q.weight", 2)
    if type(n_heads) is not int or n_heads < 1 or width % n_heads:
        raise RunFileError(
            f"n_heads is {shown(n_heads)}, expected a divisor of {width}, the width of the queries"
        )
    return width // n_heads


def states_of(
    weights: Mapping[str, Tensor], cfg: Mapping[str, Any]
) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """A live bridge's config, and its weights with HookedTransformer's names.

    Of a native one the config is what it computes; that it does so is for its logits to say.

    Raises:
        ValueError: For what cannot be expressed, naming it.
    """
    cfg = {**cfg, **COMPUTED} if cfg.get("architecture") == NATIVE else cfg
    plan = plan_import({name: tuple(value.shape) for name, value in weights.items()}, cfg, {})
    states = plan.states(dict(weights))
    return tie(plan.config, states) if plan.may_tie else (plan.config, states)


def _expected(config: DecoderConfig, flipped: bool) -> dict[str, tuple[int, ...]]:
    d, width, hidden = config.d_model, config.n_heads * config.d_head, config.d_mlp or 0
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (config.d_vocab, d)}
    if config.positional_embedding_type == "standard":
        shapes["pos_embed.weight"] = (config.n_ctx, d)
    norms = ["ln_final"]
    for layer in range(config.n_layers):
        block = f"blocks.{layer}"
        norms += [f"{block}.ln1"] + ([] if config.attn_only else [f"{block}.ln2"])
        for letter in "qkv":
            shapes |= {f"{block}.attn.{letter}.weight": (width, d), f"{block}.attn.{letter}.bias": (width,)}
        shapes |= {f"{block}.attn.o.weight": oriented(not flipped, width, d), f"{block}.attn.o.bias": (d,)}
        if not config.attn_only:
            shapes |= {
                f"{block}.mlp.in.weight": oriented(not flipped, d, hidden),
                f"{block}.mlp.in.bias": (hidden,),
                f"{block}.mlp.out.weight": oriented(not flipped, hidden, d),
                f"{block}.mlp.out.bias": (d,),
            }
    if config.normalization_type in ("LN", "RMS"):
        shapes |= {f"{norm}.weight": (d,) for norm in norms}
    if config.normalization_type == "LN":
        shapes |= {f"{norm}.bias": (d,) for norm in norms}
    return {**shapes, "unembed.weight": (config.d_vocab_out, d), "unembed.bias": (config.d_vocab_out,)}


def _states(weights: Mapping[str, Tensor], config: DecoderConfig, flipped: bool) -> dict[str, Tensor]:
    """HookedTransformer's tensors; a bias that is not there is zero."""

    def linear(name: str, transposed: bool) -> tuple[Tensor, Tensor]:
        weight = weights[f"{name}.weight"]
        weight = weight.mT if transposed else weight
        return weight, weights.get(f"{name}.bias", weight.new_zeros(weight.shape[1]))

    states = {"embed.W_E": weights["embed.weight"]}
    if "pos_embed.weight" in weights:
        states["pos_embed.W_pos"] = weights["pos_embed.weight"]
    for layer in range(config.n_layers):
        block = f"blocks.{layer}"
        layers = {letter: linear(f"{block}.attn.{letter}", True) for letter in "qkv"}
        layers["o"] = linear(f"{block}.attn.o", not flipped)
        if not config.attn_only:
            layers |= {part: linear(f"{block}.mlp.{part}", not flipped) for part in ("in", "out")}
        states |= block_states(layer, config, layers)
    for name, value in weights.items():
        stem, _, kind = name.rpartition(".")
        if stem.split(".")[-1] in ("ln1", "ln2", "ln_final"):
            states[f"{stem}.{'w' if kind == 'weight' else 'b'}"] = value
    states["unembed.W_U"], states["unembed.b_U"] = linear("unembed", True)
    return states
