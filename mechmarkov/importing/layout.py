"""Layouts of saved weights: what each tells of its model, and the checks that all share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from einops import rearrange
from pydantic import ValidationError
from torch import Tensor

from mechmarkov.models import DecoderConfig
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.text import quoted, shown

Shapes = Mapping[str, tuple[int, ...]]
# What no shape tells: HookedTransformer's defaults, named to the user wherever they are assumed.
ASSUMED: dict[str, Any] = {"eps": 1e-5, "use_attn_scale": True, "window": None}


@dataclass(frozen=True)
class ImportPlan:
    """A model as its file describes it, before any weight is read.

    Attributes:
        config: The shape of the model; whether it is tied is decided by its weights.
        wanted: The names of the weights to read; the rest follows from the config.
        states: The weights, by their own names, as HookedTransformer's.
        assumed: Fields that neither the file nor the caller gives, with the default that is taken.
        may_tie: Whether equal embedding and unembedding mean one parameter.
    """

    config: DecoderConfig
    wanted: tuple[str, ...]
    states: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    assumed: dict[str, Any] = field(default_factory=dict)
    may_tie: bool = False


def count_layers(shapes: Shapes, prefix: str) -> int:
    """How many layers there are, numbered from 0 without a gap.

    Raises:
        RunFileError: If one is missing.
    """
    inside = (name.removeprefix(prefix).split(".")[0] for name in shapes if name.startswith(prefix))
    layers = {int(part) for part in inside if part.isdecimal() and len(part) < 5}
    if layers != set(range(len(layers))) or not layers:
        raise RunFileError(f"its layers {prefix}N are numbered {sorted(layers)[:8]}, expected 0, 1, …")
    return len(layers)


def oriented(transposed: bool, d_in: int, d_out: int) -> tuple[int, int]:
    """The shape of a linear layer's weight: `[d_in, d_out]`, or the other way round."""
    return (d_out, d_in) if transposed else (d_in, d_out)


def shape_of(shapes: Shapes, name: str, n_axes: int) -> tuple[int, ...]:
    """The shape of a weight that must be there.

    Raises:
        RunFileError: If it is missing, empty or has another number of axes.
    """
    if name not in shapes:
        raise RunFileError(f"it has no {name}")
    if len(shapes[name]) != n_axes or min(shapes[name]) < 1:
        raise RunFileError(f"{name} has shape {list(shapes[name])}, expected {n_axes} axes, none empty")
    return shapes[name]


def agree(found: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Both together; where both name a field they must agree.

    Raises:
        RunFileError: Naming the field and both values.
    """
    for name in given.keys() & found.keys():
        if found[name] is not None and found[name] != given[name]:
            theirs, ours = (shown(values[name]) for values in (found, given))
            raise RunFileError(f"{name} is {theirs} {where}, but {ours} was given")
    return {**found, **given}


def require(fields: Mapping[str, Any], names: tuple[str, ...], why: str) -> None:
    """Refuse to guess a field of the config.

    Raises:
        RunFileError: Naming the first field that is not given.
    """
    for name in names:
        if name not in fields:
            raise RunFileError(f"{why} does not tell {name}: give it with --set {name}={_example(name)}")


def make_config(fields: Mapping[str, Any]) -> DecoderConfig:
    """A config from fields of the file and of the caller.

    Raises:
        RunFileError: Naming the field that is wrong.
    """
    try:
        return DecoderConfig.model_validate(dict(fields))
    except ValidationError as error:
        raise RunFileError(one_line(error, DecoderConfig, name="model")) from error


def refuse_unknown(names: Iterable[str], known: set[str]) -> None:
    """Refuse a weight of unknown meaning, rather than leave it out.

    Raises:
        RunFileError: Naming the first.
    """
    for name in names:
        if name not in known:
            raise RunFileError(f"it has a weight {quoted(name)} that a HookedDecoder lacks")


def expect_shape(shapes: Shapes, name: str, expected: tuple[int, ...]) -> None:
    """Compare the shape of a weight with the config.

    Raises:
        RunFileError: Naming the weight and both shapes.
    """
    if name not in shapes:
        raise RunFileError(f"it has no {name}")
    if shapes[name] != expected:
        raise RunFileError(f"{name} has shape {list(shapes[name])}, expected {list(expected)}")


def block_states(
    layer: int, config: DecoderConfig, linear: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """HookedTransformer's tensors of one block.

    Args:
        layer: Which block.
        config: The shape of the model.
        linear: Weight `[d_in, d_out]` and bias `[d_out]` of the layers "q", "k", "v", "o", whose heads lie
            side by side, and of an MLP's "in", "out" and, where it has one, "gate".
    """
    block, width = f"blocks.{layer}", config.d_head
    states = {}
    for letter in "qkv":
        weight, bias = linear[letter]
        name = f"{'_' * (config.n_key_value_heads is not None and letter in 'kv')}{{}}_{letter.upper()}"
        states[f"{block}.attn.{name.format('W')}"] = rearrange(
            weight, "d_in (head d_head) -> head d_in d_head", d_head=width
        )
        states[f"{block}.attn.{name.format('b')}"] = rearrange(
            bias, "(head d_head) -> head d_head", d_head=width
        )
    weight, states[f"{block}.attn.b_O"] = linear["o"]
    states[f"{block}.attn.W_O"] = rearrange(weight, "(head d_head) d_out -> head d_head d_out", d_head=width)
    for part in () if config.attn_only else ("in", "out"):
        states[f"{block}.mlp.W_{part}"], states[f"{block}.mlp.b_{part}"] = linear[part]
    if config.gated_mlp:
        states[f"{block}.mlp.W_gate"], _ = linear["gate"]
    return states


def tie(config: DecoderConfig, states: dict[str, Tensor]) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """A model whose unembedding is its embedding's transpose as a tied one.

    Raises:
        RunFileError: If the config is tied and the weights are not.
    """
    unembed = states.get("unembed.W_U")
    if unembed is None:
        return config, states
    if unembed.equal(states["embed.W_E"][..., : config.d_vocab_out, :].mT):
        rest = {name: value for name, value in states.items() if name != "unembed.W_U"}
        return config.model_copy(update={"tied": True}), rest
    if config.tied:
        raise RunFileError("the model is tied, but its unembedding is not its embedding's transpose")
    return config, states


def _example(name: str) -> str:
    return {
        "n_heads": "2",
        "act_fn": "gelu (or gelu_new, relu, silu)",
        "normalization_type": "LN (or LNPre, RMS, RMSPre, none)",
        "positional_embedding_type": "standard (or shortformer)",
        "n_ctx": "32",
        "rotary_adjacent_pairs": "false",
        "rotary_base": "10000",
    }.get(name, "VALUE")
