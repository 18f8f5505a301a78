"""GPT-2's names: nanoGPT's checkpoints (linear layers) and transformers' GPT-2 (transposed, Conv1D)."""

import re
from collections.abc import Container, Mapping
from typing import Any

from mechmarkov.importing import layout, linear_layers
from mechmarkov.importing.layout import ImportPlan, Shapes
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import NAME_CHARACTERS, printable, shown

# Their names, or their beginnings, by a bridge's.
NAMES = {
    "wte": "embed",
    "wpe": "pos_embed",
    "ln_f": "ln_final",
    "lm_head": "unembed",
    "h.": "blocks.",
    "ln_1": "ln1",
    "ln_2": "ln2",
    "attn.c_attn": "attn.qkv",
    "attn.c_proj": "attn.o",
    "mlp.c_fc": "mlp.in",
    "mlp.c_proj": "mlp.out",
}
MASK = re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)")  # the causal mask
SIZES = {"n_layer": "n_layers", "n_head": "n_heads", "n_embd": "d_model", "vocab_size": "d_vocab"}
# nanoGPT's model_args by our names; dropout is off where a model is read.
NANOGPT = {**SIZES, "block_size": "n_ctx"}
NANOGPT_HARMLESS = {"dropout", "bias"}
GPT2 = {
    **SIZES,
    "n_positions": "n_ctx",
    "n_inner": "d_mlp",
    "layer_norm_epsilon": "eps",
    "scale_attn_weights": "use_attn_scale",
}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "relu": "relu"}
# Fields of GPT2Config that do not change what a loaded model computes, or only on its way to text.
GPT2_HARMLESS = {
    "activation_function", "attn_pdrop", "embd_pdrop", "gradient_checkpointing", "n_ctx",
    "reorder_and_upcast_attn", "resid_pdrop", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
}  # fmt: skip


def recognises(names: Container[str]) -> bool:
    """Whether these are GPT-2's names, with its outer `transformer.` or without."""
    return "transformer.wte.weight" in names or "wte.weight" in names


def fields_of_gpt2(config: Mapping[str, Any], where: str = layout.FILE) -> dict[str, Any]:
    """A config of transformers, from `where`, in our words.

    Raises:
        RunFileError: Naming a field that GPT-2 lacks or that a `HookedDecoder` cannot express.
    """
    if config.get("model_type") != "gpt2":
        kind = shown(config.get("model_type"))
        raise RunFileError(f"{where}model_type is {kind}, expected 'gpt2'")
    layout.check_fields(config, (), {*GPT2, *GPT2_HARMLESS}, where)
    fields = {ours: config[theirs] for theirs, ours in GPT2.items() if config.get(theirs) is not None}
    act_fn = config.get("activation_function", "gelu_new")
    act_fn = ACTIVATIONS[layout.one_of(act_fn, ACTIVATIONS, f"{where}activation_function")]
    tied = {"tied": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    return {
        "eps": 1e-5, "use_attn_scale": True, **fields, **tied,
        "act_fn": act_fn, "normalization_type": "LN",
    }  # fmt: skip


def fields_of_nanogpt(args: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """The `model_args` of nanoGPT in our words; of a training config (`strict` off) what names the model.

    Raises:
        RunFileError: Naming an argument that nanoGPT does not have.
    """
    for name, value in args.items():
        if strict and name not in NANOGPT and name not in NANOGPT_HARMLESS:
            raise RunFileError(
                f"model_args: {printable(name, NAME_CHARACTERS)} is {shown(value)}: nanoGPT has none"
            )
    fields = {ours: args[theirs] for theirs, ours in NANOGPT.items() if args.get(theirs) is not None}
    return {**fields, "normalization_type": "LN"} if "bias" in args else fields


def plan_import(shapes: Shapes, from_config: Mapping[str, Any], given: Mapping[str, Any]) -> ImportPlan:
    """The model that weights with GPT-2's names describe, with the fields of their config.

    Raises:
        RunFileError: Naming a field that cannot be expressed, is not given, or contradicts the shapes.
    """
    outer = "transformer." if "transformer.wte.weight" in shapes else ""
    names = linear_layers.renamed((name for name in shapes if not MASK.fullmatch(name)), NAMES, outer)
    inner = {ours: shapes[name] for name, ours in names.items()}
    fields = layout.agree(_from_shapes(inner), from_config, "by the shapes")
    fields = layout.agree(fields, given, "in the file")
    layout.require(fields, ("n_heads", "act_fn", "normalization_type"), "a checkpoint with GPT-2's names")
    assumed = {} if "eps" in fields else {"eps": 1e-5}
    width = fields["d_model"]
    fields["d_head"] = layout.head_size(fields["n_heads"], width, f"d_model {width}")
    may_tie = fields.pop("tied", None) is not False
    tied = "unembed.weight" not in inner
    if tied and not may_tie:
        raise RunFileError("it has no lm_head.weight, though its config says that it is not tied")
    config = layout.make_config({**fields, **assumed, "tied": tied})
    transposed = inner["blocks.0.attn.qkv.weight"] == (3 * config.d_model, config.d_model)
    plan = linear_layers.plan(
        linear_layers.split_shapes(inner, transposed),
        config,
        transposed=transposed,
        assumed=assumed,
        may_tie=may_tie,
        norms_may_lack_bias=True,
    )
    return linear_layers.by_other_names(
        plan, names, lambda value: (value if transposed else value.t()).chunk(3)
    )


def _from_shapes(shapes: Shapes) -> dict[str, Any]:
    d_vocab, d_model = layout.shape_of(shapes, "embed.weight", 2)
    n_ctx, _ = layout.shape_of(shapes, "pos_embed.weight", 2)
    n_layers = layout.count_layers(shapes, "blocks.")
    rows, columns = layout.shape_of(shapes, "blocks.0.mlp.in.weight", 2)
    fields = {
        "n_layers": n_layers,
        "d_model": d_model,
        "n_ctx": n_ctx,
        "d_vocab": d_vocab,
        "d_mlp": rows if columns == d_model else columns,  # whichever way the layer lies
        "attn_only": False,
        "positional_embedding_type": "standard",
    }
    layout.shape_of(shapes, "blocks.0.attn.qkv.weight", 2)
    if "unembed.weight" in shapes:
        fields["d_vocab_out"] = layout.shape_of(shapes, "unembed.weight", 2)[0]
    if "blocks.0.ln1.bias" in shapes:
        fields["normalization_type"] = "LN"
    return fields
