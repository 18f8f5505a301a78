"""GPT-2's names: nanoGPT's checkpoints (linear layers) and transformers' GPT-2 (transposed, Conv1D)."""

from collections.abc import Container, Mapping
from typing import Any

from torch import Tensor

from mechmarkov.importing.layout import (
    ImportPlan,
    Shapes,
    agree,
    block_states,
    count_layers,
    expect_shape,
    make_config,
    oriented,
    refuse_unknown,
    require,
    shape_of,
)
from mechmarkov.models import DecoderConfig
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import NAME_CHARACTERS, printable, shown

# nanoGPT's model_args by our names; dropout is off where a model is read.
NANOGPT = {
    "n_layer": "n_layers",
    "n_head": "n_heads",
    "n_embd": "d_model",
    "block_size": "n_ctx",
    "vocab_size": "d_vocab",
}
NANOGPT_HARMLESS = {"dropout", "bias"}
GPT2 = {
    "n_layer": "n_layers",
    "n_head": "n_heads",
    "n_embd": "d_model",
    "n_positions": "n_ctx",
    "vocab_size": "d_vocab",
    "n_inner": "d_mlp",
    "layer_norm_epsilon": "eps",
    "scale_attn_weights": "use_attn_scale",
}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "relu": "relu"}
# Fields of GPT2Config that do not change what a loaded model computes, or only on its way to text.
GPT2_HARMLESS = {
    "activation_function", "architectures", "attn_pdrop", "bos_token_id", "chunk_size_feed_forward", "dtype",
    "embd_pdrop", "eos_token_id", "gradient_checkpointing", "id2label", "initializer_range", "label2id",
    "model_type", "n_ctx", "pad_token_id", "reorder_and_upcast_attn", "resid_pdrop", "return_dict",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "task_specific_params", "tie_word_embeddings", "torch_dtype", "transformers_version",
    "use_cache", "_name_or_path",
}  # fmt: skip


def recognises(names: Container[str]) -> bool:
    """Whether these are GPT-2's names, with its outer `transformer.` or without."""
    return "transformer.wte.weight" in names or "wte.weight" in names


def fields_of_gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` of transformers in our words.

    Raises:
        RunFileError: Naming a field that GPT-2 lacks or that a `HookedDecoder` cannot express.
    """
    if config.get("model_type") != "gpt2":
        kind = shown(config.get("model_type"))
        raise RunFileError(f"config.json: model_type is {kind}, expected 'gpt2'")
    for name, value in config.items():
        if name not in GPT2 and name not in GPT2_HARMLESS and value not in (None, False):
            raise RunFileError(
                f"config.json: {printable(name, NAME_CHARACTERS)} is {shown(value)}: "
                "a HookedDecoder cannot express it"
            )
    fields = {ours: config[theirs] for theirs, ours in GPT2.items() if config.get(theirs) is not None}
    activation = config.get("activation_function", "gelu_new")
    if type(activation) is not str or activation not in ACTIVATIONS:
        expected = ", ".join(ACTIVATIONS)
        raise RunFileError(f"config.json: activation_function is {shown(activation)}, expected {expected}")
    tied = {"tied": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    return {
        "eps": 1e-5, "use_attn_scale": True, **fields, **tied,
        "act_fn": ACTIVATIONS[activation], "normalization_type": "LN",
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
    names = {name: name.removeprefix(outer) for name in shapes}
    inner = {short: shapes[name] for name, short in names.items()}
    fields = agree(_from_shapes(inner), {**from_config}, "by the shapes")
    fields = agree(fields, given, "in the file")
    require(fields, ("n_heads", "act_fn", "normalization_type"), "a checkpoint with GPT-2's names")
    assumed = {name: value for name, value in (("eps", 1e-5),) if name not in fields}
    if type(fields["n_heads"]) is not int or fields["n_heads"] < 1 or fields["d_model"] % fields["n_heads"]:
        raise RunFileError(
            f"n_heads is {shown(fields['n_heads'])}, expected a divisor of d_model {fields['d_model']}"
        )
    fields["d_head"] = fields["d_model"] // fields["n_heads"]
    may_tie = fields.pop("tied", None) is not False
    if not may_tie and "lm_head.weight" not in inner:
        raise RunFileError("it has no lm_head.weight, though its config says that it is not tied")
    tied = "lm_head.weight" not in inner
    config = make_config({**fields, **assumed, "tied": tied})
    transposed = inner["h.0.attn.c_attn.weight"] == (3 * config.d_model, config.d_model)
    wanted = _wanted(config, inner, transposed)
    backwards = {short: name for name, short in names.items()}

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return _states({names[name]: value for name, value in weights.items()}, config, transposed)

    return ImportPlan(config, tuple(backwards[name] for name in wanted), states, assumed, may_tie)


def _from_shapes(shapes: Shapes) -> dict[str, Any]:
    d_vocab, d_model = shape_of(shapes, "wte.weight", 2)
    n_ctx, _ = shape_of(shapes, "wpe.weight", 2)
    fields = {
        "n_layers": count_layers(shapes, "h."),
        "d_model": d_model,
        "n_ctx": n_ctx,
        "d_vocab": d_vocab,
        "d_mlp": _other(shape_of(shapes, "h.0.mlp.c_fc.weight", 2), d_model),
        "attn_only": False,
        "positional_embedding_type": "standard",
    }
    shape_of(shapes, "h.0.attn.c_attn.weight", 2)
    if "lm_head.weight" in shapes:
        fields["d_vocab_out"] = shape_of(shapes, "lm_head.weight", 2)[0]
    if "h.0.ln_1.bias" in shapes:
        fields["normalization_type"] = "LN"
    return fields


def _other(shape: tuple[int, ...], d_model: int) -> int:
    """The axis of an MLP's first layer that is not the model's width, whichever way it lies."""
    return shape[0] if shape[1] == d_model else shape[1]


def _wanted(config: DecoderConfig, shapes: Shapes, transposed: bool) -> list[str]:
    """The weights to read, after comparing every shape with the config."""
    d, hidden = config.d_model, config.d_mlp or 0
    need: dict[str, tuple[int, ...]] = {"wte.weight": (config.d_vocab, d), "wpe.weight": (config.n_ctx, d)}
    may: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (config.d_vocab_out, d),
        "lm_head.bias": (config.d_vocab_out,),
    }
    ignored = set()
    norms = ["ln_f"]
    for layer in range(config.n_layers):
        linear = {
            "attn.c_attn": (d, 3 * d),
            "attn.c_proj": (d, d),
            "mlp.c_fc": (d, hidden),
            "mlp.c_proj": (hidden, d),
        }
        for name, shape in linear.items():
            need[f"h.{layer}.{name}.weight"] = oriented(transposed, *shape)
            may[f"h.{layer}.{name}.bias"] = (shape[1],)
        ignored |= {f"h.{layer}.attn.bias", f"h.{layer}.attn.masked_bias"}  # the causal mask
        norms += [f"h.{layer}.ln_1", f"h.{layer}.ln_2"]
    for norm in norms:
        if config.normalization_type in ("LN", "RMS"):
            need[f"{norm}.weight"] = (d,)
        if config.normalization_type == "LN":
            may[f"{norm}.bias"] = (d,)
    refuse_unknown(shapes, {*need, *may, *ignored})
    for name, expected in (need | may).items():
        if name in need or name in shapes:
            expect_shape(shapes, name, expected)
    return [*need, *(name for name in may if name in shapes)]


def _states(weights: dict[str, Tensor], config: DecoderConfig, transposed: bool) -> dict[str, Tensor]:
    """HookedTransformer's tensors; a bias that is not there is zero."""

    def linear(name: str) -> tuple[Tensor, Tensor]:
        weight = weights[f"{name}.weight"]
        weight = weight.mT if transposed else weight
        return weight, weights.get(f"{name}.bias", weight.new_zeros(weight.shape[1]))

    def norm(theirs: str, ours: str) -> dict[str, Tensor]:
        if f"{theirs}.weight" not in weights:
            return {}
        w = {f"{ours}.w": weights[f"{theirs}.weight"]}
        if config.normalization_type == "LN":
            w[f"{ours}.b"] = weights.get(f"{theirs}.bias", w[f"{ours}.w"].new_zeros(config.d_model))
        return w

    states = {
        "embed.W_E": weights["wte.weight"],
        "pos_embed.W_pos": weights["wpe.weight"],
        **norm("ln_f", "ln_final"),
    }
    for layer in range(config.n_layers):
        theirs, ours = f"h.{layer}", f"blocks.{layer}"
        states |= norm(f"{theirs}.ln_1", f"{ours}.ln1") | norm(f"{theirs}.ln_2", f"{ours}.ln2")
        weight, bias = linear(f"{theirs}.attn.c_attn")
        layers = dict(zip("qkv", zip(weight.chunk(3, 1), bias.chunk(3), strict=True), strict=True))
        others = {"o": "attn.c_proj", "in": "mlp.c_fc", "out": "mlp.c_proj"}
        layers |= {name: linear(f"{theirs}.{part}") for name, part in others.items()}
        states |= block_states(layer, config, layers)
    if "lm_head.weight" in weights:
        states["unembed.W_U"] = weights["lm_head.weight"].mT
    states["unembed.b_U"] = weights.get("lm_head.bias", weights["wte.weight"].new_zeros(config.d_vocab_out))
    return states
