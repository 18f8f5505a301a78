"""Decoders of transformers other than GPT-2: those with Llama's names, and GPT-NeoX.

Their weights are read by a bridge's names (`linear_layers`), so a bridge around one is read in the same way.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from mechmarkov.importing import bloom, config_fields, gpt2, mamba
from mechmarkov.importing.architecture import Architecture
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.importing.names.weights import PAGE
from mechmarkov.models.config import MAX_WIDTH
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import NAME_CHARACTERS, printable, shown

LLAMA_STEMS = {
    "model.embed_tokens": "embed",
    "model.layers.N.input_layernorm": "blocks.N.ln1",
    "model.layers.N.post_attention_layernorm": "blocks.N.ln2",
    **{f"model.layers.N.self_attn.{letter}_proj": f"blocks.N.attn.{letter}" for letter in "qkvo"},
    **{f"model.layers.N.self_attn.{letter}_norm": f"blocks.N.attn.{letter}_norm" for letter in "qk"},
    "model.layers.N.mlp.gate_proj": "blocks.N.mlp.gate",
    "model.layers.N.mlp.up_proj": "blocks.N.mlp.in",
    "model.layers.N.mlp.down_proj": "blocks.N.mlp.out",
    "model.norm": "ln_final",
    "lm_head": "unembed",
}
NEOX_STEMS = {
    "gpt_neox.embed_in": "embed",
    "gpt_neox.layers.N.input_layernorm": "blocks.N.ln1",
    "gpt_neox.layers.N.post_attention_layernorm": "blocks.N.ln2",
    "gpt_neox.layers.N.attention.query_key_value": "blocks.N.attn.qkv",
    "gpt_neox.layers.N.attention.dense": "blocks.N.attn.o",
    "gpt_neox.layers.N.mlp.dense_h_to_4h": "blocks.N.mlp.in",
    "gpt_neox.layers.N.mlp.dense_4h_to_h": "blocks.N.mlp.out",
    "gpt_neox.final_layer_norm": "ln_final",
    "embed_out": "unembed",
    "lm_head": "unembed",
}
FIELDS = {
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_size": "d_model",
    "intermediate_size": "d_mlp",
    "max_position_embeddings": "n_ctx",
    "vocab_size": "d_vocab",
}
ROTARY = {"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"}
# Fields that do not change what a loaded model computes, or that shapes tell too.
HARMLESS = {
    "attention_bias", "attention_dropout", "head_dim", "hidden_act", "layer_types", "num_key_value_heads",
}  # fmt: skip
ACTIVATIONS = {"silu": "silu", **gpt2.ACTIVATIONS}


@dataclass(frozen=True)
class Family:
    """A type of transformers' decoders: the facts that hold whatever a config of it says.

    Attributes:
        architecture: The name of the class in transformers.
        stems: A bridge's stems by its own, as of `linear_layers.Table`.
        fixed: Fields of our config that no field of theirs tells.
        eps: The name of the norms' epsilon.
        rotary: The names of the rotary fields.
        harmless: Names that only this family has and that change nothing.
        rotary_share: The share of a head that turns, where the config does not say; None if it is the whole.
        is_gemma: Whether embeddings are scaled by `sqrt(d_model)` and gains of norms are one more.
    """

    architecture: str
    stems: Mapping[str, str] = field(default_factory=lambda: LLAMA_STEMS)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    eps: str = "rms_norm_eps"
    rotary: Set[str] = frozenset(ROTARY)
    harmless: Set[str] = frozenset()
    rotary_share: float | None = None
    is_gemma: bool = False


LLAMA = Family(
    "LlamaForCausalLM", fixed={"gated_mlp": True, "normalization_type": "RMS"}, harmless={"pretraining_tp"}
)
QWEN = {"use_sliding_window", "sliding_window", "max_window_layers"}
FAMILIES = {
    "llama": LLAMA,
    "mistral": replace(LLAMA, architecture="MistralForCausalLM", harmless={"sliding_window"}),
    "qwen2": replace(LLAMA, architecture="Qwen2ForCausalLM", harmless=QWEN),
    "qwen3": replace(
        LLAMA, architecture="Qwen3ForCausalLM", harmless=QWEN, fixed={**LLAMA.fixed, "use_qk_norm": True}
    ),
    "gemma": replace(LLAMA, architecture="GemmaForCausalLM", harmless=frozenset(), is_gemma=True),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        NEOX_STEMS,
        {"gated_mlp": False, "normalization_type": "LN"},
        eps="layer_norm_eps",
        rotary={*ROTARY, "rotary_pct", "rotary_emb_base"},
        harmless={"classifier_dropout", "hidden_dropout", "use_parallel_residual"},
        rotary_share=0.25,
    ),
}
OF_NO_LENGTH = {"bloom": bloom.BLOOM, **mamba.MAMBAS}
KINDS = ("gpt2", *FAMILIES, *OF_NO_LENGTH)
# Their relatives, and what of each no `HookedDecoder` has.
RELATIVES = {
    "bert": "it reads what comes after a token",
    "codegen": "its attention and its MLP share a norm",
    "gemma2": "attn_logit_softcapping and final_logit_softcapping",
    "gemma3_text": "layer_types are of two kinds, with a window and without",
    "gpt_bigcode": "multi_query lays queries, keys and values out in one weight",
    "gpt_neo": "attention_types are global and local in turn, and its scores are not scaled",
    "gptj": "its attention and its MLP share a norm",
    "mixtral": "num_local_experts",
    "mpt": "its attn_config may clip queries, keys and values",
    "olmo2": "its norms come after attention and MLP",
    "openai-gpt": "its norms come after attention and MLP",
    "opt": "its positions begin at 2",
    "phi": "its attention and its MLP share a norm",
}
SHARED_NORM = 'one line gives both, ["blocks.N.ln1.w", "blocks.N.ln2.w"], with parallel_attn_mlp'
# What a table of names says of a relative that a `HookedDecoder` does compute.
BY_NAMES = {
    "gpt_bigcode": '"rows" of c_attn take them apart',
    "gpt_neo": "where all are global, with use_attn_scale false",
    "gptj": SHARED_NORM,
    "mpt": "where nothing is clipped, with positional_embedding_type alibi (n_heads a power of two)",
    "opt": '"rows": [2, …] takes them from there',
    "phi": SHARED_NORM,
}
# Those whose bridges tell all that they compute: TransformerLens 4.3 does not say a Mistral's window.
ARCHITECTURES = {family.architecture: family for name, family in FAMILIES.items() if name != "mistral"}
MARKS = (("model.embed_tokens.weight",), ("gpt_neox.embed_in.weight",), *bloom.MARKS)


def unknown(model_type: Any, where: str = config_fields.FILE) -> RunFileError:
    """Returns the error about a model of no family that is read, with what can be done.

    Example:
        >>> str(unknown("bert")).rpartition("; ")[2]
        'bert is not read: it reads what comes after a token'
    """
    if model_type is None:
        way = f"without one, names= or --names says which weight is which ({PAGE})"
        return RunFileError(f"{where}model_type is missing, expected one of {', '.join(KINDS)}; {way}")
    why = f"if it computes what one of these does, names= or --names says which weight is which ({PAGE})"
    if model_type in RELATIVES:
        why = f"{model_type} is not read: {RELATIVES[model_type]}"
    if model_type in BY_NAMES:
        why += f"; names= or --names brings it in: {BY_NAMES[model_type]} ({PAGE})"
    return RunFileError(f"{where}model_type is {shown(model_type)}, expected {', '.join(KINDS)}; {why}")


def kind_of(config: Mapping[str, Any], where: str = config_fields.FILE) -> str:
    """Returns the `model_type` of a config of transformers.

    Raises:
        RunFileError: It is none of those that are read.

    Example:
        >>> kind_of({"model_type": "llama"})
        'llama'
    """
    if config.get("model_type") not in KINDS:
        raise unknown(config.get("model_type"), where)
    return config["model_type"]


def plan_import(
    shapes: Shapes,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    where: str = config_fields.FILE,
    called: Called = str,
) -> ImportPlan:
    """Work out which decoder a model of transformers is: GPT-2, Bloom, Mamba or one of a family.

    Args:
        shapes: The shape of every weight, by its name.
        config: The fields of its config.json, `model_type` among them.
        given: Fields of a `DecoderConfig` that the caller says. A shorter `n_ctx` is taken, for rotary
            positions have no length. Bloom and Mamba say none: where it is not given it is 256.
        where: What stands before a field's name in a message.
        called: What the file calls a weight, for messages.

    Raises:
        RunFileError: Naming a field that cannot be expressed, is missing, or contradicts the shapes.

    Example:
        >>> plan_import({}, {"model_type": "bert"}, {})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: config.json: model_type is 'bert', expected gpt2, llama, ...
    """
    kind = kind_of(config, where)
    if kind == "gpt2":
        return gpt2.plan_import(shapes, gpt2.fields_of_gpt2(config, where), given, called=called)
    architecture = OF_NO_LENGTH[kind] if kind in OF_NO_LENGTH else _architecture(FAMILIES[kind])
    return architecture.plan(shapes, config, given, where, called)


def _architecture(family: Family) -> Architecture:
    return Architecture(
        family.stems,
        lambda config, where: fields_of(config, family, where),
        options=lambda d_model: how(family, d_model),
        assumed=config_fields.assumptions,
    )


def how(family: Family, d_model: int) -> dict[str, Any]:
    """Returns a family's arguments of `linear_layers.plan`: `plan(shapes, config, **how(family, d_model))`.

    Example:
        >>> how(FAMILIES["llama"], 16), how(FAMILIES["gemma"], 16)
        ({'may_tie': True}, {'embed_scale': 4.0, 'norm_offset': 1.0})
    """
    if family.is_gemma:  # its unembedding is not scaled: the two are no longer one
        return {"embed_scale": d_model**0.5, "norm_offset": 1.0}
    return {"may_tie": True}


def fields_of(config: Mapping[str, Any], family: Family, where: str) -> dict[str, Any]:
    """Translate a config of transformers into fields of a `DecoderConfig`.

    Raises:
        RunFileError: Naming a field that is missing or that a `HookedDecoder` cannot express.

    Example:
        >>> sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "vocab_size": 3}
        >>> sizes |= {"intermediate_size": 16, "max_position_embeddings": 32, "hidden_act": "silu"}
        >>> fields = fields_of({**sizes, "rms_norm_eps": 1e-6}, FAMILIES["llama"], "config.")
        >>> fields["d_head"], fields["rotary_dim"], fields["n_key_value_heads"]
        (4, 4, None)
    """
    others = HARMLESS | family.rotary | family.harmless
    config_fields.check_fields(config, [*FIELDS, family.eps], others, where)
    fields = {ours: config[theirs] for theirs, ours in FIELDS.items()} | dict(family.fixed)
    sizes = [fields["d_model"], fields["n_heads"]]
    if any(type(size) is not int or size < 1 for size in sizes):
        raise RunFileError(f"{where}hidden_size and num_attention_heads are {sizes}, expected sizes")
    d_head = config.get("head_dim") or sizes[0] // sizes[1]
    if config.get("sliding_window") is not None and family is FAMILIES["mistral"]:
        if type(config["sliding_window"]) is not int or config["sliding_window"] < 1:
            raise config_fields.cannot_express("sliding_window", config["sliding_window"], where)
        fields["window"] = config["sliding_window"] - 1  # theirs counts the query's own position
    fields |= {"d_head": d_head, "eps": config[family.eps]}
    return fields | config_fields.PLACES | common_fields(config, family, sizes[1], d_head, where)


def common_fields(
    config: Mapping[str, Any], family: Family, n_heads: int, d_head: int, where: str
) -> dict[str, Any]:
    """Translate the fields that configs of transformers and of bridges around its models share.

    Raises:
        RunFileError: Naming a field that a `HookedDecoder` cannot express.
    """
    if config.get("use_sliding_window"):
        raise config_fields.cannot_express("use_sliding_window", True, where)
    kinds = config.get("layer_types") or ["full_attention"]
    if type(kinds) is not list or any(kind != "full_attention" for kind in kinds):
        raise config_fields.cannot_express("layer_types", kinds, where)
    act_fn = config_fields.one_of(config.get("hidden_act"), ACTIVATIONS, f"{where}hidden_act")
    fields = {
        "act_fn": ACTIVATIONS[act_fn],
        "attn_only": False,
        "positional_embedding_type": "rotary",
        "rotary_adjacent_pairs": False,
    }
    rope = config.get("rope_parameters") or {}
    if config.get("rope_scaling"):
        raise config_fields.cannot_express("rope_scaling", config["rope_scaling"], where)
    if type(rope) is not dict:
        raise config_fields.cannot_express("rope_parameters", rope, where)
    for name, value in rope.items():
        kind = name in ("rope_type", "type") and value == "default"
        if name not in ("rope_theta", "partial_rotary_factor") and not kind:
            field = f"rope_parameters.{printable(str(name), NAME_CHARACTERS)}"
            raise config_fields.cannot_express(field, value, where)
    bases = [rope.get("rope_theta"), config.get("rope_theta"), config.get("rotary_emb_base"), 10000.0]
    share = [rope.get("partial_rotary_factor"), config.get("partial_rotary_factor"), config.get("rotary_pct")]
    if type(d_head) is not int or not 0 < d_head <= MAX_WIDTH:
        raise RunFileError(f"{where}head_dim is {shown(d_head)}, expected a size")
    part = next((value for value in share if value is not None), family.rotary_share or 1.0)
    if type(part) not in (int, float) or not 0 < part <= 1 or (part != 1 and family.rotary_share is None):
        raise config_fields.cannot_express("partial_rotary_factor", part, where)
    fields["rotary_base"] = next(value for value in bases if value is not None)
    fields["rotary_dim"] = int(d_head * part)
    if family.rotary_share is not None:
        fields["parallel_attn_mlp"] = config.get("use_parallel_residual", True)
        return fields
    groups = config.get("num_key_value_heads", config.get("n_key_value_heads"))
    return fields | {"n_key_value_heads": None if groups == n_heads else groups}
