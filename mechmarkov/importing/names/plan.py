"""A model whose names a table tells: its config, and how its weights become HookedTransformer's."""

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from mechmarkov.importing import config_fields, hooked_transformer, layout
from mechmarkov.importing.layout import ImportPlan, Shapes
from mechmarkov.importing.names.folding import FOLDS, kind_of, unmarked
from mechmarkov.importing.names.table import Names, Table, table_of
from mechmarkov.importing.names.weights import OURS, PAGE, Renamed, renamed, targets
from mechmarkov.importing.reparametrized import with_made_weights
from mechmarkov.models import DecoderConfig
from mechmarkov.models.config import MAX_WIDTH, STATE_SPACES
from mechmarkov.models.decoder import parameter_shapes
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import first_of, near_misses, quoted, shown

LAYOUT = "a table of names"
TIED = 'a tied weight has two names, "…": ["embed.W_E", "unembed.W_U"]'
POSITIONS = ", without a line for pos_embed.W_pos (positions that code computes can be a buffer),"
SIZES = ("n_heads", "n_key_value_heads", "d_head", "d_state", "dt_rank", "n_groups")
KNOWN = (
    "embed.W_E", "pos_embed.W_pos", "ln_final.w", "ln_final.b", "unembed.W_U", "unembed.b_U",
    *(f"blocks.N.{norm}" for norm in ("ln1.w", "ln1.b", "ln2.w", "ln2.b")),
    *(f"blocks.N.attn.{kind}_{side}" for side in "QKVO" for kind in "Wb"),
    *(f"blocks.N.mlp.{kind}" for kind in ("W_in", "b_in", "W_gate", "W_out", "b_out")),
)  # fmt: skip


def plan_import(
    shapes: Shapes, names: Names, given: Mapping[str, Any], optional: Container[str] = ()
) -> ImportPlan:
    r"""Work out which decoder weights with names of their own are, by a table of these names.

    Args:
        shapes: The shape of every weight, by its own name.
        names: Which weight is which of HookedTransformer's; see `mechmarkov.importing.names.table`.
        given: Fields of a `DecoderConfig` that shapes do not tell, or `n_ctx` for fewer positions.
        optional: Weights that no line need name, such as the buffers of a live model.

    Raises:
        RunFileError: One line that names the weight, line or field that is wrong.

    Example:
        >>> shapes = {"tok": (3, 4), "out": (4, 3), **{f"h.0.{side}": (4, 4) for side in "qkvo"}}
        >>> names = {"tok": "embed.W_E", "out": "unembed.W_U", "missing": "zeros"}
        >>> names |= {rf"h\.(\d+)\.{x}": rf"blocks.\1.attn.W_{x.upper()}" for x in "qkvo"}
        >>> given = {"n_heads": 2, "n_ctx": 8, "normalization_type": None}
        >>> plan_import(shapes, names, {**given, "positional_embedding_type": "none"}).config.d_head
        2
    """
    table = table_of(names)
    _check_given(given)

    def by_our_names(weights: Mapping[str, Tensor]) -> Renamed:
        translated, n_ctx = renamed(weights, table, given, optional), given.get("n_ctx")
        if type(n_ctx) is int and n_ctx >= 1:
            for name, value in translated.states.items():
                translated.states[name] = layout.first_positions(name, value, n_ctx)
        return translated

    # Shapes of what the table makes are those of tensors without memory.
    translated = by_our_names({name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
    inner = layout.shapes_of(translated.states)
    for name in inner:
        if not OURS.fullmatch(name):
            layer = next(iter(re.findall(r"\d+", name)), "0")
            near = near_misses(name, [known.replace(".N.", f".{layer}.") for known in KNOWN])
            raise RunFileError(
                f"names: {quoted(name)} is not a name of HookedTransformer's{near}; see {PAGE}"
            )
    lacks_last_norm = hooked_transformer.lacks_last_norm(inner) and table.fill("ln_final.w") is None
    fields, assumed = _fields(inner, given, lacks_last_norm)
    if translated.by_name:
        assumed["axes"] = "a square weight called weight is [d_out, d_in], any other [d_in, d_out]"
    config = config_fields.make_config({**fields, "tied": False})
    assumed = {**config_fields.assumptions(config, given), **assumed}
    expected = parameter_shapes(config)
    _check(inner, expected, translated, table)

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        made = by_our_names(weights).states
        return {name: made[name] if name in made else _filled(name, x, table) for name, x in expected.items()}

    wanted = tuple(name for name in shapes if table.of(name) or OURS.fullmatch(name))
    read = tuple(name for name in wanted if not (entries := table.of(name)) or any(x.to for x, _ in entries))
    return ImportPlan(config, read, states, assumed, may_tie=True)


def of_live_model(
    model: torch.nn.Module,
    names: Names,
    given: Mapping[str, Any] | None,
    made: Mapping[str, Tensor] | None = None,
) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """Returns the config and HookedTransformer's weights of a live model; its buffers need no line.

    What wrappers put into names, or stands before all of them, is taken off where the table does not have it.
    A weight that is made of others (`reparametrized`) has its own name. Weights that are `made` of its code
    have HookedTransformer's names.

    Raises:
        RunFileError: As of `plan_import`.
    """
    weights = _weights_of(model)
    short = _without_wrappers(weights, table_of(names))
    weights = {short[name]: layout.in_float32(value) for name, value in weights.items()}
    weights |= made or {}
    buffers = {short.get(name, name) for name, _ in model.named_buffers()}
    return plan_import(layout.shapes_of(weights), names, given or {}, buffers).of_live_model(weights)


def modules_of(model: torch.nn.Module, names: Names) -> dict[str, str]:
    """Returns the path of the module that holds each weight, by HookedTransformer's name of the weight."""
    table, modules = table_of(names), dict[str, str]()
    for own, short in _without_wrappers(_weights_of(model), table).items():
        for line, match in table.of(short):
            for target in targets(match, line):
                modules.setdefault(target, own.rpartition(".")[0])
    return modules


def _weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    weights = with_made_weights(model, {**dict(model.named_buffers()), **model.state_dict()})
    return {name: value for name, value in weights.items() if isinstance(value, Tensor)}


def _without_wrappers(names: Iterable[str], table: Table) -> dict[str, str]:
    """Names as a table has them, by those that they are: what it calls the embedding shows what is before."""
    short = {name: name if table.of(name) else layout.plain_name(name) for name in names}
    for name in short.values():
        parts = name.split(".")
        for begin in range(len(parts)):
            if any("embed.W_E" in line.to for line, _ in table.of(".".join(parts[begin:]))):
                prefix = "".join(f"{part}." for part in parts[:begin])
                return {own: plain.removeprefix(prefix) for own, plain in short.items()}
    return short


def _check_given(given: Mapping[str, Any]) -> None:
    """Refuse what weights cannot be folded by; the config checks the rest."""
    if not isinstance(given, Mapping):
        raise RunFileError(f'given is {shown(given)}, expected fields of a config such as {{"n_heads": 2}}')
    for name in SIZES:
        value = given.get(name)
        if value is not None and not (type(value) is int and 1 <= value <= MAX_WIDTH):
            raise RunFileError(f"{name} is {shown(value)}, expected an integer from 1 to {MAX_WIDTH}")
    if "tied" in given:
        raise RunFileError(f"tied is {shown(given['tied'])}, but weights decide it: {TIED}")
    if type(given.get("mixer", "")) is not str:
        raise RunFileError(f"mixer is {shown(given['mixer'])}, expected a name such as 'mamba'")


def _fields(
    inner: Shapes, given: Mapping[str, Any], lacks_last_norm: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the config, and those of them that are assumed."""
    by_shapes = hooked_transformer.from_shapes(inner)
    if by_shapes.get("normalization_type") == "RMS":  # or a LayerNorm whose biases are filled
        del by_shapes["normalization_type"]
    fields = config_fields.agree(by_shapes, given, "by the shapes")
    if lacks_last_norm and "final_norm" not in fields:
        fields["final_norm"] = False
    assumed = {name: value for name, value in config_fields.ASSUMED.items() if name not in fields}
    if "pos_embed.W_pos" in inner and "positional_embedding_type" not in fields:
        assumed["positional_embedding_type"] = "standard"
    if not fields["attn_only"] and "parallel_attn_mlp" not in fields:
        assumed["parallel_attn_mlp"] = False
    fields |= assumed
    needed = ["n_ctx", "normalization_type", *config_fields.needed_parts(fields)]
    if fields.get("mixer") not in STATE_SPACES:
        needed.insert(0, "positional_embedding_type")
    lacks = "" if {"pos_embed.W_pos", "positional_embedding_type"} & {*inner, *fields} else POSITIONS
    config_fields.require(fields, needed, f"a table of names{lacks}")
    return fields, assumed


def _check(inner: Shapes, expected: Shapes, translated: Renamed, table: Table) -> None:
    """Refuse a weight that the config has no place for, one of another shape, and one that is not there."""

    def whose(name: str) -> str:
        return f"{name} (from {', '.join(map(quoted, translated.origin[name][:2])) or 'embed.W_E'})"

    for name, shape in inner.items():
        if name not in expected:
            raise RunFileError(f"names: {whose(name)} has no place in a model with this config")
        if shape != expected[name]:
            hint = ""
            if shape[::-1] == expected[name]:
                hint = ' (turn it with {"to": …, "transpose": true})'
            elif name.endswith("W_rel"):
                hint = " (each head and lag has a vector of its own)"
            elif inner["embed.W_E"][0] in shape:  # and not its width, which the config has from it
                hint = f' (or turn {whose("embed.W_E")} with {{"to": …, "transpose": true}})'
            raise RunFileError(
                f"{whose(name)} has shape {list(shape)}, expected {list(expected[name])} by the config{hint}"
            )
    lacking = [name for name in expected if name not in inner and table.fill(unmarked(name)) is None]
    if lacking:
        biases = all(kind_of(name).startswith("b") for name in lacking)
        advice = '"missing": "zeros" where the model has no such biases' if biases else "add their lines"
        if all(".mlp." in name for name in lacking):
            layer = re.escape(lacking[0].partition(".mlp.")[0])
            advice = (
                rf'add their lines, or "missing": {{r"{layer}\.mlp\..*": "zeros"}} where the layer has no MLP'
            )
        if "unembed.W_U" in lacking:
            advice = f"add their lines; {TIED}"
        if lacking[0].startswith("ln_final"):
            advice = "add their lines, or give final_norm=False where the model has no last norm"
        some = first_of([*map(unmarked, lacking)], 6)
        raise RunFileError(f"names: no line gives {some}: {advice}; see {PAGE}")


def _filled(name: str, shape: tuple[int, ...], table: Table) -> Tensor:
    """Returns what stands for a weight that the model does not have."""
    fill = table.fill(unmarked(name))
    if fill != "identity":
        return torch.ones(shape) if fill == "ones" else torch.zeros(shape)
    made = torch.eye(max(shape))
    if len(shape) == 3 and max(shape) % shape[0] == 0:
        made = rearrange(made, FOLDS["attention"][kind_of(name)][1], head=shape[0])
    if len(shape) == 3 and shape[1] == shape[2]:  # a head that is as wide as the stream
        made = torch.eye(shape[1]).repeat(shape[0], 1, 1)
    if made.shape != shape:
        raise RunFileError(f"{name} has shape {list(shape)}, which has no identity: give it a line of names")
    return made
