"""Models that other code made, with HookedTransformer's names, as a HookedDecoder of ours.

A converted model proves itself: the same tokens go through both, and the largest logit difference decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import ValidationError
from torch import Tensor, nn

from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.decoder import MASK_BUFFERS, ROTARY_BUFFERS
from mechmarkov.runs.plain import RunFileError, one_line, one_safe_line, quoted

MAX_LOGIT_DIFFERENCE = 1e-4  # times max(1, |logit|)
# Fields of HookedTransformerConfig that do not change what a loaded model computes.
HARMLESS = {
    "device",
    "dtype",
    "seed",
    "n_devices",
    "n_params",
    "model_name",
    "original_architecture",
    "tokenizer_name",
    "default_prepend_bos",
    "tokenizer_prepends_bos",
    "from_checkpoint",
    "checkpoint_index",
    "checkpoint_label_type",
    "checkpoint_value",
    "init_mode",
    "init_weights",
    "trust_remote_code",
    "decoder_start_token_id",
    "tie_word_embeddings",
    "train_seq_length",
    "use_hook_tokens",
    "use_attn_result",
    "use_hook_result",
    "use_split_qkv_input",
    "use_hook_mlp_in",
    "use_attn_in",
    "ungroup_grouped_query_attention",
    "norm_topk_prob",
}
# What stands for "off" in the fields that change it, where that is not None or False.
NEUTRAL = {
    "attention_dir": "causal",
    "rotary_scaling_factor": 1.0,
    "attn_scores_soft_cap": -1.0,
    "output_logits_soft_cap": -1.0,
}
LOCAL = ("use_local_attn", "window_size", "attn_types")


def config_from_lens(cfg: Any) -> DecoderConfig:
    """A HookedTransformerConfig (or a mapping, or any object with its fields) as a `DecoderConfig`.

    Raises:
        ValueError: Naming the first field that a `HookedDecoder` cannot express, and its value.
    """
    values, defaults = _values(cfg)
    own = DecoderConfig.model_fields
    for name, value in values.items():
        if name in own or name in HARMLESS or name in LOCAL:
            continue
        neutral = NEUTRAL.get(name, defaults.get(name))
        if not _off(value, neutral):
            expected = f", expected {neutral!r}" if not _off(neutral, None) else ""
            field = one_safe_line(f"cfg.{name}")
            raise ValueError(f"{field} is {_short(value)}{expected}: a HookedDecoder cannot express it")
    known = {name: _scalar(value) for name, value in values.items() if name in own}
    if known.get("attn_only"):
        known.pop("d_mlp", None)
        known.pop("act_fn", None)
    if known.get("positional_embedding_type") != "rotary":
        known.pop("rotary_dim", None)
    if values.get("use_local_attn"):
        known["window"] = _window(values)
    try:
        return DecoderConfig.model_validate(known)
    except ValidationError as error:
        raise ValueError(one_line(error, "cfg")) from error


def decoder_from_model(model: nn.Module) -> HookedDecoder:
    """A single HookedDecoder with the weights of a module that has `cfg` and HookedTransformer's names.

    The buffers that follow from the config (masks, rotary tables) are left out; weights become float32 on
    the CPU.

    Raises:
        ValueError: For a stack, a config that cannot be expressed, and parameters that are missing, unknown
            or of another shape.
    """
    model = unwrapped(model)
    from mechmarkov.runs.foreign import bridge, live  # which themselves need `config_from_lens`

    kind = type(model).__name__
    state: Mapping[str, Tensor] = model.state_dict()
    if isinstance(model, HookedDecoder):
        if model.n_models is not None:
            raise ValueError(f"the model is a stack of {model.n_models}: import a member, stack[i]")
        config = model.config
    elif live.recognises(model, state):
        config, state = live.states_of(model, state)
    elif not hasattr(model, "cfg"):
        raise ValueError(f"{kind} has no cfg: expected a model with HookedTransformer's surface")
    elif bridge.recognises(state):
        config, state = bridge.states_of(state, vars(model.cfg))
    else:
        config = config_from_lens(model.cfg)
    decoder = HookedDecoder(config)
    derived = MASK_BUFFERS + ROTARY_BUFFERS if config.positional_embedding_type == "rotary" else MASK_BUFFERS
    weights = {name: value for name, value in state.items() if not name.endswith(derived)}
    expected = decoder.state_dict()
    for name in expected:
        if name not in weights:
            raise ValueError(f"{kind} has no parameter {name}: expected HookedTransformer's names")
    for name, value in weights.items():
        if name not in expected:
            raise ValueError(f"{kind} has a parameter {quoted(name)} that a HookedDecoder lacks")
        if value.shape != expected[name].shape:
            shape = list(expected[name].shape)
            raise ValueError(f"{name} has shape {list(value.shape)}, expected {shape} by the model's cfg")
        if not value.is_floating_point():
            raise ValueError(f"{name} is a tensor of {value.dtype}, expected floating point numbers")
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} holds NaN or infinite values")
    decoder.load_state_dict(weights)
    return decoder


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what `torch.compile` and training on several devices put around it."""
    inner = getattr(model, "_orig_mod", model)
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    return unwrapped(inner.module) if isinstance(inner, parallel) else inner


@dataclass(frozen=True)
class Difference:
    """How far two models' logits are apart.

    Attributes:
        largest: The largest absolute difference.
        scaled: The largest, each over max(1, |logit|).
    """

    largest: float
    scaled: float


def difference(logits: Float[Tensor, "*axes"], ours: Float[Tensor, "*axes"]) -> Difference:
    """The difference of two models' logits on the same tokens."""
    theirs = logits.cpu().double()
    apart = (theirs - ours.cpu().double()).abs()
    return Difference(float(apart.max()), float((apart / theirs.abs().clamp_min(1)).max()))


def check_difference(found: Difference, who: str) -> None:
    """Refuse logits that differ by more than rounding.

    Raises:
        RunFileError: With both numbers; `who` begins the sentence.
    """
    if not found.scaled <= MAX_LOGIT_DIFFERENCE:
        raise RunFileError(
            f"{who} logits differ by up to {found.largest:.3g}, "
            f"expected at most {MAX_LOGIT_DIFFERENCE} · max(1, |logit|)"
        )


@torch.no_grad()
def logit_difference(
    model: nn.Module, decoder: HookedDecoder, tokens: Int[Tensor, "batch position"]
) -> Difference:
    """The difference of two models' logits on the same tokens, neither of them in training mode."""
    device = next(model.parameters()).device
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        logits, ours = _logits(model, tokens.to(device)), decoder(tokens)
    finally:
        for module in training:
            module.training = True
    kind = type(model).__name__
    if not isinstance(logits, Tensor):
        raise ValueError(f"{kind} returns {type(logits).__name__}, expected a tensor of logits")
    if logits.shape != ours.shape:
        raise ValueError(f"{kind} returns {list(logits.shape)}, expected logits {list(ours.shape)}")
    return difference(logits, ours)


def _logits(model: nn.Module, tokens: Int[Tensor, "batch position"]) -> Any:
    """What a model answers at every position, in the ways that models of elsewhere say it."""
    answer = model(tokens)
    if isinstance(answer, tuple):  # nanoGPT answers at the last position only, unless it is given targets
        answer = model(tokens, tokens)[0]
    return getattr(answer, "logits", answer)


def _values(cfg: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a config and, where its class has them, their defaults."""
    if isinstance(cfg, Mapping):
        return dict(cfg), {}
    values = dict(vars(cfg))
    defaults = {field.name: field.default for field in fields(cfg)} if is_dataclass(cfg) else {}
    return values, defaults


def _window(values: dict[str, Any]) -> int | None:
    """HookedTransformer's local attention, where every layer has the same."""
    kinds = set(values.get("attn_types") or ["global"])
    if kinds == {"global"}:
        return None
    if kinds != {"local"}:
        raise ValueError("cfg.attn_types mixes local and global layers: a HookedDecoder cannot express it")
    # A window of w is the query and the w - 1 tokens before it.
    size = values.get("window_size")
    if type(size) is not int or size < 1:
        raise ValueError(f"cfg.window_size is {_short(size)}, expected an integer of at least 1")
    return size - 1


def _off(value: Any, neutral: Any) -> bool:
    """Whether a field is at its neutral value; None and False are one."""
    if value is None or value is False:
        return neutral is None or neutral is False
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _scalar(value: Any) -> Any:
    """A numpy number as a plain one."""
    return value.item() if hasattr(value, "item") else value


def _short(value: Any) -> str:
    return one_safe_line(repr(value))
