"""Live models of other programs, converted to a HookedDecoder.

Every conversion is checked: the same tokens go through both models, and their logits must agree
(`mechmarkov.importing.live.difference`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mechmarkov.importing import (
    config_fields,
    gpt2,
    hooked_transformer,
    hugging_face,
    layout,
    mamba,
    relative_transformer,
    transformer_bridge,
)
from mechmarkov.importing.files.configs import numbers
from mechmarkov.importing.hooked_transformer import CHANGING, LOCAL, config_from_lens
from mechmarkov.importing.live import by_forward_pass, gpt2_names
from mechmarkov.importing.live.difference import nearest
from mechmarkov.importing.live.inside import LENS, Inside, is_of, weights_of
from mechmarkov.importing.live.name_table import UnclearError
from mechmarkov.importing.live.reading import Fields, Reading
from mechmarkov.importing.live.settings import configs, norm_first
from mechmarkov.importing.live.untouched import our_own_numbers
from mechmarkov.importing.names import plan as named
from mechmarkov.importing.names.table import BIASES, Names
from mechmarkov.importing.names.weights import PAGE, advice_for, nothing_fits
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder, is_derived, parameter_shapes
from mechmarkov.models.layers import ACTIVATIONS
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import listed, quoted, shown

TRANSFORMERS = "transformers.models."


def converted(
    live: Inside, n_ctx: int | None = None, given: Fields | None = None, names: Names | None = None
) -> tuple[HookedDecoder, Reading]:
    """A single HookedDecoder with the weights of a live model.

    The buffers that follow from the config (masks, rotary tables) are left out.

    Args:
        live: The model.
        n_ctx: The length of the context that it was trained on, where its config has a longer one.
        given: Fields of the config that the model does not say.
        names: For a model with names of its own, which weight is which; see `mechmarkov.importing.names`.

    Returns:
        The decoder, with copies of the weights, in float32 on the CPU, and how the model was read: `said` and
        `advice` are those of the fields that were chosen.

    Raises:
        ValueError: For a stack, a config that cannot be expressed, parameters that are missing, unknown or of
            another shape, and settings that neither the model nor its logits tell.
    """
    given = dict(given or {})
    if given.get("n_ctx") is not None and n_ctx is not None and given["n_ctx"] != n_ctx:
        raise ValueError(f"n_ctx is {n_ctx}, but given has {given['n_ctx']}: expected one of the two")
    n_ctx = given.pop("n_ctx", n_ctx)
    for name, value in live.model.named_parameters():  # first: what is measured relies on these
        if not bool(value.isfinite().all()):
            raise ValueError(f"{layout.plain_name(name)} holds NaN or infinite values")
    if names is None:
        try:
            reading = _reading(live, n_ctx, given)
        except layout.UnknownWeightError as error:
            table = f'names={{…, {quoted(error.name)}: ""}} leaves it out'
            raise layout.UnknownWeightError(
                error.name, f": if the model does not use it, a table of names with {table} ({PAGE})"
            ) from None
    else:
        fields = given if n_ctx is None else {**given, "n_ctx": n_ctx}
        if (first := norm_first(live)) is not None and fields.get("normalization_type", "") is not None:
            fields = {"norm_first": first, **fields}
        reading = Reading(
            lambda _: named.of_live_model(live.model, names, fields),
            advice=advice_for(fields),
            modules=named.modules_of(live.model, names),
        )
    choices = list(reading.all_choices())
    decoders = (_decoder(live.kind(), reading, choice, n_ctx) for choice in choices)
    if len(choices) == 1:
        return next(decoders), reading
    best, other, decoder = nearest(live, decoders)
    if other is not None:
        unknown = [name for name, value in choices[best].items() if value != choices[other][name]]
        so = f"given={{{unknown[0]!r}: {choices[best][unknown[0]]!r}}}"
        raise RunFileError(
            f"neither the model nor its logits tell {listed(unknown)}: say it, for example {so}"
        )
    tried = {name: values for name, values in reading.choices.items() if len(values) > 1}
    chosen = {name: choices[best][name] for name in tried}
    advice = "".join(f"; of {name} {listed([*map(str, tried[name])])} were tried" for name in tried)
    provenance = {**reading.said, "chosen_by_logits": chosen}
    return decoder, replace(reading, said=provenance, advice=advice + reading.advice)


def _reading(live: Inside, n_ctx: int | None, given: dict[str, Any]) -> Reading:
    """Returns how a live model is read, by its names."""
    model, state = live.model, weights_of(live.model)
    if isinstance(model, HookedDecoder):
        if model.n_models is not None:
            raise ValueError(f"the model is a stack of {model.n_models}: import a member, stack[i]")
        config_fields.agree(model.config.model_dump(), given, "in its config")
        return Reading(lambda _: (model.config, state))
    cfg = getattr(model, "cfg", None)
    if is_of(model, TRANSFORMERS) or layout.recognises((*hugging_face.MARKS, *mamba.MARKS), state):
        return _of_transformers(live, state, n_ctx, given)
    if layout.recognises((*gpt2.MARKS, *relative_transformer.MARKS), state):
        return gpt2_names.reading(live, state, given, n_ctx)
    if cfg is not None and is_of(cfg, LENS):
        config_fields.agree({**vars(cfg), **config_fields.PLACES}, given, "in its cfg")
        if layout.recognises(transformer_bridge.MARKS, state):
            return Reading(lambda _: transformer_bridge.states_of(state, vars(cfg)))
        return Reading(lambda _: (config_from_lens(cfg), state))
    why: ValueError = nothing_fits(state, f"the weights of {live.kind()} are called")
    if layout.recognises(hooked_transformer.MARKS, state):
        try:
            by_names = _with_lens_names(live, state, given)
            by_names.read(next(by_names.all_choices()))
            return by_names
        except ValueError as error:
            if cfg is not None:
                raise
            why = error  # some of its names are HookedTransformer's, and it says nothing else
    try:
        return by_forward_pass.reading(live, given, n_ctx)
    except UnclearError as error:
        raise UnclearError(f"{why}; its forward pass does not tell: {error}") from None


def _of_transformers(
    live: Inside, state: Mapping[str, Tensor], n_ctx: int | None, given: dict[str, Any]
) -> Reading:
    settings = next(configs(live), {})
    if settings.get("model_type") in hugging_face.OF_NO_LENGTH and n_ctx is not None:
        given = {**given, "n_ctx": n_ctx}  # these have no context to be shortened
    plan = hugging_face.plan_import(layout.shapes_of(state), settings, given, where="config.")
    return Reading(lambda _: plan.of_live_model(state))


def _with_lens_names(live: Inside, state: Mapping[str, Tensor], given: dict[str, Any]) -> Reading:
    """Somebody's model with HookedTransformer's names: fields of its config that are not ours change nothing.

    Its logits would show it. What neither shapes nor config say, the logits choose. Biases that it does not
    have are zero.
    """
    config = next(configs(live), {})
    ours = {*DecoderConfig.model_fields, *CHANGING, *LOCAL}
    known = {name: value for name, value in config.items() if name in ours}
    by_shapes = hooked_transformer.from_shapes(layout.shapes_of(state))
    fields = config_fields.agree({**by_shapes, **numbers(config), **known}, given, "in its cfg")
    if hooked_transformer.lacks_last_norm(state):
        fields.setdefault("final_norm", False)
    choices: dict[str, list[Any]] = {}
    if not fields["attn_only"] and fields.get("act_fn") is None:
        choices["act_fn"] = [*ACTIVATIONS]
    if "normalization_type" not in fields:
        choices["normalization_type"] = [None, "LNPre", "RMSPre"]

    def read(choice: Fields) -> tuple[DecoderConfig, Mapping[str, Tensor]]:
        config = config_from_lens({**fields, **choice})
        absent = {name: x for name, x in parameter_shapes(config).items() if name not in state}
        biases = {name: torch.zeros(x) for name, x in absent.items() if BIASES.fullmatch(name)}
        return config, {**state, **biases}

    return Reading(read, choices)


def _decoder(kind: str, reading: Reading, choice: Fields, n_ctx: int | None) -> HookedDecoder:
    with our_own_numbers():
        config, weights = reading.read(choice)
        decoder = HookedDecoder(config)
        weights = {name: value for name, value in weights.items() if not is_derived(name, config)}
        _check(kind, weights, decoder.state_dict())
        decoder.load_state_dict(weights)
        return decoder if n_ctx is None else _shortened(decoder, n_ctx)


def _check(kind: str, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse weights that are missing, unknown, of another shape, or no numbers."""
    for name in expected:
        if name not in weights:
            raise ValueError(
                f"{kind} has no parameter {name}: expected HookedTransformer's names, or names= ({PAGE})"
            )
    for name, value in weights.items():
        if name not in expected:
            raise ValueError(f"{kind} has a parameter {quoted(name)} that a HookedDecoder lacks")
        if value.shape != expected[name].shape:
            shape = list(expected[name].shape)
            raise ValueError(
                f"{name} has shape {list(value.shape)}, expected {shape} by the model's cfg; other orders of "
                f"axes are said by names= ({PAGE})"
            )
        if not value.is_floating_point():
            raise ValueError(f"{name} is a tensor of {value.dtype}, expected floating point numbers")


def _shortened(decoder: HookedDecoder, n_ctx: int) -> HookedDecoder:
    """The same model for shorter sequences: what it computes on them stays."""
    if type(n_ctx) is not int or not 1 <= n_ctx <= decoder.config.n_ctx:
        raise ValueError(f"n_ctx is {shown(n_ctx)}, expected at most the model's {decoder.config.n_ctx}")
    short = HookedDecoder(decoder.config.model_copy(update={"n_ctx": n_ctx}))
    weights = decoder.state_dict()
    short.load_state_dict(
        {name: weights[name][tuple(map(slice, value.shape))] for name, value in short.state_dict().items()}
    )
    return short
