"""Live models of other programs, converted to a HookedDecoder.

Every conversion is checked: the same tokens go through both models, and their logits must agree
(`mechmarkov.importing.live.difference`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mechmarkov.importing import gpt2, hooked_transformer, hugging_face, layout, mamba, transformer_bridge
from mechmarkov.importing.lens_config import LOCAL, NEUTRAL, config_from_lens
from mechmarkov.importing.live import measured
from mechmarkov.importing.live.inside import Inside, plain_name, weights_of
from mechmarkov.importing.live.settings import configs, n_heads
from mechmarkov.importing.live.untouched import our_own_numbers
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.decoder import is_derived
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import listed, quoted

TRANSFORMERS, LENS = "transformers.models.", "transformer_lens."
EXPECTED = (
    "expected a HookedTransformer, a TransformerBridge, a model with GPT-2's names such as nanoGPT's, one of "
    "transformers', or a module with HookedTransformer's cfg, parameter names and logits"
)


@dataclass(frozen=True)
class Converted:
    """A live model as a decoder.

    Attributes:
        decoder: With copies of its weights, in float32 on the CPU.
        advice: The end of a sentence about logits that differ: which settings were not said by the model.
    """

    decoder: HookedDecoder
    advice: str = ""


def converted(live: Inside, n_ctx: int | None = None, given: Mapping[str, Any] | None = None) -> Converted:
    """A single HookedDecoder with the weights of a live model.

    The buffers that follow from the config (masks, rotary tables) are left out.

    Args:
        live: The model.
        n_ctx: The length of the context that it was trained on, where its config has a longer one.
        given: Fields of the config that the model does not say.

    Raises:
        ValueError: For a stack, a config that cannot be expressed, and parameters that are missing, unknown
            or of another shape.
    """
    given = dict(given or {})
    if given.get("n_ctx") is not None and n_ctx is not None and given["n_ctx"] != n_ctx:
        raise ValueError(f"n_ctx is {n_ctx}, but given has {given['n_ctx']}: expected one of the two")
    n_ctx = given.pop("n_ctx", n_ctx)
    config, weights, advice = _found(live, n_ctx, given)
    with our_own_numbers():
        decoder = HookedDecoder(config)
        weights = {name: value for name, value in weights.items() if not is_derived(name, config)}
        _check(live.kind(), weights, decoder.state_dict())
        decoder.load_state_dict(weights)
        return Converted(decoder if n_ctx is None else _shortened(decoder, n_ctx), advice)


def _found(
    live: Inside, n_ctx: int | None, given: dict[str, Any]
) -> tuple[DecoderConfig, Mapping[str, Tensor], str]:
    """The config of a live model, its weights with HookedTransformer's names, and advice."""
    model, state = live.model, weights_of(live.model)
    cfg = getattr(model, "cfg", None)
    if isinstance(model, HookedDecoder):
        if model.n_models is not None:
            raise ValueError(f"the model is a stack of {model.n_models}: import a member, stack[i]")
        layout.agree(model.config.model_dump(), given, "in its config")
        return model.config, state, ""
    if _is_of(model, TRANSFORMERS) or hugging_face.recognises(state) or mamba.recognises(state):
        return *_of_transformers(live, state, n_ctx, given), ""
    if gpt2.recognises(state):
        return _with_gpt2_names(live, state, given)
    if cfg is not None and _is_of(cfg, LENS):
        layout.agree(vars(cfg), given, "in its cfg")
        if transformer_bridge.recognises(state):
            return *transformer_bridge.states_of(state, vars(cfg)), ""
        return config_from_lens(cfg), state, ""
    if hooked_transformer.recognises(state):
        said = next(configs(live), {})
        known = {name: said[name] for name in {*DecoderConfig.model_fields, *LOCAL, *NEUTRAL} & {*said}}
        return config_from_lens(layout.agree(known, given, "in its cfg")), state, ""
    names = listed([*map(quoted, list(state)[:3]), *["others"] * (len(state) > 3)])
    raise ValueError(f"the weights of {live.kind()} are called {names}: {EXPECTED}")


def _is_of(thing: object, package: str) -> bool:
    """Whether a class of a package stands behind it, which may have been derived from."""
    return any(f"{kind.__module__}.".startswith(package) for kind in type(thing).__mro__)


def _of_transformers(
    live: Inside, state: Mapping[str, Tensor], n_ctx: int | None, given: dict[str, Any]
) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """The config and weights of a decoder of transformers."""
    settings = next(configs(live), {})
    if settings.get("model_type") in mamba.MIXERS and n_ctx is not None:
        given = {**given, "n_ctx": n_ctx}  # a Mamba has no context to be shortened
    weights = _in_float32(state)
    plan = hugging_face.plan_import(_shapes(weights), settings, given, "config.")
    return plan.of_live_model(weights)


def _with_gpt2_names(
    live: Inside, state: Mapping[str, Tensor], given: dict[str, Any]
) -> tuple[DecoderConfig, dict[str, Tensor], str]:
    """The config and weights of somebody's GPT. Shapes tell its sizes, its modules what they compute."""
    weights = _in_float32(state)
    shapes = _shapes(weights)
    outer = "transformer." if "transformer.wte.weight" in shapes else ""
    modules = {plain_name(name): module for name, module in live.model.named_modules()}
    norms = [module for name, module in modules.items() if name.endswith(("ln_1", "ln_2", "ln_f"))]
    fields = {"n_heads": given.get("n_heads") or _one_number_of_heads(live), **_norms(norms, given), **given}
    guess = {"act_fn": "relu", **fields}
    plan = gpt2.plan_import(shapes, {}, guess)  # names and shapes first: what is measured relies on these
    if "act_fn" not in fields:
        mlps = [f"{outer}h.{layer}.mlp." for layer in range(plan.config.n_layers)]
        layers = [(modules[f"{mlp}c_fc"], modules[f"{mlp}c_proj"]) for mlp in mlps]
        fields["act_fn"] = measured.act_fn(live, layers, plan.config.n_ctx)
        plan = gpt2.plan_import(shapes, {}, fields)
    assumed = {name: value for name, value in {**layout.ASSUMED, **fields}.items() if name in layout.ASSUMED}
    said = ", ".join(f"{name} = {value}" for name, value in assumed.items())
    advice = f'; if {said} is not what it computes, say so: given={{"window": …}}'
    return *plan.of_live_model(weights), advice


def _one_number_of_heads(live: Inside) -> int:
    found = n_heads(live)
    if len(found) > 1:
        raise RunFileError(f"its layers have {listed([*map(str, found)])} heads, expected one number")
    if not found:
        raise RunFileError(f'{live.kind()} does not say how many heads it has: give given={{"n_heads": 2}}')
    return found[0]


def _norms(norms: list[nn.Module], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's norms are, as far as they show it."""
    names = ("eps", "variance_epsilon")
    eps = {
        getattr(norm, name) for norm in norms for name in names if type(getattr(norm, name, None)) is float
    }
    if len(eps) > 1:
        raise RunFileError(f"its norms have an eps of {listed([*map(str, sorted(eps))])}, expected one")
    fields: dict[str, Any] = {"eps": eps.pop()} if eps else {}
    if "normalization_type" in given or not norms:
        return fields
    kinds = {measured.normalization_type(norm) for norm in norms}
    if len(kinds) > 1 or None in kinds:
        raise RunFileError(
            'its norms are neither all LN nor all RMS: give given={"normalization_type": "LN"}'
        )
    return {**fields, "normalization_type": kinds.pop()}


def _in_float32(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().float() for name, value in state.items()}


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}


def _check(kind: str, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse weights that are missing, unknown, of another shape, or no finite numbers."""
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
