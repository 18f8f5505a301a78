"""GPT-2's names: nanoGPT's checkpoints (linear layers) and transformers' GPT-2 (transposed, Conv1D)."""

import re
from collections.abc import Mapping
from typing import Any

from mechmarkov.importing import config_fields, layout, linear_layers
from mechmarkov.importing.files import buffers, configs
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import NAME_CHARACTERS, printable, shown

# A bridge's stems by theirs; `transformer.` may stand before all but the head's.
OUTER = "transformer."
STEMS = {
    "wte": "embed",
    "wpe": "pos_embed",
    "h.N.ln_1": "blocks.N.ln1",
    "h.N.ln_2": "blocks.N.ln2",
    "h.N.attn.c_attn": "blocks.N.attn.qkv",
    **{f"h.N.attn.c_{letter}": f"blocks.N.attn.{letter}" for letter in "qkv"},
    "h.N.attn.c_proj": "blocks.N.attn.o",
    "h.N.mlp.c_fc": "blocks.N.mlp.in",
    "h.N.mlp.c_proj": "blocks.N.mlp.out",
    "ln_f": "ln_final",
}
MARKS = tuple((f"{outer}h.0.attn.{name}.weight",) for outer in (OUTER, "") for name in ("c_attn", "c_q"))
LN_BIAS = "blocks.0.ln1.bias"
MASK = re.compile(r"h\.\d+\.attn\.bias")  # the causal mask, where it has four axes
IDLE = re.compile(r"h\.\d+\.attn\.masked_bias")  # what scores outside the mask become
FREQUENCIES = re.compile(r"(.+\.)?inv_freq")  # of rotary positions
SIZES = {"n_layer": "n_layers", "n_head": "n_heads", "n_embd": "d_model", "vocab_size": "d_vocab"}
# nanoGPT's model_args by our names; dropout is off where a model is read.
NANOGPT = {
    **SIZES, "block_size": "n_ctx", "sequence_length": "n_ctx",
    **dict.fromkeys(("n_heads", "num_heads", "nhead", "num_attention_heads"), "n_heads"),
}  # fmt: skip
NANOGPT_HARMLESS = {
    "dropout", "bias", "attn_pdrop", "resid_pdrop", "embd_pdrop", "device", "dtype", "seed", "flash",
    "use_flash", "compile", "init_std", "initializer_range",
}  # fmt: skip
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


def fields_of_gpt2(config: Mapping[str, Any], where: str = config_fields.FILE) -> dict[str, Any]:
    """Translate a GPT2Config of transformers into fields of a `DecoderConfig`.

    Raises:
        RunFileError: Naming a field that GPT-2 lacks or that a `HookedDecoder` cannot express.

    Example:
        >>> fields_of_gpt2({"model_type": "gpt2", "n_layer": 2, "n_head": 4})["n_heads"]
        4
    """
    if config.get("model_type") != "gpt2":
        kind = shown(config.get("model_type"))
        raise RunFileError(f"{where}model_type is {kind}, expected 'gpt2'")
    config_fields.check_fields(config, (), {*GPT2, *GPT2_HARMLESS}, where)
    fields = {ours: config[theirs] for theirs, ours in GPT2.items() if config.get(theirs) is not None}
    act_fn = config.get("activation_function", "gelu_new")
    act_fn = ACTIVATIONS[config_fields.one_of(act_fn, ACTIVATIONS, f"{where}activation_function")]
    tied = {"tied": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    return {
        "eps": 1e-5, "use_attn_scale": True, **fields, **tied, **config_fields.PLACES,
        "act_fn": act_fn, "normalization_type": "LN",
    }  # fmt: skip


def fields_of_nanogpt(args: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """Translate the `model_args` of nanoGPT into fields of a `DecoderConfig`.

    What leaves no trace in weights (`configs.MEANINGS`) is not read: `configs.check_settings` asks for it.

    Args:
        args: Their entries, or those of a training's config.
        strict: Whether an unknown entry is refused, as in `model_args`.

    Raises:
        RunFileError: Naming an argument that nanoGPT does not have.

    Example:
        >>> fields_of_nanogpt({"n_layer": 2, "n_embd": 8, "block_size": 16, "dropout": 0.1}, strict=True)
        {'n_layers': 2, 'd_model': 8, 'n_ctx': 16}
    """
    known = {*NANOGPT, *NANOGPT_HARMLESS, *configs.MEANINGS, *configs.NUMBERS, *configs.PLACES}
    known |= {*configs.ACTIVATION}
    for name, value in args.items():
        if strict and name not in known and value not in (None, False):
            raise RunFileError(
                f"model_args: {printable(name, NAME_CHARACTERS)} is {shown(value)}: nanoGPT has none; if it "
                f"changes nothing that is computed, checkpoint['model_args'].pop({name!r}) and save again"
            )
    fields = {ours: args[theirs] for theirs, ours in NANOGPT.items() if args.get(theirs) is not None}
    fields |= configs.numbers(args) | configs.places(args) | configs.activation(args)
    return {**fields, "normalization_type": "LN"} if "bias" in args else fields


def plan_import(
    shapes: Shapes, from_config: Mapping[str, Any], given: Mapping[str, Any], *, called: Called = str
) -> ImportPlan:
    """Work out which decoder weights with GPT-2's names are, and how they become its weights.

    Attention only, without norms, without positions of its own (rotary or none) and without biases are told
    by what is not there.

    Raises:
        RunFileError: Naming a field that cannot be expressed, is not given, or contradicts the shapes.

    Example:
        >>> shapes = {"wte.weight": (3, 4), "wpe.weight": (6, 4)}
        >>> shapes |= {"ln_f.weight": (4,), "h.0.ln_1.weight": (4,)}
        >>> shapes |= {"h.0.attn.c_attn.weight": (12, 4), "h.0.attn.c_proj.weight": (4, 4)}
        >>> plan = plan_import(shapes, {}, {"n_heads": 2, "normalization_type": "LN"})
        >>> plan.config.d_head, plan.config.attn_only
        (2, True)
    """
    outer = OUTER if any(name.startswith(OUTER) for name in shapes) else ""
    stems = {**{outer + theirs: ours for theirs, ours in STEMS.items()}, "lm_head": "unembed"}
    masks = [name for name in shapes if MASK.fullmatch(name.removeprefix(outer)) and len(shapes[name]) > 1]
    tables = [name for name in shapes if FREQUENCIES.fullmatch(name)]
    passed = {*masks, *tables, *(name for name in shapes if IDLE.fullmatch(name.removeprefix(outer)))}
    plan = plan_of(
        linear_layers.Table(stems, called),
        {name: shape for name, shape in shapes.items() if name not in passed},
        from_config,
        given,
        rotary_dim=2 * shapes[tables[0]][-1] if tables else None,
    )
    return buffers.checked(plan, [name for name in masks if 0 not in shapes[name]], tables, called)


def plan_of(
    table: linear_layers.Table,
    shapes: Shapes,
    from_config: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    rotary_dim: int | None = None,
    of: str = "a checkpoint with GPT-2's names",
) -> ImportPlan:
    """Work out a decoder of linear layers whose shapes tell most of its config.

    Args:
        table: Translates the names of the weights.
        shapes: The shape of each, by its own name.
        from_config: Fields of a `DecoderConfig` that the file says.
        given: Those that the caller says.
        rotary_dim: The width that is rotated, where a rotary table shows it.
        of: A text, what the weights are called where something is asked for.

    Raises:
        RunFileError: As of `plan_import`.
    """
    inner = {ours: shapes[name] for name, ours in table.ours(shapes).items()}
    if not any(".ln1." in name or ".ln2." in name or name.startswith("ln_final.") for name in inner):
        # Norms without weights, or none: which is asked for.
        from_config = {name: x for name, x in from_config.items() if name != "normalization_type"}
    by_shapes = linear_layers.from_shapes(inner, table.theirs)
    fields = config_fields.agree(by_shapes, from_config, layout.BY_SHAPES)
    if rotary_dim is not None:
        fields |= {"positional_embedding_type": "rotary", "rotary_dim": rotary_dim}
    fields = config_fields.agree(fields, given, "in the file")
    if "pos_embed.weight" in inner:
        fields.setdefault("positional_embedding_type", "standard")
    needed = ["n_heads", "positional_embedding_type", "n_ctx", "normalization_type"]
    if "pos_embed.weight" not in inner and "positional_embedding_type" not in fields:
        of = f"{of}, without {table.theirs('pos_embed.weight')},"
    config_fields.require(fields, [*needed, *config_fields.needed_parts(fields)], of)
    if fields["attn_only"]:
        fields = {name: value for name, value in fields.items() if name not in ("act_fn", "d_mlp")}
    width, transposed = _width(inner, fields["d_model"], table.theirs)
    fields["d_head"] = config_fields.head_size(fields["n_heads"], width, f"d_model {width}")
    tied = "unembed.weight" not in inner
    may_tie = fields.pop("tied", None)
    if tied and may_tie is False:
        name = table.theirs("unembed.weight")
        raise RunFileError(f"it has no {name}, though its config says that it is not tied")
    config = config_fields.make_config({**fields, "tied": tied})
    assumed = config_fields.assumptions(config, fields)
    if tied and may_tie is None:
        assumed["tied"] = True
    if config.normalization_type == "LN" and from_config.get("normalization_type") and LN_BIAS not in inner:
        assumed["normalization_type"] = "LN"  # no weight tells it from an RMS norm
    return linear_layers.plan(
        shapes,
        config,
        table=table,
        transposed=transposed,
        assumed=assumed,
        may_tie=may_tie is not False,
        norms_may_lack_bias=True,
    )


def _width(shapes: Shapes, d_model: int, called: Called) -> tuple[int, bool]:
    """Returns the width of all heads' queries, and whether layers lie as torch's do; GPT-2's do not."""
    is_fused = "blocks.0.attn.q.weight" not in shapes
    name = f"blocks.0.attn.{'qkv' if is_fused else 'q'}.weight"
    rows, columns = layout.shape_of(shapes, name, 2, called)
    wide = rows if columns == d_model else columns
    if is_fused and wide % 3:
        raise RunFileError(f"{called(name)} has shape {[rows, columns]}, expected queries, keys and values")
    return wide // 3 if is_fused else rows, columns == d_model
