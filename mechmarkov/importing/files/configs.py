"""Settings of a model as people save them next to its weights, whoever named them.

Some change what a model computes and leave no trace in its weights. One of these that nobody explains is
refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mechmarkov.importing import config_fields
from mechmarkov.safe import foreign_file
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import NAME_CHARACTERS, printable, shown

CONFIGS = (
    "model_args", "cfg", "model_config", "gpt_config", "config", "args", "hparams", "hyper_parameters",
    "hyperparameters", "config.json",
)  # fmt: skip
STRICT = ("model_args", "cfg")  # written by known code: every entry counts
NESTED = (
    "model", "model_args", "model_config", "gpt", "transformer", "network", "net", "architecture", "arch",
)  # fmt: skip
# Of a HookedTransformerConfig, whose every field counts; a dict with fewer is somebody's own.
LENS_FIELDS = {"n_layers", "d_model", "n_ctx", "d_head"}
# Settings of a training, of no interest here.
TRAINING = {
    "out_dir", "eval_interval", "log_interval", "eval_iters", "eval_only", "always_save_checkpoint",
    "init_from", "wandb_log", "wandb_project", "wandb_run_name", "dataset", "gradient_accumulation_steps",
    "batch_size", "learning_rate", "max_iters", "weight_decay", "beta1", "beta2", "grad_clip", "decay_lr",
    "warmup_iters", "lr_decay_iters", "min_lr", "backend", "device", "dtype", "compile", "dropout",
    "seed", "lr", "epochs", "optimizer", "bias",
}  # fmt: skip


def configs_of(around: Sequence[Mapping[Any, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the settings that lie around a model in its file, by what each dict of them is called.

    Args:
        around: The dicts that its weights lie in, from inside out.

    Raises:
        RunFileError: One of known code holds anything but plain values; it is named.

    Example:
        >>> configs_of([{"model": {}, "model_args": {"n_layer": 2}, "args": {"gpt": {"rope": False}}}])
        {'model_args': {'n_layer': 2}, 'args': {'gpt': {'rope': False}}, 'args.gpt': {'rope': False}}
    """
    configs: dict[str, dict[str, Any]] = {}
    for one in around:
        for name in CONFIGS:
            value = one.get(name)
            if name in configs or value is None or (name not in STRICT and type(value) is not dict):
                continue
            configs[name] = foreign_file.plain_config(value, name, is_loose=name not in STRICT)
            for inner in NESTED:
                if type(configs[name].get(inner)) is dict:
                    configs[f"{name}.{inner}"] = configs[name][inner]
    return configs


# Our field that a setting may mean, by what people call it; None where a HookedDecoder has none.
MEANINGS: dict[str, str | None] = {
    **dict.fromkeys(
        ("window", "window_size", "sliding_window", "attention_window", "attn_window", "local_window",
         "window_length", "memory", "block_window"), "window",
    ),
    **dict.fromkeys(
        ("rope", "use_rope", "rotary", "use_rotary", "rotary_emb", "use_rotary_emb", "alibi", "use_alibi",
         "pos_enc", "pos_emb", "pos_embd", "position_encoding", "positional_encoding", "positional_embedding",
         "position_embedding_type", "position_embedding", "relative", "rpe", "use_rpe", "nope", "sin_cos",
         "alibi_pos_bias", "rel_pos_bias", "use_rel_pos_bias", "relative_position_bias",
         "use_relative_position_bias", "relative_bias", "pos_bias"),
        "positional_embedding_type",
    ),
    **dict.fromkeys(
        ("scale_attn", "scale_attention", "attn_scale", "attention_scale", "scale_attn_weights", "qk_scale",
         "no_sqrtd", "mup", "use_mup"), "attn_scale",
    ),
    **dict.fromkeys(
        ("softcap", "soft_cap", "attn_softcap", "attn_soft_cap", "logit_softcap", "logits_softcap",
         "logits_soft_cap", "attn_logit_softcapping", "final_logit_softcapping", "softcapping",
         "attn_scores_soft_cap", "output_logits_soft_cap"), None,
    ),
    **dict.fromkeys(
        ("parallel", "parallel_block", "parallel_blocks", "parallel_residual", "use_parallel_residual",
         "shared_attention_norm"), "parallel_attn_mlp",
    ),
    **dict.fromkeys(
        ("norm", "norm_type", "norm_class_name", "normalization", "no_norm", "rmsnorm", "use_rmsnorm"),
        "normalization_type",
    ),
    **dict.fromkeys(("post_norm", "postnorm", "pre_norm", "prenorm", "post_ln", "pre_ln"), "norm_first"),
    **dict.fromkeys(
        ("use_final_norm", "has_final_norm", "no_final_norm", "last_norm", "final_ln", "final_layernorm",
         "final_layer_norm"), "final_norm",
    ),
    **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "rope_scaling", "window_pattern"), None),
    **dict.fromkeys(("qk_norm", "use_qk_norm", "qk_layernorm"), "use_qk_norm"),
    **dict.fromkeys(
        ("n_kv_head", "n_kv_heads", "n_query_groups", "num_key_value_heads"), "n_key_value_heads",
    ),
}  # fmt: skip
# The value of our field that a setting's name says where it is on.
PLAINLY = {
    **dict.fromkeys(("alibi", "use_alibi", "alibi_pos_bias"), "alibi"),
    **dict.fromkeys(("rel_pos_bias", "use_rel_pos_bias", "relative_bias"), "relative_bias"),
}
# Those whose meaning is plain.
NUMBERS = {
    **dict.fromkeys(
        ("eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "ln_eps"),
        "eps",
    ),
    **dict.fromkeys(("rope_theta", "rope_base", "rope_base_freq", "rotary_base"), "rotary_base"),
}
# Where norms stand, by the names of torch and of ours, which mean that with either value.
PLACES = ("norm_first", "final_norm")
# An activation by its name; another one is asked about.
ACTIVATION = (
    "act_fn", "act", "activation", "activation_fn", "activation_function", "activation_type", "hidden_act",
    "hidden_activation", "mlp_activation", "nonlinearity", "act_func", "act_name",
)  # fmt: skip
ACTIVATIONS = {
    **{name: name for name in ("gelu", "gelu_new", "relu", "silu")},
    **dict.fromkeys(("gelu_tanh", "gelu_pytorch_tanh", "gelu_approx", "newgelu", "new_gelu"), "gelu_new"),
    "swish": "silu",
}
# What says that such a setting is at its usual value, by its field.
USUAL: dict[str | None, tuple[Any, ...]] = {
    None: (0, -1, "L", {}, {"rope_type": "default"}, {"type": "default"}),
    "positional_embedding_type": ("learned", "learnt", "absolute", "standard", "wpe"),
    "normalization_type": ("LN", "LayerNorm", "layernorm", "layer_norm", "ln"),
}
USUALLY_ON = {
    "pre_norm", "prenorm", "pre_ln", "scale_attn", "scale_attn_weights", "scale_attention", "use_final_norm",
    "has_final_norm", "last_norm", "final_ln", "final_layernorm", "final_layer_norm",
}  # fmt: skip


def check_settings(config: Mapping[str, Any], where: str, given: Mapping[str, Any]) -> None:
    """Refuse a setting that changes what a model computes, that no weight shows, and that nobody explained.

    Args:
        config: Somebody's own settings.
        where: What the file calls them.
        given: Fields of a `DecoderConfig` that the caller gives: what they say counts.

    Raises:
        RunFileError: Naming the setting, and the field that would say what it means.

    Example:
        >>> check_settings({"window_size": 4}, "args", {"window": 3})
        >>> check_settings({"window_size": 4}, "args", {})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: args: window_size is 4, which no weight shows: say what ...
    """
    for name in ACTIVATION:
        value = config.get(name)
        if value is not None and "act_fn" not in given and not activation({name: value}):
            raise RunFileError(
                f"{where}: {name} is {shown(value)}, which no weight shows: say what it means with "
                f"--set act_fn={config_fields.EXAMPLES['act_fn']}"
            )
    for name, value in config.items():
        if name not in MEANINGS or _is_usual(name, value, config):
            continue
        field, setting = MEANINGS[name], f"{where}: {printable(name, NAME_CHARACTERS)} is {shown(value)}"
        if field is None:
            raise RunFileError(f"{setting}: a HookedDecoder cannot express it")
        fields = {field, "use_attn_scale"} if field == "attn_scale" else {field}
        example = PLAINLY.get(name, config_fields.EXAMPLES.get(field, "VALUE"))
        if field == "window" and type(value) is int and value > 1:  # codes differ in whether a query counts
            example = (
                f"{value} if a query sees itself and {value} tokens before it, {value - 1} if {value} in all"
            )
        if not fields & set(given):
            raise RunFileError(
                f"{setting}, which no weight shows: say what it means with --set {field}={example}"
            )


def _is_usual(name: str, value: Any, config: Mapping[str, Any]) -> bool:
    field = MEANINGS[name]
    if field == "n_key_value_heads" and value in (config.get("n_head"), config.get("n_heads")):
        return True
    if name in USUALLY_ON:
        return value is True or value is None
    negative = field == "window" and type(value) in (int, float) and value < 0
    same = any(type(value) is type(usual) and value == usual for usual in USUAL.get(field, ()))
    return value is None or value is False or negative or same or (field is None and value == 0.0)


def numbers(config: Mapping[str, Any]) -> dict[str, float]:
    """Returns the fields of a `DecoderConfig` that settings say by a plain number, whatever they call them.

    Example:
        >>> numbers({"layer_norm_epsilon": 1e-6, "rope_theta": 500, "lr": 0.1})
        {'eps': 1e-06, 'rotary_base': 500.0}
    """
    given = {NUMBERS[name]: value for name, value in config.items() if name in NUMBERS}
    return {name: float(value) for name, value in given.items() if type(value) in (int, float)}


def places(config: Mapping[str, Any]) -> dict[str, bool]:
    """Returns `norm_first` and `final_norm`, where settings say them by these names.

    Example:
        >>> places({"norm_first": False, "final_norm": None})
        {'norm_first': False}
    """
    return {name: config[name] for name in PLACES if type(config.get(name)) is bool}


def activation(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns `act_fn`, where a setting says it by the name of an activation; else nothing.

    Example:
        >>> activation({"hidden_act": "swish"}), activation({"hidden_act": "mish"})
        ({'act_fn': 'silu'}, {})
    """
    names = (config.get(name) for name in ACTIVATION)
    name = next((ACTIVATIONS.get(value.lower()) for value in names if type(value) is str), None)
    return {} if name is None else {"act_fn": name}


def unread(configs: Mapping[str, Mapping[str, Any]], known: Iterable[str]) -> list[str]:
    """Returns the settings of a file that nothing reads, each with the dict that it is in.

    Args:
        configs: The settings of `configs_of`; those of known code are checked and so left out.
        known: Names that the layout of the weights reads.

    Example:
        >>> unread({"args": {"n_layer": 2, "lr": 0.1, "beta": 3}}, ["n_layer"])
        ['args.beta']
    """
    read = {*known, *MEANINGS, *NUMBERS, *PLACES, *ACTIVATION, *TRAINING}
    return [
        printable(f"{where}.{name}", NAME_CHARACTERS)
        for where, config in configs.items()
        for name in config
        if name not in read and where not in STRICT
    ]
