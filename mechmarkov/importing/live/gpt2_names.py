"""Somebody's GPT with GPT-2's names, such as nanoGPT's: shapes tell its sizes, modules what they compute.

Those of `Relative_Transformer` (`mechmarkov.importing.relative_transformer`) are such names in part.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mechmarkov.importing import config_fields, gpt2, layout, relative_transformer
from mechmarkov.importing.live import measured
from mechmarkov.importing.live.inside import Inside
from mechmarkov.importing.live.reading import Fields, Reading
from mechmarkov.importing.live.settings import n_heads, norm_first
from mechmarkov.models import DecoderConfig
from mechmarkov.models.layers import ACTIVATIONS
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import listed

NORMS = ("ln_1", "ln_2", "ln_f", ".ln")  # how the names of norms end


def reading(live: Inside, state: Mapping[str, Tensor], given: Fields, n_ctx: int | None = None) -> Reading:
    """Returns how such a model is read.

    Args:
        live: The model.
        state: Its weights and buffers.
        given: Fields of the config that the caller says.
        n_ctx: The length of its context; where it has a table of positions, that says it.

    Raises:
        RunFileError: Naming a weight or a setting that a `HookedDecoder` cannot express.
    """
    weights = _weights(live.model, state)
    shapes = layout.shapes_of(weights)
    modules = {layout.plain_name(name): module for name, module in live.model.named_modules()}
    norms = [module for name, module in modules.items() if name.endswith(NORMS)]
    of_lags = layout.recognises(relative_transformer.MARKS, shapes)
    plan_import = relative_transformer.plan_import if of_lags else gpt2.plan_import
    fields, choices = {**_norms(norms, given), **given}, dict[str, Sequence[Any]]()
    if (first := norm_first(live)) is not None:
        fields.setdefault("norm_first", first)
    holders = {name.split(".")[-2] for name in shapes if "." in name}
    if holders & {"ln_1", "ln"} and "ln_f" not in holders:
        fields.setdefault("final_norm", False)
    if n_ctx is not None and not any(name.endswith("wpe.weight") for name in shapes):
        fields["n_ctx"] = n_ctx
    if fields.get("positional_embedding_type") == "rotary" and "rotary_adjacent_pairs" not in fields:
        choices["rotary_adjacent_pairs"] = [False, True]
    if "n_heads" not in fields:
        heads = n_heads(live)
        if len(heads) > 1:
            raise RunFileError(f"its layers have {listed([*map(str, heads)])} heads, expected one number")
        embedding = next(name for name in shapes if name.endswith("wte.weight"))
        width = layout.shape_of(shapes, embedding, 2)[1]
        choices |= {"n_heads": heads or [n for n in range(1, width + 1) if width % n == 0]}

    if "normalization_type" not in fields:  # its norms have no weights, or there are none
        choices["normalization_type"] = [None, "LNPre", "RMSPre"]

    def plan(choice: Fields) -> layout.ImportPlan:
        return plan_import(shapes, {}, {**fields, **choice})

    provenance: dict[str, Any] = {}
    # Names and shapes are checked first: what is measured relies on these.
    config = plan({"act_fn": "relu", **{name: values[0] for name, values in choices.items()}}).config
    if "act_fn" not in fields and not config.attn_only:
        outer = "transformer." if "transformer.wte.weight" in shapes else ""
        blocks = "layers" if of_lags else f"{outer}h"
        mlps = [f"{blocks}.{layer}.mlp." for layer in range(config.n_layers)]
        layers = [(modules.get(f"{mlp}c_fc"), modules.get(f"{mlp}c_proj")) for mlp in mlps]
        act_fn = measured.act_fn(live, layers, config.n_ctx)
        choices["act_fn"] = [*ACTIVATIONS] if act_fn is None else [act_fn]
        provenance |= {} if act_fn is None else {"act_fn_by": "its values on a grid"}

    def read(choice: Fields) -> tuple[DecoderConfig, Mapping[str, Tensor]]:
        return plan(choice).of_live_model(weights)

    assumed = {**config_fields.ASSUMED, **fields}
    hidden = listed([f"{name} ({assumed[name]})" for name in config_fields.ASSUMED])
    advice = f'; weights do not show {hidden}: say what is otherwise, given={{"window": 8}}'
    return Reading(read, choices, provenance, advice)


def _weights(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in float32, and buffers that may stand for one: counters, masks and tables do not."""
    parameters = {layout.plain_name(name) for name, _ in model.named_parameters(remove_duplicate=False)}
    return {
        name: value
        for name, value in state.items()
        if name in parameters or (value.is_floating_point() and name.endswith(".weight"))
    }


def _norms(norms: list[nn.Module], given: Fields) -> dict[str, Any]:
    """Returns what a model's norms are, as far as they show it."""
    attributes = [getattr(norm, name, None) for norm in norms for name in ("eps", "variance_epsilon")]
    eps = {value for value in attributes if type(value) is float}
    if len(eps) > 1:
        raise RunFileError(f"its norms have an eps of {listed([*map(str, sorted(eps))])}, expected one")
    fields: dict[str, Any] = {"eps": eps.pop()} if eps else {}
    weighted = [norm for norm in norms if next(norm.parameters(), None) is not None]
    if "normalization_type" in given or not weighted:
        return fields
    kinds = {measured.normalization_type(norm) for norm in weighted}
    if len(kinds) > 1 or None in kinds:
        so = 'given={"normalization_type": "LN"}'
        raise RunFileError(f"its norms are neither all LN nor all RMS by their values: give {so}")
    return {**fields, "normalization_type": kinds.pop()}
