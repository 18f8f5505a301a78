"""Live models of other programs, converted to a HookedDecoder.

Every conversion is checked: the same tokens go through both models, and their logits must agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechmarkov.importing import gpt2, hugging_face, mamba, transformer_bridge
from mechmarkov.importing.lens_config import config_from_lens
from mechmarkov.importing.names import plan as named
from mechmarkov.importing.names.table import Names
from mechmarkov.importing.names.weights import nothing_fits
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.decoder import is_derived
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import quoted, shown

MAX_LOGIT_DIFFERENCE = 1e-4  # times max(1, |logit|)


def decoder_from_model(
    model: nn.Module,
    n_ctx: int | None = None,
    names: Names | None = None,
    given: Mapping[str, Any] | None = None,
) -> HookedDecoder:
    """A single HookedDecoder with the weights of a module that has `cfg` and HookedTransformer's names.

    The buffers that follow from the config (masks, rotary tables) are left out; weights become float32 on
    the CPU.

    `n_ctx` is the length of the context that it was trained on, where its config has a longer one. `names`
    are those of a model with names of its own, and `given` the fields of its config that shapes do not tell.

    Raises:
        ValueError: For a stack, a config that cannot be expressed, and parameters that are missing, unknown
            or of another shape.
    """
    model = unwrapped(model)
    kind = type(model).__name__
    state: Mapping[str, Tensor] = model.state_dict()
    if names is not None:
        config, state = named.of_live_model(model, names, given)
    elif given is not None:
        raise ValueError("given is for a model with names of its own: expected names= too")
    elif isinstance(model, HookedDecoder):
        if model.n_models is not None:
            raise ValueError(f"the model is a stack of {model.n_models}: import a member, stack[i]")
        config = model.config
    elif hasattr(model, "config") and any(x.recognises(state) for x in (gpt2, hugging_face, mamba)):
        config, state = _states_of(model, state, n_ctx)
    elif not hasattr(model, "cfg") and hasattr(model, "config") and hasattr(model.config, "model_type"):
        raise hugging_face.unknown(model.config.model_type)
    elif not hasattr(model, "cfg"):
        raise nothing_fits(state, f"the weights of {kind} are called")
    elif transformer_bridge.recognises(state):
        config, state = transformer_bridge.states_of(state, vars(model.cfg))
    else:
        config = config_from_lens(model.cfg)
    decoder = HookedDecoder(config)
    weights = {name: value for name, value in state.items() if not is_derived(name, config)}
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
    return decoder if n_ctx is None else _shortened(decoder, n_ctx)


def _shortened(decoder: HookedDecoder, n_ctx: int) -> HookedDecoder:
    """The same model for shorter sequences: what it computes on them stays."""
    if type(n_ctx) is not int or not 1 <= n_ctx <= decoder.config.n_ctx:
        raise ValueError(f"n_ctx is {n_ctx!r}, expected at most the model's {decoder.config.n_ctx}")
    short = HookedDecoder(decoder.config.model_copy(update={"n_ctx": n_ctx}))
    weights = decoder.state_dict()
    short.load_state_dict(
        {name: weights[name][tuple(map(slice, value.shape))] for name, value in short.state_dict().items()}
    )
    return short


def _states_of(
    model: nn.Module, weights: Mapping[str, Tensor], n_ctx: int | None
) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """The config and HookedTransformer's weights of nanoGPT's GPT or of a decoder of transformers."""
    config: Any = model.config
    weights = {name: value.detach().cpu().float() for name, value in weights.items()}
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    settings: dict[str, Any] = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    if not gpt2.recognises(weights):
        # A Mamba has no context to be shortened.
        given = {"n_ctx": n_ctx} if settings.get("model_type") in mamba.MIXERS and n_ctx is not None else {}
        plan = hugging_face.plan_import(shapes, settings, given)
    elif hasattr(config, "to_dict"):
        plan = gpt2.plan_import(shapes, gpt2.fields_of_gpt2(settings), {})
    else:
        fields = gpt2.fields_of_nanogpt(settings, strict=False) | {"act_fn": _activation(model)}
        plan = gpt2.plan_import(shapes, fields, {})
    return plan.of_live_model(weights)


def _activation(model: nn.Module) -> str:
    """The one activation of the blocks' modules: nanoGPT's config does not say it."""
    found = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.GELU):
            found.add("gelu" if module.approximate == "none" else "gelu_new")
        elif isinstance(module, nn.ReLU):
            found.add("relu")
        elif ".mlp." in name and not (list(module.children()) or list(module.parameters())):
            found |= set() if isinstance(module, nn.Dropout) else {type(module).__name__}
    if len(found) != 1 or not found <= {"gelu", "gelu_new", "relu"}:
        raise RunFileError(
            f"the activations of its blocks are {sorted(found)}, expected one nn.GELU or nn.ReLU: "
            "save a checkpoint and import it with --set act_fn=…"
        )
    return found.pop()


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what `torch.compile` and training on several devices put around it.

    Raises:
        ValueError: It is not a module, or one without parameters or weights.
    """
    if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
        raise ValueError(f"model is {shown(model)}, expected a torch module with parameters")
    if next(model.parameters()).is_meta:
        raise ValueError("model is on the device meta, expected one with weights")
    inner = getattr(model, "_orig_mod", model)
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    return unwrapped(inner.module) if isinstance(inner, parallel) else inner


@dataclass(frozen=True)
class Difference:
    """How far the logits of two models are apart.

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


def check_difference(found: Difference, who: str, advice: str = "") -> None:
    """Refuse logits that differ by more than rounding.

    Raises:
        RunFileError: With both numbers; `who` begins the sentence, `advice` ends it.
    """
    if not found.scaled <= MAX_LOGIT_DIFFERENCE:
        raise RunFileError(
            f"{who} logits differ by up to {found.largest:.3g}, "
            f"expected at most {MAX_LOGIT_DIFFERENCE} · max(1, |logit|){advice}"
        )


@torch.no_grad()
def logit_difference(
    model: nn.Module, decoder: HookedDecoder, tokens: Int[Tensor, "batch position"]
) -> Difference:
    """The difference of two models' logits on the same tokens, neither of them in training mode."""
    device = next(model.parameters()).device
    tokens = tokens.contiguous()  # a model's own loss may flatten its targets with `view`, as nanoGPT's does
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
    """A model's output at every position: a tensor, the first of a tuple, or an attribute `logits`."""
    output = model(tokens)
    if isinstance(output, tuple):  # without targets, nanoGPT returns the last position only
        output = model(tokens, tokens)[0]
    return getattr(output, "logits", output)
