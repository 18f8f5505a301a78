"""GPT-2's names: nanoGPT's checkpoints (linear layers) and transformers' GPT-2 (transposed, Conv1D)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mechmarkov.importing import config_fields, layout, linear_layers
from mechmarkov.importing.files import buffers, configs
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import NAME_CHARACTERS, printable, shown

# Their names, or their beginnings, by a bridge's; `transformer.` may stand before all but the head's.
OUTER = "transformer."
TOP = {"wte": "embed", "wpe": "pos_embed", "ln_f": "ln_final", "h.": "blocks."}
INNER = {
    "lm_head": "unembed",
    "ln_1": "ln1",
    "ln_2": "ln2",
    "attn.c_attn": "attn.qkv",
    **{f"attn.c_{letter}": f"attn.{letter}" for letter in "qkv"},
    "attn.c_proj": "attn.o",
    "mlp.c_fc": "mlp.in",
    "mlp.c_proj": "mlp.out",
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
        "eps": 1e-5, "use_attn_scale": True, **fields, **tied,
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
    known = {*NANOGPT, *NANOGPT_HARMLESS, *configs.MEANINGS, *configs.NUMBERS, *configs.ACTIVATION}
    for name, value in args.items():
        if strict and name not in known and value not in (None, False):
            raise RunFileError(
                f"model_args: {printable(name, NAME_CHARACTERS)} is {shown(value)}: nanoGPT has none; if it "
                f"changes nothing that is computed, checkpoint['model_args'].pop({name!r}) and save again"
            )
    fields = {ours: args[theirs] for theirs, ours in NANOGPT.items() if args.get(theirs) is not None}
    fields |= configs.numbers(args) | configs.activation(args)
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
    table = linear_layers.Names({**{outer + name: ours for name, ours in TOP.items()}, **INNER}, called)
    masks = [name for name in shapes if MASK.fullmatch(name.removeprefix(outer)) and len(shapes[name]) > 1]
    tables = [name for name in shapes if FREQUENCIES.fullmatch(name)]
    passed = {*masks, *tables, *(name for name in shapes if IDLE.fullmatch(name.removeprefix(outer)))}
    return plan_of(
        table.ours(name for name in shapes if name not in passed),
        table,
        shapes,
        from_config,
        given,
        masks=[name for name in masks if 0 not in shapes[name]],
        frequencies=tables,
    )


def plan_of(
    names: Mapping[str, str],
    table: linear_layers.Names,
    shapes: Shapes,
    from_config: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    masks: Sequence[str] = (),
    frequencies: Sequence[str] = (),
    of: str = "a checkpoint with GPT-2's names",
) -> ImportPlan:
    """Work out a decoder of weights that `linear_layers.Names.ours` has given a bridge's names.

    Args:
        names: A bridge's name of each weight.
        table: The table that gave them, for messages.
        shapes: The shape of each, by its own name.
        from_config: Fields of a `DecoderConfig` that the file says.
        given: Those that the caller says.
        masks: Names of masks, which must be causal, with the config's window.
        frequencies: Names of rotary tables, which must be those that the config makes.
        of: A text, what the weights are called where something is asked for.

    Raises:
        RunFileError: As of `plan_import`.
    """
    inner = {ours: shapes[name] for name, ours in names.items()}
    if not any(".ln1." in name or ".ln2." in name or name.startswith("ln_final.") for name in inner):
        # Norms without weights, or none: which is asked for.
        from_config = {name: x for name, x in from_config.items() if name != "normalization_type"}
    fields = config_fields.agree(_from_shapes(inner, table.theirs), from_config, layout.BY_SHAPES)
    if frequencies:
        fields |= {"positional_embedding_type": "rotary", "rotary_dim": 2 * shapes[frequencies[0]][-1]}
    fields = config_fields.agree(fields, given, "in the file")
    if "pos_embed.weight" in inner:
        fields.setdefault("positional_embedding_type", "standard")
    needed = ["n_heads", "positional_embedding_type", "n_ctx", "normalization_type"]
    if "pos_embed.weight" not in inner and "positional_embedding_type" not in fields:
        of = f"{of}, without {table.theirs('pos_embed.weight')},"
    config_fields.require(fields, [*needed, *config_fields.needed_parts(fields)], of)
    if fields["attn_only"]:
        fields = {name: value for name, value in fields.items() if name not in ("act_fn", "d_mlp")}
    first = "qkv" if "blocks.0.attn.qkv.weight" in inner else "q"
    _, columns = layout.shape_of(inner, f"blocks.0.attn.{first}.weight", 2, table.theirs)
    transposed = columns == fields["d_model"]  # torch's layers; GPT-2's own lie the other way
    split = linear_layers.split_shapes(inner, transposed, table.theirs)
    width = layout.shape_of(split, "blocks.0.attn.q.weight", 2, table.theirs)[0]
    fields["d_head"] = config_fields.head_size(fields["n_heads"], width, f"d_model {width}")
    tied = "unembed.weight" not in inner
    may_tie = fields.pop("tied", None)
    if tied and may_tie is False:
        name = table.theirs("unembed.weight")
        raise RunFileError(f"it has no {name}, though its config says that it is not tied")
    config = config_fields.make_config({**fields, "tied": tied})
    linear_layers.check_fused(inner, config, transposed, table.theirs)
    assumed = config_fields.assumptions(config, fields)
    if tied and may_tie is None:
        assumed["tied"] = True
    if config.normalization_type == "LN" and from_config.get("normalization_type") and LN_BIAS not in inner:
        assumed["normalization_type"] = "LN"  # no weight tells it from an RMS norm
    plan = linear_layers.plan(
        split,
        config,
        transposed=transposed,
        assumed=assumed,
        may_tie=may_tie is not False,
        norms_may_lack_bias=True,
        called=table.theirs,
    )
    plan = linear_layers.by_other_names(
        plan, names, lambda value: (value if transposed else value.t()).chunk(3)
    )
    return buffers.checked(plan, masks, frequencies, table.called)


def _from_shapes(shapes: Shapes, called: Called) -> dict[str, Any]:
    fields = linear_layers.from_shapes(shapes, called)
    if not fields["attn_only"]:
        rows, columns = layout.shape_of(shapes, "blocks.0.mlp.in.weight", 2, called)
        fields["d_mlp"] = rows if columns == fields["d_model"] else columns  # whichever way the layer lies
    if LN_BIAS in shapes:
        fields["normalization_type"] = "LN"
    return fields
